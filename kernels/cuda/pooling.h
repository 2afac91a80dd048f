// Pooling over windows of an image, and its derivatives. CUDA twins of kernels/pooling.h.
//
//   x, dx   T[B, C, H, W]      y, dy   T[B, C, H', W']      both in `order`
//   state   i32[B, C, H', W'], in the order of y: the position of each maximum in its image
//
// Device memory. Asynchronous on `stream`. Returns the launch error, if any. Gradients are
// gathered, not scattered, so the order of sums is fixed. Bandwidth-bound if channels are last and
// take a multiple of 16 bytes; tensors must then be 16-byte aligned.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

#include "kernels/cuda/batch_norm.h"
#include "kernels/cuda/type.h"

namespace muster::kernels::cuda {

struct PoolShape {
  int64_t batch;
  int64_t channels;
  std::array<int64_t, 2> image;   // H, W
  std::array<int64_t, 2> output;  // H', W'
  std::array<int64_t, 2> kernel;
  std::array<int64_t, 2> strides;
  std::array<int64_t, 4> padding;  // top, left, bottom, right
  bool count_padding = false;      // an average counts padding
  ChannelOrder order;
  Type type;
  std::array<int64_t, 2> dilations = {1, 1};  // 1, 1 for averages
};

// The first maximum of each window. A NaN counts as a maximum; padding never does.
cudaError_t MaxPool2d(void* y, int32_t* state, const void* x, const PoolShape& shape,
                      cudaStream_t stream);
cudaError_t MaxPool2dGrad(void* dx, const void* dy, const int32_t* state, const PoolShape& shape,
                          cudaStream_t stream);

// The average over the part of a window in the image or, with count_padding, in the image and its
// padding.
cudaError_t AveragePool2d(void* y, const void* x, const PoolShape& shape, cudaStream_t stream);
cudaError_t AveragePool2dGrad(void* dx, const void* dy, const PoolShape& shape,
                              cudaStream_t stream);

}  // namespace muster::kernels::cuda
