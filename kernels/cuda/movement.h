// Elements moved, unchanged: transposes, concatenations, slices, borders and their derivatives, as
// copies between strided views. CUDA twins of kernels/transpose.h, concat.h and slice.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

namespace muster::kernels::cuda {

// A box of elements in a tensor: where it starts, and how far one step in each dimension moves, in
// elements. A stride of 0 repeats.
struct View {
  int64_t offset = 0;
  std::vector<int64_t> strides;
};

// Row-major strides.
std::vector<int64_t> RowMajorStrides(const std::vector<int64_t>& sizes);

// y[to] = x[from] for the elements of a box of `sizes`, each >= 1, at most 12 dimensions that
// cannot be merged. Elements of 2 or 4 bytes. Device memory; nothing overlaps. Asynchronous on
// `stream`; the launch error, if any, is returned. Bandwidth-bound: 16 bytes at a time where both
// sides are contiguous, through 32 x 32 tiles where the innermost dimensions are swapped.
cudaError_t CopyBox(void* y, const View& to, const void* x, const View& from,
                    const std::vector<int64_t>& sizes, int element_bytes, cudaStream_t stream);

}  // namespace muster::kernels::cuda
