// The memory of batches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "lib/data/dataset.h"

namespace muster {

// The layout of the rows of `samples` samples: one block per graph input, each aligned to 64 bytes.
// BytesOfRows returns the size in bytes. PlaceRows returns the blocks within `memory`, which has at
// least that size. `row_bytes` is indexed by graph input.
int64_t BytesOfRows(int64_t samples, absl::Span<const int64_t> row_bytes);
std::vector<absl::Span<std::byte>> PlaceRows(std::byte* memory, int64_t samples,
                                             absl::Span<const int64_t> row_bytes);

// Returns the rows [first, first + count) of `rows`.
std::vector<absl::Span<std::byte>> SubRows(absl::Span<const absl::Span<std::byte>> rows,
                                           absl::Span<const int64_t> row_bytes, int64_t first,
                                           int64_t count);

// Returns how many rows a thread reads at once: one if the dataset is slow.
int64_t RowsOfRun(const Dataset& dataset, absl::Span<const int64_t> row_bytes);

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace muster
