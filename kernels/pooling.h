// Pooling over windows of an image and its derivatives, f32. No buffer aliases another.
//
//   x, dx   [B, C, H, W] in shape.layout      y, dy   [B, C, H', W'] in PoolOutputLayout(shape)
//
// The results are the same for any number of threads. All are bandwidth-bound.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/layout.h"

namespace muster::kernels {

struct PoolShape {
  int64_t batch;     // B
  int64_t channels;  // C
  int64_t height;    // H
  int64_t width;     // W
  std::array<int64_t, 2> kernel;
  std::array<int64_t, 2> strides;
  std::array<int64_t, 4> padding = {};  // top, left, bottom, right; no window sees only padding
  // Rounds H' and W' up: a window may extend beyond the bottom or right padding, but starts inside
  // the image or the padding before it.
  bool ceil = false;
  Layout layout;                              // of x and dx
  std::array<int64_t, 2> dilations = {1, 1};  // 1, 1 for averages

  // Requires: both are at least 1.
  int64_t output_height() const { return Outputs(0, height); }
  int64_t output_width() const { return Outputs(1, width); }

 private:
  int64_t Outputs(int dimension, int64_t size) const {
    const int64_t padded = size + padding[dimension] + padding[dimension + 2];
    const int64_t stride = strides[dimension];
    const int64_t extent = (kernel[dimension] - 1) * dilations[dimension] + 1;
    const int64_t outputs = (padded - extent + (ceil ? stride - 1 : 0)) / stride + 1;
    const bool last_is_outside = (outputs - 1) * stride >= size + padding[dimension];
    return ceil && last_is_outside ? outputs - 1 : outputs;
  }
};

// Returns the layout of y and dy: the order of `shape.layout` for y's size.
Layout PoolOutputLayout(const PoolShape& shape);

// y is the maximum of each window; padding is never the maximum. A NaN counts as the maximum, so
// that a diverged model is seen. `state` receives the positions of the maxima for MaxPool2dGrad,
// the first of equal ones. It has MaxPoolStateBytes() bytes.
void MaxPool2d(float* y, std::byte* state, const float* x, const PoolShape& shape);

int64_t MaxPoolStateBytes(const PoolShape& shape);

// The position of a window's maximum receives all of the window's dy.
void MaxPool2dGrad(float* dx, const float* dy, const std::byte* state, const PoolShape& shape);

enum class PoolDivisor {
  kImage,   // the part of a window that lies in the image
  kPadded,  // the part that lies in the image or its padding
};

void AveragePool2d(float* y, const float* x, const PoolShape& shape, PoolDivisor divisor);

void AveragePool2dGrad(float* dx, const float* dy, const PoolShape& shape, PoolDivisor divisor);

// y[B, C] (row-major) is the mean of x[B, C, pixels] over the pixels.
void GlobalAveragePool2d(float* y, const float* x, int64_t batch, int64_t channels, int64_t pixels,
                         const Layout& layout);

void GlobalAveragePool2dGrad(float* dx, const float* dy, int64_t batch, int64_t channels,
                             int64_t pixels, const Layout& layout);

}  // namespace muster::kernels
