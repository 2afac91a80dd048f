// Cumulative sums along one dimension. CUDA twin of kernels/cumulative_sum.h. Tensors are in device
// memory, row-major; y may be x. Asynchronous on `stream`. Returns the launch error, if any.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/type.h"

namespace muster::kernels::cuda {

// The shape of x[outer, size, inner], summed along `size`.
struct CumulativeShape {
  int64_t outer;
  int64_t size;
  int64_t inner;
  bool exclusive = false;  // excludes the element itself: the first sum is 0
  bool reverse = false;    // sums from the end
};

// Takes any type. Floating types are summed in f32, in an order that depends only on the shape; i32
// modulo 2^32. If `inner` has at least a warp's width, neighbours along it are read together;
// otherwise a warp walks along `size`.
cudaError_t CumulativeSum(void* y, const void* x, Type type, const CumulativeShape& shape,
                          cudaStream_t stream);

}  // namespace muster::kernels::cuda
