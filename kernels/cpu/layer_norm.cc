#include "kernels/layer_norm.h"

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/row_norm.h"

namespace muster::kernels {

void LayerNorm(float* y, float* mean, float* rstd, const float* x, const float* gain,
               const float* bias, float epsilon, LayerNormShape shape) {
  const int64_t n = shape.channels;
  ParallelFor(shape.rows, RowGrain(n), [=, &loops = Norms()](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const NormLoops::Moments moments = loops.moments(x + r * n, epsilon, n);
      loops.normalise(y + r * n, x + r * n, moments, gain, bias, n);
      mean[r] = moments.mean;
      rstd[r] = moments.rstd;
    }
  });
}

void AddLayerNorm(float* y, float* mean, float* rstd, float* sum, const float* a, const float* b,
                  const float* gain, const float* bias, float epsilon, LayerNormShape shape) {
  const int64_t n = shape.channels;
  ParallelFor(shape.rows, RowGrain(n), [=, &loops = Norms()](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* row = sum + r * n;
      loops.add(row, a + r * n, b + r * n, n);
      const NormLoops::Moments moments = loops.moments(row, epsilon, n);
      loops.normalise(y + r * n, row, moments, gain, bias, n);
      mean[r] = moments.mean;
      rstd[r] = moments.rstd;
    }
  });
}

void LayerNormGradInput(float* dx, const float* dy, const float* x, const float* gain,
                        const float* mean, const float* rstd, LayerNormShape shape) {
  const int64_t n = shape.channels;
  ParallelFor(shape.rows, RowGrain(n), [=, &loops = Norms()](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      loops.grad_input(dx + r * n, dy + r * n, x + r * n, gain, {.mean = mean[r], .rstd = rstd[r]},
                       n);
    }
  });
}

void LayerNormGradParameters(float* dgain, float* dbias, const float* dy, const float* x,
                             const float* mean, const float* rstd, LayerNormShape shape) {
  RowNormGradParameters(dgain, dbias, dy, x, mean, rstd, shape.rows, shape.channels);
}

}  // namespace muster::kernels
