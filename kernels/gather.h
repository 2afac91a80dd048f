// Slices of a tensor by index along one dimension (numpy.take), and the derivative. Row-major, in
// parallel, bandwidth-bound.
//
// The tensor is [outer, size, inner], the result [outer, indices, inner]. Requires: indices are in
// [-size, size) (check with FirstOutOfRange in kernels/embedding.h). Negative ones count from the
// end. With `first`, any index is valid: the tensor has the slices [first, first + size) of a
// larger one, and the slices of other indices are zero and have no gradient.
#pragma once

#include <cstdint>
#include <optional>

namespace muster::kernels {

struct GatherShape {
  int64_t outer;
  int64_t size;
  int64_t inner;
  int64_t indices;
  std::optional<int64_t> first = std::nullopt;
};

// y is the slices of x that the indices name. Requires: `element_bytes` is 2 or 4, and y overlaps
// no input.
void Gather(void* y, const void* x, const int32_t* index, const GatherShape& shape,
            int element_bytes);

// Each slice of dx is the sum of the slices of dy whose index names it, in the order of the
// indices. Slices that no index names are zero.
void GatherGrad(float* dx, const float* dy, const int32_t* index, const GatherShape& shape);

}  // namespace muster::kernels
