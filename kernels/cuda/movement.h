// Moves elements unchanged: transposes, concatenations, slices, borders and their derivatives, as
// copies between strided views. CUDA twins of kernels/transpose.h, concat.h and slice.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

namespace muster::kernels::cuda {

// A box of elements in a tensor: its offset, and the stride of each dimension, in elements. A
// stride of 0 repeats.
struct View {
  int64_t offset = 0;
  std::vector<int64_t> strides;
};

// Returns row-major strides.
std::vector<int64_t> RowMajorStrides(const std::vector<int64_t>& sizes);

// y[to] = x[from] for the elements of a box of `sizes`, each >= 1, with at most 12 dimensions that
// cannot be merged. Elements of 2 or 4 bytes, in device memory, that must not overlap. Asynchronous
// on `stream`. Returns the launch error, if any. Bandwidth-bound: 16 bytes at a time if both sides
// are contiguous, through 32 x 32 tiles if the innermost dimensions are swapped.
cudaError_t CopyBox(void* y, const View& to, const void* x, const View& from,
                    const std::vector<int64_t>& sizes, int element_bytes, cudaStream_t stream);

// Converts images with few channels of 16 bits between channels first and channels last, padded to
// eight: tensor cores read 16 bytes at a time.
//
//   planes   [B, C, P], C <= 8      pixels   [B, P, 8], 16-byte aligned
inline constexpr int64_t kChannelsOfPixel = 8;
struct FewChannels {
  int64_t batch;
  int64_t channels;
  int64_t pixels;

  int64_t padded_bytes() const { return batch * pixels * kChannelsOfPixel * 2; }
};
// PadChannels() sets the added channels to 0. Both are bandwidth-bound.
cudaError_t PadChannels(void* pixels, const void* planes, FewChannels shape, cudaStream_t stream);
cudaError_t TakeChannels(void* planes, const void* pixels, FewChannels shape, cudaStream_t stream);

}  // namespace muster::kernels::cuda
