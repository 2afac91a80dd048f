#include "lib/shard/chunks/loss_scale.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace muster {

LossScale::LossScale(const v1::TrainingSpec& training) {
  if (training.precision() != v1::FP16) return;
  value_ = static_cast<float>(training.loss_scale().initial());
  growth_steps_ = training.loss_scale().growth_steps();
}

absl::Status LossScale::Restore(const v1::UpdateState& state) {
  if (value_ == 0 || state.loss_scale() == 0) return absl::OkStatus();
  if (!(state.loss_scale() >= kMin && state.loss_scale() <= kMax) || state.clean_steps() < 0) {
    return absl::InvalidArgumentError(absl::StrCat("loss scale ", state.loss_scale(), " with ",
                                                   state.clean_steps(), " clean steps"));
  }
  value_ = static_cast<float>(state.loss_scale());
  clean_steps_ = state.clean_steps();
  return absl::OkStatus();
}

void LossScale::StepWasClean() {
  if (++clean_steps_ < growth_steps_) return;
  clean_steps_ = 0;
  if (value_ > 0) value_ = std::min(2 * value_, kMax);
}

void LossScale::StepOverflowed() {
  clean_steps_ = 0;
  if (value_ > 0) value_ = std::max(value_ / 2, kMin);
}

}  // namespace muster
