// The dynamic loss scale of an fp16 job: gradients that would vanish in half precision are computed
// times a power of two that grows until they overflow.
//   Source: P. Micikevicius et al., "Mixed precision training", ICLR 2018, section 3.2
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Every shard of a job holds the same scale, because all shards receive the same verdicts.
// Thread-compatible.
class LossScale {
 public:
  static constexpr float kMin = 1;
  // The highest scale. Gradients that are all zero never overflow, so without a bound the scale
  // would grow until it is infinite.
  static constexpr float kMax = 1 << 24;

  // Starts with the scale of step 0. Requires: the defaults of `training` are filled in. A job of
  // another precision has no loss scale: value() stays 0.
  explicit LossScale(const v1::TrainingSpec& training);

  // Takes the scale from `state`, if both this job and the checkpoint's job have one. Returns
  // INVALID_ARGUMENT for values that no job can have written.
  absl::Status Restore(const v1::UpdateState& state);

  // The factor on the next step's loss. 0 means that the job has no loss scale.
  float value() const { return value_; }
  // The number of clean steps since the last change of the scale.
  int64_t clean_steps() const { return clean_steps_; }

  // Records that the last step's gradient was finite. Doubles the scale after growth_steps such
  // steps, up to kMax.
  void StepWasClean();
  // Records that the last step's gradient was not finite. Halves the scale, down to kMin.
  void StepOverflowed();

 private:
  float value_ = 0;
  int64_t growth_steps_ = 0;
  int64_t clean_steps_ = 0;
};

}  // namespace muster
