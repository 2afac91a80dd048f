// Max pooling (floor mode, no padding) and its derivative. Row-major f32; no buffer aliases
// another.
//
//   x, dx   f32[B, C, H, W]      y, dy   f32[B, C, H', W'], H' = (H - kernel) / stride + 1, W'
//   likewise
#pragma once

#include <cstdint>

namespace muster::kernels {

struct PoolShape {
  int64_t planes;  // B C
  int64_t height;  // H
  int64_t width;   // W
  int64_t kernel;
  int64_t stride;

  int64_t output_height() const { return (height - kernel) / stride + 1; }
  int64_t output_width() const { return (width - kernel) / stride + 1; }
};

void MaxPool2d(float* y, const float* x, const PoolShape& shape);

// The first maximum of a window, in row-major order, takes all of its dy.
void MaxPool2dGrad(float* dx, const float* dy, const float* x, const PoolShape& shape);

}  // namespace muster::kernels
