#include "lib/shard/chunks/optimizer_settings.h"

#include <glog/logging.h>

namespace muster {

using kernels::OptimizerRule;
using kernels::OptimizerSettings;

namespace {

OptimizerSettings AdamSettings(OptimizerRule rule, const v1::Adam& adam) {
  return {.rule = rule,
          .beta1 = adam.has_beta1() ? adam.beta1() : 0.9,
          .beta2 = adam.has_beta2() ? adam.beta2() : 0.999,
          .epsilon = adam.has_epsilon() ? adam.epsilon() : 1e-8,
          .weight_decay = adam.weight_decay()};
}

}  // namespace

OptimizerSettings OptimizerSettingsOf(const v1::Optimizer& optimizer) {
  switch (optimizer.kind_case()) {
    case v1::Optimizer::kSgd: {
      const v1::Sgd& sgd = optimizer.sgd();
      return {.rule = sgd.momentum() == 0 ? OptimizerRule::kSgd
                      : sgd.nesterov()    ? OptimizerRule::kSgdNesterov
                                          : OptimizerRule::kSgdMomentum,
              .momentum = sgd.momentum(),
              .weight_decay = sgd.weight_decay()};
    }
    case v1::Optimizer::kAdam:
      return AdamSettings(OptimizerRule::kAdam, optimizer.adam());
    case v1::Optimizer::kAdamw:
      return AdamSettings(OptimizerRule::kAdamw, optimizer.adamw());
    case v1::Optimizer::kAdagrad: {
      const v1::Adagrad& adagrad = optimizer.adagrad();
      return {.rule = OptimizerRule::kAdagrad,
              .epsilon = adagrad.has_epsilon() ? adagrad.epsilon() : 1e-10,
              .weight_decay = adagrad.weight_decay()};
    }
    case v1::Optimizer::kRmsprop: {
      const v1::Rmsprop& rmsprop = optimizer.rmsprop();
      return {.rule = OptimizerRule::kRmsprop,
              .alpha = rmsprop.has_alpha() ? rmsprop.alpha() : 0.99,
              .epsilon = rmsprop.has_epsilon() ? rmsprop.epsilon() : 1e-8,
              .weight_decay = rmsprop.weight_decay()};
    }
    case v1::Optimizer::kLamb: {
      const v1::Lamb& lamb = optimizer.lamb();
      return {.rule = OptimizerRule::kLamb,
              .beta1 = lamb.has_beta1() ? lamb.beta1() : 0.9,
              .beta2 = lamb.has_beta2() ? lamb.beta2() : 0.999,
              .epsilon = lamb.has_epsilon() ? lamb.epsilon() : 1e-6,
              .weight_decay = lamb.weight_decay()};
    }
    case v1::Optimizer::kLars: {  // SGD with a trust ratio
      const v1::Lars& lars = optimizer.lars();
      return {.rule = lars.momentum() == 0 ? OptimizerRule::kSgd : OptimizerRule::kSgdMomentum,
              .momentum = lars.momentum(),
              .weight_decay = lars.weight_decay()};
    }
    case v1::Optimizer::KIND_NOT_SET:
      break;
  }
  LOG(FATAL) << "the plan names no optimizer; validation of the job should have refused it";
}

}  // namespace muster
