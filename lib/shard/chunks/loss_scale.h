// The dynamic loss scale of an fp16 job: gradients that would vanish in half precision are computed
// times a power of two that grows until they overflow.
//   Source: P. Micikevicius et al., "Mixed precision training", ICLR 2018, section 3.2
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// The same on every shard of a job: all hear the same verdicts. Thread-compatible.
class LossScale {
 public:
  static constexpr float kMin = 1;
  // Beyond, only gradients that have vanished for other reasons do not overflow; and the scale of a
  // long run stays finite.
  static constexpr float kMax = 1 << 24;

  // As at step 0, `training` with its defaults filled. A job of another precision has none: value()
  // stays 0.
  explicit LossScale(const v1::TrainingSpec& training);

  // As `state` has it, where this job and that of the checkpoint both have one. INVALID_ARGUMENT
  // for what no job can have written.
  absl::Status Restore(const v1::UpdateState& state);

  // What the next step's loss is multiplied by; 0: the job has no loss scale.
  float value() const { return value_; }
  // Since the scale changed last.
  int64_t clean_steps() const { return clean_steps_; }

  // The last step's gradient was finite: doubles after growth_steps of these, up to kMax.
  void StepWasClean();
  // It was not: halves, down to kMin.
  void StepOverflowed();

 private:
  float value_ = 0;
  int64_t growth_steps_ = 0;
  int64_t clean_steps_ = 0;
};

}  // namespace muster
