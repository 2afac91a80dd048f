// The largest or smallest elements of each row, and the derivative. CUDA twins of kernels/top_k.h,
// which defines their order.
//
// Device memory. Asynchronous on `stream`. Returns the launch error, if any.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/type.h"

namespace muster::kernels::cuda {

struct TopKShape {
  int64_t rows;
  int64_t columns;  // fewer than 2^31
  int64_t chosen;   // elements chosen per row, <= columns
  bool largest;     // else the smallest
};

// A block per row reads it five times, then compares each chosen element with the others.
// Bandwidth-bound if few are chosen, slow for many thousands. Results are bit-identical between
// runs.
int64_t TopKWorkspaceBytes(const TopKShape& shape);
cudaError_t TopK(void* values, int32_t* index, const void* x, Type type, const TopKShape& shape,
                 void* workspace, cudaStream_t stream);

// dx = dy at chosen elements, else zero.
cudaError_t TopKGrad(void* dx, const void* dy, const int32_t* index, Type type,
                     const TopKShape& shape, cudaStream_t stream);

}  // namespace muster::kernels::cuda
