// The largest or smallest elements of each row, and the derivative: CUDA twins of kernels/top_k.h,
// where their order is.
//
// Device memory. Asynchronous on `stream`; the launch error, if any, is returned.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/type.h"

namespace muster::kernels::cuda {

struct TopKShape {
  int64_t rows;
  int64_t columns;  // fewer than 2^31
  int64_t chosen;   // of each row, at most all of them
  bool largest;     // else the smallest
};

// A block per row, which reads it five times; then each of the chosen is compared with the others:
// bandwidth-bound when few are chosen, and slow for many thousands. Results repeat to the bit.
int64_t TopKWorkspaceBytes(const TopKShape& shape);
cudaError_t TopK(void* values, int32_t* index, const void* x, Type type, const TopKShape& shape,
                 void* workspace, cudaStream_t stream);

// dx = dy where it was chosen, else zero.
cudaError_t TopKGrad(void* dx, const void* dy, const int32_t* index, Type type,
                     const TopKShape& shape, cudaStream_t stream);

}  // namespace muster::kernels::cuda
