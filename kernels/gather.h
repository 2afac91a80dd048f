// Slices of a tensor by index along one dimension (numpy.take), and the derivative. Row-major, in
// parallel, bandwidth-bound.
//
// The tensor is seen as [outer, size, inner], the result as [outer, indices, inner]. Indices lie in
// [-size, size), negative ones count from the end (FirstOutOfRange in kernels/embedding.h tells).
#pragma once

#include <cstdint>

namespace muster::kernels {

struct GatherShape {
  int64_t outer;
  int64_t size;
  int64_t inner;
  int64_t indices;
};

// Elements of `element_bytes` = 2 or 4. y overlaps nothing.
void Gather(void* y, const void* x, const int32_t* index, const GatherShape& shape,
            int element_bytes);

// dx f32 = sum of the slices of dy f32 by index, in their order; slices that no index names are
// zero.
void GatherGrad(float* dx, const float* dy, const int32_t* index, const GatherShape& shape);

}  // namespace muster::kernels
