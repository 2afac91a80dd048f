// The batch of the data that a step trains on.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace muster {

// Returns the batch of step `step`: the `step`-th of the batches that are not in `left_out`
// (ascending). Both count from 0. Leaving a batch out changes no step before the one that trained
// on it.
inline int64_t BatchOfStep(int64_t step, absl::Span<const int64_t> left_out) {
  int64_t batch = step;
  for (const int64_t other : left_out) {
    if (other > batch) break;
    ++batch;
  }
  return batch;
}

}  // namespace muster
