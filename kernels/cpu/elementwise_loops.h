// The loops of elementwise.h and reduction.h, once per instruction set.
#pragma once

#include <cstdint>

namespace muster::kernels {

// y[i] = f(sources[0][i], sources[1][i], ...) for i in [0, n). Where bit k of `repeats` is set,
// source k is the one number sources[k][0]. y may be any source that does not repeat.
using ElementwiseLoop = void(float* y, const float* const* sources, unsigned repeats, int64_t n);

inline constexpr int kRowsAtOnce = 8;

struct ElementwiseLoops {
  ElementwiseLoop* copy;  // of any 4-byte elements
  ElementwiseLoop* add;
  ElementwiseLoop* sub;
  ElementwiseLoop* mul;
  ElementwiseLoop* div;
  ElementwiseLoop* pow;
  ElementwiseLoop* where;         // condition (i32), a, b
  ElementwiseLoop* where_grad_a;  // dy, condition (i32)
  ElementwiseLoop* where_grad_b;
  ElementwiseLoop* div_grad_b;  // dy, a, b
  ElementwiseLoop* pow_grad_a;
  ElementwiseLoop* pow_grad_b;
  ElementwiseLoop* equal;     // 1 where a == b, else 0
  ElementwiseLoop* if_equal;  // a, b, c: c where a == b, else 0

  // Sums of blocks of floats, added in double.
  double (*sum)(const float* x, int64_t n);
  // NaN where an element is.
  double (*max)(const float* x, int64_t n);
  // to[i] += rows[0][i] + ... + rows[kRowsAtOnce - 1][i], the rows' sum first.
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
