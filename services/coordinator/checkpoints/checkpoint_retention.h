// Which checkpoints stay however many newer ones there are: checkpoint.keep_every_steps and
// checkpoint.keep_best of a job file.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// What is known of the evaluation of a step's parameters.
struct StepEvaluation {
  enum Kind { kNone, kToCome, kKnown };
  Kind kind = kNone;
  double loss = 0;  // of a known one; one that is not finite is never among the best
};

// Of `committed` steps those that `spec` keeps: multiples of keep_every_steps, the keep_best ones
// with the smallest evaluation losses (equal ones have one place together), and those whose
// evaluation is yet to come, which may turn out to be among the best. `evaluation` is asked only
// where the spec wants the best. In the order of `committed`.
std::vector<int64_t> RetainedSteps(const v1::CheckpointSpec& spec,
                                   absl::Span<const int64_t> committed,
                                   absl::FunctionRef<StepEvaluation(int64_t step)> evaluation);

}  // namespace muster
