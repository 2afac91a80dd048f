// Sums of everything that stands before an element along one dimension: the CUDA twin of
// kernels/cumulative_sum.h. Tensors are on the device, row-major; y may be x. Asynchronous on
// `stream`; the launch error, if any, is returned.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/type.h"

namespace muster::kernels::cuda {

// Of x[outer, size, inner], along `size`.
struct CumulativeShape {
  int64_t outer;
  int64_t size;
  int64_t inner;
  bool exclusive = false;  // without the element itself: the first is 0
  bool reverse = false;    // from the end: of everything that stands behind
};

// Of any type: in f32, in an order that depends on the shape alone; i32 modulo 2^32. Neighbours
// along `inner` are read together where there are as many as a warp has lanes; else a warp walks
// along `size`.
cudaError_t CumulativeSum(void* y, const void* x, Type type, const CumulativeShape& shape,
                          cudaStream_t stream);

}  // namespace muster::kernels::cuda
