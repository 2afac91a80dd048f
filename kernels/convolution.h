// Two-dimensional cross-correlation and its derivatives, f32. No buffer aliases another.
//
//   x, dx      [B, C, H, W]            in the layout that the kernel names
//   y, dy      [B, O, H', W']          in the layout that the kernel names
//   w, dw      [O, C/groups, K, L]     row-major
//   bias, db   [O]
//
// The constructor prepares a kernel (algorithm, memory, machine code), which then runs often, one
// run at a time. Requires: the constructor and Run() use the same number of threads
// (kernels/threads.h). Results repeat to the bit for the same number of threads, and may differ in
// the last bits for another. `workspace` is scratch memory of workspace_bytes() bytes, 64-byte
// aligned.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/layout.h"

namespace muster::kernels {

struct Conv2dShape {
  int64_t batch;                  // B
  int64_t channels;               // C
  int64_t height;                 // H
  int64_t width;                  // W
  int64_t outputs;                // O
  std::array<int64_t, 2> kernel;  // K, L
  std::array<int64_t, 2> strides = {1, 1};
  std::array<int64_t, 4> padding = {};  // top, left, bottom, right
  std::array<int64_t, 2> dilations = {1, 1};
  int64_t groups = 1;  // divides C and O

  // Requires: both are at least 1.
  int64_t output_height() const {
    return (height + padding[0] + padding[2] - dilations[0] * (kernel[0] - 1) - 1) / strides[0] + 1;
  }
  int64_t output_width() const {
    return (width + padding[1] + padding[3] - dilations[1] * (kernel[1] - 1) - 1) / strides[1] + 1;
  }
  int64_t pixels() const { return output_height() * output_width(); }
  int64_t patch() const { return channels / groups * kernel[0] * kernel[1]; }
};

enum class Conv2dEpilogue { kNone, kRelu };

class Conv2d {
 public:
  struct Options {
    bool bias = false;
    Conv2dEpilogue epilogue = Conv2dEpilogue::kNone;
  };

  Conv2d(const Conv2dShape& shape, const Options& options);
  ~Conv2d();
  Conv2d(Conv2d&&) noexcept;

  const Layout& x_layout() const { return x_layout_; }
  const Layout& y_layout() const { return y_layout_; }
  int64_t workspace_bytes() const;

  // y = epilogue(x correlated with w, plus bias on every pixel). `bias` is null if the options have
  // none. Takes 2 B O H' W' patch() operations.
  void Run(float* y, const float* x, const float* w, const float* bias, std::byte* workspace);

 private:
  bool bias_;
  Conv2dEpilogue epilogue_;
  Layout x_layout_;
  Layout y_layout_;
  int64_t y_bytes_;
  std::unique_ptr<class WeightedPrimitive> primitive_;
};

// Computes relu(batch normalisation of (x correlated with w, plus bias)) with running statistics,
// for evaluation. Folds the normalisation into copies of the weights and bias.
class Conv2dBatchNormRelu {
 public:
  struct Normalization {
    const float* mean;      // [O]
    const float* variance;  // [O]
    const float* bias;      // [O]
    const float* gain;      // [O], or null: ones
    float epsilon;
  };

  explicit Conv2dBatchNormRelu(const Conv2dShape& shape);

  const Layout& x_layout() const { return convolution_.x_layout(); }
  const Layout& y_layout() const { return convolution_.y_layout(); }
  int64_t workspace_bytes() const;

  // `bias` is that of the convolution and may be null.
  void Run(float* y, const float* x, const float* w, const float* bias,
           const Normalization& normalization, std::byte* workspace);

 private:
  int64_t outputs_;
  int64_t patch_;
  Conv2d convolution_;
};

class Conv2dGradInput {
 public:
  explicit Conv2dGradInput(const Conv2dShape& shape);
  ~Conv2dGradInput();
  Conv2dGradInput(Conv2dGradInput&&) noexcept;

  const Layout& dx_layout() const { return dx_layout_; }
  const Layout& dy_layout() const { return dy_layout_; }
  int64_t workspace_bytes() const;

  void Run(float* dx, const float* dy, const float* w, std::byte* workspace);

 private:
  Layout dx_layout_;
  Layout dy_layout_;
  std::unique_ptr<class WeightedPrimitive> primitive_;
};

class Conv2dGradWeight {
 public:
  explicit Conv2dGradWeight(const Conv2dShape& shape);
  ~Conv2dGradWeight();
  Conv2dGradWeight(Conv2dGradWeight&&) noexcept;

  const Layout& x_layout() const { return x_layout_; }
  const Layout& dy_layout() const { return dy_layout_; }
  int64_t workspace_bytes() const;

  void Run(float* dw, const float* dy, const float* x, std::byte* workspace);

 private:
  Layout x_layout_;
  Layout dy_layout_;
  std::unique_ptr<class WeightedPrimitive> primitive_;
};

// db[O] = sum over batch and pixels of dy [B, O, pixels] in `layout`, the same for any number of
// threads. Reads dy once: bandwidth-bound.
void Conv2dGradBias(float* db, const float* dy, int64_t batch, int64_t outputs, int64_t pixels,
                    const Layout& layout);

// y += bias[O] on every pixel of y [B, O, pixels] in `layout`. Reads and writes y once:
// bandwidth-bound.
void AddChannelBias(float* y, const float* bias, int64_t batch, int64_t outputs, int64_t pixels,
                    const Layout& layout);

}  // namespace muster::kernels
