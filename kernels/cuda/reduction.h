// Sums and maxima over some dimensions of a tensor. CUDA twins of kernels/reduction.h. Tensors are
// in device memory, row-major, of the given floating type. Asynchronous on `stream`. Returns the
// launch error, if any. Sums are in f32, in an order that depends only on the shape. Each reads x
// once: bandwidth-bound.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "kernels/cuda/type.h"

namespace muster::kernels::cuda {

struct ReductionShape {
  std::vector<int64_t> sizes;  // of x
  std::vector<bool> reduced;   // for each dimension

  int64_t outputs() const;
  int64_t reductions() const;  // elements reduced to one
};

// Scratch for any reduction below, in f32.
int64_t ReductionWorkspaceBytes(const ReductionShape& shape);

// y = factor * the sum of x over the reduced dimensions, in the remaining shape.
cudaError_t Sum(void* y, Type y_type, const void* x, Type x_type, float factor,
                const ReductionShape& shape, void* workspace, cudaStream_t stream);

// y = the maximum of x over the reduced dimensions; NaN if an element is NaN.
cudaError_t Maximum(void* y, const void* x, Type type, const ReductionShape& shape, void* workspace,
                    cudaStream_t stream);

// dx = dy / (number of elements equal to the maximum) if x equals its maximum y; else 0.
// `workspace` as above, followed by f32 of the outputs.
cudaError_t MaximumGrad(void* dx, const void* dy, const void* x, const void* y, Type type,
                        const ReductionShape& shape, void* workspace, cudaStream_t stream);

// dx = factor * dy of the output to which x contributed.
cudaError_t Spread(void* dx, const void* dy, Type type, float factor, const ReductionShape& shape,
                   cudaStream_t stream);

}  // namespace muster::kernels::cuda
