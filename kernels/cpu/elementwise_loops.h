// The loops of elementwise.h and reduction.h, once per instruction set.
#pragma once

#include <cstdint>

namespace muster::kernels {

// Computes y[i] = f(sources[0][i], sources[1][i], ...) for i in [0, n). If bit k of `repeats` is
// set, source k is the single number sources[k][0]. y may be any source that does not repeat.
using ElementwiseLoop = void(float* y, const float* const* sources, unsigned repeats, int64_t n);

inline constexpr int kRowsAtOnce = 8;

struct ElementwiseLoops {
  ElementwiseLoop* copy;  // for any 4-byte elements
  ElementwiseLoop* add;
  ElementwiseLoop* sub;
  ElementwiseLoop* mul;
  ElementwiseLoop* div;
  ElementwiseLoop* pow;
  ElementwiseLoop* minimum;
  ElementwiseLoop* maximum;
  ElementwiseLoop* mod;
  ElementwiseLoop* minimum_grad;  // inputs dy, a, b; gradient of a
  ElementwiseLoop* maximum_grad;
  ElementwiseLoop* where;         // inputs condition (i32), a, b; a and b have any 4-byte elements
  ElementwiseLoop* where_grad_a;  // dy, condition (i32)
  ElementwiseLoop* where_grad_b;
  ElementwiseLoop* div_grad_b;  // dy, a, b
  ElementwiseLoop* pow_grad_a;
  ElementwiseLoop* pow_grad_b;
  ElementwiseLoop* equal;     // 1 where a == b, else 0
  ElementwiseLoop* if_equal;  // a, b, c: c where a == b, else 0

  // Results are i32; inputs are floats or i32.
  ElementwiseLoop* is_equal;
  ElementwiseLoop* is_less;
  ElementwiseLoop* is_less_or_equal;
  ElementwiseLoop* is_equal_i32;
  ElementwiseLoop* is_less_i32;
  ElementwiseLoop* is_less_or_equal_i32;
  // Inputs and results are i32.
  ElementwiseLoop* add_i32;
  ElementwiseLoop* sub_i32;
  ElementwiseLoop* mul_i32;
  ElementwiseLoop* div_i32;
  ElementwiseLoop* mod_i32;
  ElementwiseLoop* minimum_i32;
  ElementwiseLoop* maximum_i32;
  ElementwiseLoop* abs_i32;

  // Returns the sum of x. Blocks are summed in float, and their sums are added in double.
  double (*sum)(const float* x, int64_t n);
  // Returns the largest element, or NaN if an element is NaN.
  double (*max)(const float* x, int64_t n);
  // Computes to[i] += rows[0][i] + ... + rows[kRowsAtOnce - 1][i]. The rows are added up first.
  void (*add_rows)(float* to, const float* const* rows, int64_t n);
  void (*max_rows)(float* to, const float* const* rows, int64_t n);
};

namespace baseline {
extern const ElementwiseLoops kElementwiseLoops;
}
namespace avx2 {
extern const ElementwiseLoops kElementwiseLoops;
}
namespace avx512 {
extern const ElementwiseLoops kElementwiseLoops;
}

}  // namespace muster::kernels
