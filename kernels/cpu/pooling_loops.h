// Pooling of one plane of an image (kernels/cpu/image_order.h), once per instruction set.
#pragma once

#include <cstdint>

namespace muster::kernels {

// The windows of one plane. A plane of x has height * width pixels of `lanes` values; a plane of y
// has output_height * output_width.
struct PoolWindows {
  int64_t lanes;
  int64_t height;
  int64_t width;
  int64_t output_height;
  int64_t output_width;
  int64_t kernel[2];
  int64_t strides[2];
  int64_t padding[4];    // top, left, bottom, right
  bool counts_padding;   // an average's divisor includes padding
  int64_t dilations[2];  // 1, 1 for an average
};

struct PoolingLoops {
  // `state` is the position of each maximum in its window, row by row.
  void (*max)(float* y, uint16_t* state, const float* x, const PoolWindows& windows);
  void (*max_grad)(float* dx, const float* dy, const uint16_t* state, const PoolWindows& windows);
  void (*average)(float* y, const float* x, const PoolWindows& windows);
  void (*average_grad)(float* dx, const float* dy, const PoolWindows& windows);
};

namespace baseline {
extern const PoolingLoops kPoolingLoops;
}
namespace avx2 {
extern const PoolingLoops kPoolingLoops;
}
namespace avx512 {
extern const PoolingLoops kPoolingLoops;
}

}  // namespace muster::kernels
