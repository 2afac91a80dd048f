#include "kernels/rms_norm.h"

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/row_norm.h"

namespace muster::kernels {

void RmsNorm(float* y, float* rstd, const float* x, const float* gain, float epsilon,
             RmsNormShape shape) {
  const int64_t n = shape.channels;
  ParallelFor(shape.rows, RowGrain(n), [=, &loops = Norms()](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      rstd[r] = loops.rms_rstd(x + r * n, epsilon, n);
      loops.normalise(y + r * n, x + r * n, {.mean = 0, .rstd = rstd[r]}, gain, nullptr, n);
    }
  });
}

void RmsNormGradInput(float* dx, const float* dy, const float* x, const float* gain,
                      const float* rstd, RmsNormShape shape) {
  const int64_t n = shape.channels;
  ParallelFor(shape.rows, RowGrain(n), [=, &loops = Norms()](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      loops.rms_grad_input(dx + r * n, dy + r * n, x + r * n, gain, rstd[r], n);
    }
  });
}

void RmsNormGradGain(float* dgain, const float* dy, const float* x, const float* rstd,
                     RmsNormShape shape) {
  RowNormGradParameters(dgain, /*dbias=*/nullptr, dy, x, /*mean=*/nullptr, rstd, shape.rows,
                        shape.channels);
}

}  // namespace muster::kernels
