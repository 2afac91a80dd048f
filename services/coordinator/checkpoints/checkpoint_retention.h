// Selects the checkpoints that stay, however many newer ones there are: checkpoint.keep_every_steps
// and checkpoint.keep_best of a job file.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// The evaluation of a step's parameters, as far as it is known.
struct StepEvaluation {
  enum Kind { kNone, kToCome, kKnown };
  Kind kind = kNone;
  double loss = 0;  // of kKnown; a non-finite loss is never among the best
};

// Returns the `committed` steps that `spec` keeps, in their order. It keeps multiples of
// keep_every_steps, and the keep_best steps with the smallest evaluation loss (equal losses share a
// place). It also keeps steps with an evaluation still to come, which may be among the best. Calls
// `evaluation` only if the spec keeps the best.
std::vector<int64_t> RetainedSteps(const v1::CheckpointSpec& spec,
                                   absl::Span<const int64_t> committed,
                                   absl::FunctionRef<StepEvaluation(int64_t step)> evaluation);

}  // namespace muster
