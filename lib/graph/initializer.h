// Initial values of parameters, the same however they are sliced.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// Fills `values` with elements [offset, offset + values.size()) of parameter `index` of a job
// seeded with `seed`. Element i depends on (seed, index, i) alone.
void FillInitialValues(const v1::Initializer& initializer, uint64_t seed, int index, int64_t offset,
                       absl::Span<float> values);

}  // namespace muster
