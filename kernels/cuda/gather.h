// Slices of a tensor by index along one dimension, and the derivative. CUDA twins of
// kernels/gather.h and embedding.h.
//
// The tensor is viewed as [outer, size, inner], the result as [outer, indices, inner]; an embedding
// has outer = 1. Device memory, 16-byte aligned. Asynchronous on `stream`. Returns the launch
// error, if any. Bandwidth-bound.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/out_of_range.h"
#include "kernels/cuda/type.h"

namespace muster::kernels::cuda {

struct GatherShape {
  int64_t outer;
  int64_t size;
  int64_t inner;
  int64_t indices;
  // Whether indices in [-size, 0) count from the end. An index out of range is reported and treated
  // as 0.
  bool allows_negative;
  // The tensor has the slices [first, first + size) of a larger one with `whole` slices; 0: there
  // is no larger one. Indices are those of the larger one. The slices that this tensor does not
  // have are zero and have no gradient. Requires: not `allows_negative`.
  int64_t first = 0;
  int64_t whole = 0;
};

cudaError_t Gather(void* y, const void* x, const int32_t* index, const GatherShape& shape,
                   int element_bytes, OutOfRange* out_of_range, cudaStream_t stream);

// dx = the sums of the slices of dy by index, in f32; slices that no index names are zero. The
// indices are sorted (a stable radix sort). A block sums at most 64 slices of one index, in their
// order. Another block joins these sums if an index has several. Results are bit-identical between
// runs.
int64_t GatherGradWorkspaceBytes(const GatherShape& shape);
cudaError_t GatherGrad(void* dx, const void* dy, const int32_t* index, Type type,
                       const GatherShape& shape, void* workspace, cudaStream_t stream);

}  // namespace muster::kernels::cuda
