// Which rectangles a slice of a parameter has in the whole tensor. This file does not depend on
// CUDA.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/graph/tensor_parallel/placement.h"

namespace muster {

// Rows of elements that are adjacent in a slice, and `stride` elements apart in the whole tensor.
struct SliceCopy {
  int64_t whole = 0;  // the first element in the whole tensor
  int64_t slice = 0;  // the first element in the slice
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;  // `columns` if there is one row

  friend bool operator==(const SliceCopy&, const SliceCopy&) = default;
};

// Returns at most three copies that together have the elements [first, first + count) of the slice,
// in their order. Requires: the slice has these elements.
std::vector<SliceCopy> CopiesOf(const ParameterSlice& slice, int64_t first, int64_t count);

}  // namespace muster
