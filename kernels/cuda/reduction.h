// Sums and maxima over some dimensions of a tensor: CUDA twins of kernels/reduction.h. Tensors are
// on the device, row-major, floating of the type given. Asynchronous on `stream`; the launch error,
// if any, is returned. Each sum is in one order that depends on the shape alone, in f32. They read
// x once: bandwidth-bound.
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
  int64_t reductions() const;  // elements that become one
};

// Scratch f32 of every reduction below.
int64_t ReductionWorkspaceBytes(const ReductionShape& shape);

// y = factor * the sum of x over the reduced dimensions, in the shape that is left.
cudaError_t Sum(void* y, Type y_type, const void* x, Type x_type, float factor,
                const ReductionShape& shape, void* workspace, cudaStream_t stream);

// NaN where an element is.
cudaError_t Maximum(void* y, const void* x, Type type, const ReductionShape& shape, void* workspace,
                    cudaStream_t stream);

// dx = where x equals its maximum y: dy / how many do; else 0. `workspace` as above plus f32 of the
// outputs behind it.
cudaError_t MaximumGrad(void* dx, const void* dy, const void* x, const void* y, Type type,
                        const ReductionShape& shape, void* workspace, cudaStream_t stream);

// dx = factor * dy of the output that x went into.
cudaError_t Spread(void* dx, const void* dy, Type type, float factor, const ReductionShape& shape,
                   cudaStream_t stream);

}  // namespace muster::kernels::cuda
