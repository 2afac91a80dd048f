#include "lib/job/training_check.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "lib/job/sync_check.h"
#include "lib/limits/limits.h"

namespace muster {
namespace {

constexpr double kEpochsMax = 1e6;
constexpr double kLossScaleMax = 1 << 24;  // half precision overflows at far smaller scales
constexpr int kParameterGroupsMax = 64;    // each group is compared with every parameter's name
constexpr int kPatternsMax = 64;

class TrainingCheck {
 public:
  TrainingCheck(const v1::JobSpec& spec, FieldChecks& faults) : spec_(spec), faults_(faults) {}

  void Run() {
    const v1::TrainingSpec& training = spec_.training();
    switch (training.length_case()) {
      case v1::TrainingSpec::kSteps:
        faults_.InRange<int64_t>("training.steps", training.steps(), 1, limits::kStepsMax);
        break;
      case v1::TrainingSpec::kEpochs:
        if (faults_.Positive("training.epochs", training.epochs()) &&
            training.epochs() > kEpochsMax) {
          faults_.Add("training.epochs", absl::StrCat("must be at most ", kEpochsMax, " (is ",
                                                      training.epochs(), ")"));
        }
        break;
      case v1::TrainingSpec::LENGTH_NOT_SET:
        faults_.Add("training", "required: how long; steps: 1000 or epochs: 10");
        break;
    }
    Optimizer(training.optimizer());
    Schedule(training);
    faults_.AtLeast("training.evaluate_every_steps", training.evaluate_every_steps(), 0,
                    "0 evaluates only at the end");
    if (training.precision() == v1::FP16) {
      NeedsWholeSteps(spec_, "training.precision", "fp16's loss scale depends on the norm of",
                      faults_);
    }
    if (!v1::Precision_IsValid(training.precision())) {
      faults_.Add("training.precision", absl::StrCat("unknown precision ", training.precision(),
                                                     "; known: fp32, tf32, bf16, fp16"));
    }
    LossScale(training);
    Clip(training);
    faults_.InRange<int64_t>("training.micro_batch_size", training.micro_batch_size(), 0,
                             limits::kBatchSizeMax, "0 computes a device's share at once");
    ParameterGroups(training);
  }

 private:
  void ParameterGroups(const v1::TrainingSpec& training) {
    if (training.parameter_groups_size() > kParameterGroupsMax) {
      faults_.Add("training.parameter_groups",
                  absl::StrCat("at most ", kParameterGroupsMax, " (has ",
                               training.parameter_groups_size(), ")"));
      return;
    }
    for (int i = 0; i < training.parameter_groups_size(); ++i) {
      ParameterGroup(absl::StrCat("training.parameter_groups[", i, "]"),
                     training.parameter_groups(i));
    }
  }

  void ParameterGroup(const std::string& path, const v1::ParameterGroup& group) {
    Patterns(path + ".match", group);
    if (group.has_learning_rate_factor()) {
      faults_.Rate(path + ".learning_rate_factor", group.learning_rate_factor(),
                   "frozen: true keeps parameters as they are");
    }
    if (group.has_decay()) {
      faults_.WeightDecay(path + ".decay", group.decay());
      if (group.has_weight_decay()) {
        faults_.Add(path + ".decay",
                    "not together with weight_decay: decay 0 means that none applies; remove one");
      }
    }
    if (!group.frozen()) return;
    for (const auto& [is_set, field] :
         {std::pair(group.has_learning_rate_factor(), ".learning_rate_factor"),
          std::pair(group.has_weight_decay(), ".weight_decay"),
          std::pair(group.has_decay(), ".decay")}) {
      if (is_set) faults_.Add(path + field, "has no effect on frozen parameters; remove it");
    }
  }

  void Patterns(const std::string& path, const v1::ParameterGroup& group) {
    if (group.match().empty()) {
      faults_.Add(path,
                  "required: patterns of parameter names, for example [\"*.bias\", \"head.*\"]");
    } else if (group.match_size() > kPatternsMax) {
      faults_.Add(path, absl::StrCat("at most ", kPatternsMax, " (has ", group.match_size(), ")"));
      return;
    }
    for (int i = 0; i < group.match_size(); ++i) {
      const std::string field = absl::StrCat(path, "[", i, "]");
      if (group.match(i).empty()) {
        faults_.Add(field, "an empty pattern matches no name; \"*\" matches all");
      }
      faults_.TensorName(field, group.match(i));
    }
  }

  void LossScale(const v1::TrainingSpec& training) {
    if (!training.has_loss_scale()) return;
    if (training.precision() != v1::FP16) {
      faults_.Add("training.loss_scale",
                  "only with precision: fp16, the others need none; remove it");
    }
    const v1::LossScale& scale = training.loss_scale();
    if (scale.has_initial()) {
      faults_.InRange("training.loss_scale.initial", scale.initial(), 1.0, kLossScaleMax,
                      "65536 is the default");
    }
    faults_.InRange<int64_t>("training.loss_scale.growth_steps", scale.growth_steps(), 0,
                             limits::kStepsMax, "2000 is the default");
  }

  void Clip(const v1::TrainingSpec& training) {
    if (!training.has_clip()) return;
    switch (training.clip().kind_case()) {
      case v1::Clip::kGlobalNorm:
        NeedsWholeSteps(spec_, "training.clip.global_norm", "the norm needs", faults_);
        return faults_.Rate("training.clip.global_norm", training.clip().global_norm(),
                            "1 is usual");
      case v1::Clip::kValue:
        return faults_.Rate("training.clip.value", training.clip().value());
      case v1::Clip::KIND_NOT_SET:
        return faults_.Add("training.clip", "required: global_norm: 1 or value: 0.5");
    }
  }

