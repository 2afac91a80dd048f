// Two-dimensional cross-correlation and its derivatives. Row-major f32; no buffer aliases another.
//
//   x, dx   f32[B, C, H, W]        w, dw   f32[O, C, K, K]
//   y, dy   f32[B, O, H', W']      H' = (H + 2 padding - K) / stride + 1, W' likewise; both at
//   least 1
//
// `workspace` is f32[shape.workspace_floats()], scratch: its contents before and after mean
// nothing.
#pragma once

#include <cstdint>

namespace muster::kernels {

struct Conv2dShape {
  int64_t batch;     // B
  int64_t channels;  // C
  int64_t height;    // H
  int64_t width;     // W
  int64_t outputs;   // O
  int64_t kernel;    // K
  int64_t stride = 1;
  int64_t padding = 0;

  int64_t output_height() const { return (height + 2 * padding - kernel) / stride + 1; }
  int64_t output_width() const { return (width + 2 * padding - kernel) / stride + 1; }
  int64_t pixels() const { return output_height() * output_width(); }
  int64_t patch() const { return channels * kernel * kernel; }
  int64_t workspace_floats() const { return patch() * pixels(); }
};

// y = x correlated with w, plus bias[O] on every pixel; a null bias is zero.
void Conv2d(float* y, const float* x, const float* w, const float* bias, float* workspace,
            const Conv2dShape& shape);

void Conv2dGradInput(float* dx, const float* dy, const float* w, float* workspace,
                     const Conv2dShape& shape);

void Conv2dGradWeight(float* dw, const float* dy, const float* x, float* workspace,
                      const Conv2dShape& shape);

// db[O] = sum over batch and pixels of dy.
void Conv2dGradBias(float* db, const float* dy, const Conv2dShape& shape);

}  // namespace muster::kernels