  void Optimizer(const v1::Optimizer& optimizer) {
    const std::string path = "training.optimizer.";
    switch (optimizer.kind_case()) {
      case v1::Optimizer::kSgd: {
        const v1::Sgd& sgd = optimizer.sgd();
        LearningRate(path + "sgd", sgd.learning_rate());
        faults_.Decay(path + "sgd.momentum", sgd.momentum(), "0.9 is usual");
        if (sgd.nesterov() && sgd.momentum() == 0) {
          faults_.Add(path + "sgd.nesterov", "needs momentum (is 0); add momentum: 0.9");
        }
        faults_.WeightDecay(path + "sgd.weight_decay", sgd.weight_decay());
        return;
      }
      case v1::Optimizer::kAdam:
        return Adam(path + "adam", optimizer.adam(), "1e-8 is the default");
      case v1::Optimizer::kAdamw:
        return Adam(path + "adamw", optimizer.adamw(), "1e-8 is the default");
      case v1::Optimizer::kAdagrad: {
        const v1::Adagrad& adagrad = optimizer.adagrad();
        LearningRate(path + "adagrad", adagrad.learning_rate());
        if (adagrad.has_epsilon()) faults_.Rate(path + "adagrad.epsilon", adagrad.epsilon());
        faults_.WeightDecay(path + "adagrad.weight_decay", adagrad.weight_decay());
        return;
      }
      case v1::Optimizer::kRmsprop: {
        const v1::Rmsprop& rmsprop = optimizer.rmsprop();
        LearningRate(path + "rmsprop", rmsprop.learning_rate());
        if (rmsprop.has_alpha()) {
          faults_.Decay(path + "rmsprop.alpha", rmsprop.alpha(), "0.99 is the default");
        }
        if (rmsprop.has_epsilon()) faults_.Rate(path + "rmsprop.epsilon", rmsprop.epsilon());
        faults_.WeightDecay(path + "rmsprop.weight_decay", rmsprop.weight_decay());
        return;
      }
      case v1::Optimizer::kLamb:
        NeedsWholeSteps(spec_, path + "lamb", "a trust ratio needs", faults_);
        return Adam(path + "lamb", optimizer.lamb(), "1e-6 is the default");
      case v1::Optimizer::kLars:
        NeedsWholeSteps(spec_, path + "lars", "a trust ratio needs", faults_);
        return Lars(path + "lars", optimizer.lars());
      case v1::Optimizer::KIND_NOT_SET:
        faults_.Add("training.optimizer",
                    "required: one of sgd, adam, adamw, adagrad, rmsprop, lamb, lars");
        return;
    }
  }

  void LearningRate(const std::string& path, double learning_rate) {
    faults_.Rate(path + ".learning_rate", learning_rate, "for example 1e-3");
  }

  // `AdamLike` is v1::Adam or v1::Lamb.
  template <typename AdamLike>
  void Adam(const std::string& path, const AdamLike& adam, absl::string_view usual_epsilon) {
    LearningRate(path, adam.learning_rate());
    if (adam.has_beta1()) faults_.Decay(path + ".beta1", adam.beta1(), "0.9 is the default");
    if (adam.has_beta2()) faults_.Decay(path + ".beta2", adam.beta2(), "0.999 is the default");
    if (adam.has_epsilon()) faults_.Rate(path + ".epsilon", adam.epsilon(), usual_epsilon);
    faults_.WeightDecay(path + ".weight_decay", adam.weight_decay());
  }

  void Lars(const std::string& path, const v1::Lars& lars) {
    LearningRate(path, lars.learning_rate());
    faults_.Decay(path + ".momentum", lars.momentum(), "0.9 is usual");
    faults_.WeightDecay(path + ".weight_decay", lars.weight_decay());
    if (lars.has_trust()) faults_.Rate(path + ".trust", lars.trust(), "0.001 is the default");
    if (lars.has_epsilon()) faults_.Rate(path + ".epsilon", lars.epsilon(), "1e-8 is the default");
  }

  void Schedule(const v1::TrainingSpec& training) {
    const v1::Schedule& schedule = training.schedule();
    const std::string path = "training.schedule.";
    if (faults_.InRange<int64_t>(path + "warmup_steps", schedule.warmup_steps(), 0,
                                 limits::kStepsMax) &&
        training.has_steps() && training.steps() > 0 &&
        schedule.warmup_steps() >= training.steps()) {
      faults_.Add(path + "warmup_steps",
                  absl::StrCat("must be less than training.steps = ", training.steps(), " (is ",
                               schedule.warmup_steps(), ")"));
    }
    switch (schedule.kind_case()) {
      case v1::Schedule::kStep:
        faults_.AtLeast(path + "step.every_steps", schedule.step().every_steps(), 1);
        faults_.Positive(path + "step.factor", schedule.step().factor(), "0.1 is usual");
        return;
      case v1::Schedule::kPoly:
        faults_.NotNegative(path + "poly.power", schedule.poly().power());
        faults_.InRange(path + "poly.final_ratio", schedule.poly().final_ratio(), 0.0, 1.0);
        return;
      case v1::Schedule::kCosine:
        faults_.InRange(path + "cosine.final_ratio", schedule.cosine().final_ratio(), 0.0, 1.0);
        return;
      case v1::Schedule::kConstant:
      case v1::Schedule::KIND_NOT_SET:
        return;
    }
  }

  const v1::JobSpec& spec_;
  FieldChecks& faults_;
};

}  // namespace

void CheckTraining(const v1::JobSpec& spec, FieldChecks& faults) {
  TrainingCheck(spec, faults).Run();
}

}  // namespace muster
