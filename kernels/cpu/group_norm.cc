#include "kernels/group_norm.h"

#include <algorithm>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/row_norm.h"

namespace muster::kernels {

void GroupNorm(float* y, float* mean, float* rstd, const float* x, const float* gain,
               const float* bias, float epsilon, const GroupNormShape& shape) {
  const int64_t width = shape.channels / shape.groups, n = shape.positions;
  ParallelFor(shape.batch * shape.groups, RowGrain(width * n),
              [=, &loops = Norms()](int64_t begin, int64_t end) {
                for (int64_t g = begin; g < end; ++g) {
                  const int64_t group = g * width * n;
                  const auto moments = loops.moments(x + group, epsilon, width * n);
                  for (int64_t i = 0; i < width; ++i) {
                    const int64_t channel = g % shape.groups * width + i;
                    const float factor = moments.rstd * gain[channel];
                    const float* from = x + group + i * n;
                    // Subtracts the mean first: an offset alone would lose digits if the mean is
                    // large.
                    loops.shifted(y + group + i * n, from, moments.mean, factor, bias[channel], n);
                  }
                  mean[g] = moments.mean;
                  rstd[g] = moments.rstd;
                }
              });
}

void GroupNormGradInput(float* dx, const float* dy, const float* x, const float* gain,
                        const float* mean, const float* rstd, const GroupNormShape& shape) {
  const int64_t width = shape.channels / shape.groups, n = shape.positions;
  ParallelFor(shape.batch * shape.groups, RowGrain(width * n),
              [=, &loops = Norms()](int64_t begin, int64_t end) {
                for (int64_t g = begin; g < end; ++g) {
                  const int64_t group = g * width * n;
                  const float* gains = gain + g % shape.groups * width;
                  double sum = 0, dot = 0;
                  for (int64_t i = 0; i < width; ++i) {
                    const int64_t row = group + i * n;
                    sum += gains[i] * loops.sum(dy + row, n);
                    dot += gains[i] * loops.centered_dot(dy + row, x + row, mean[g], n);
                  }
                  // dx = rstd (gain dy - mean(gain dy) - normal mean(gain dy normal))
                  const double scale = rstd[g], count = double(width) * n;
                  const float slope = static_cast<float>(-scale * scale * scale * dot / count);
                  const float offset = static_cast<float>(-scale * sum / count);
                  for (int64_t i = 0; i < width; ++i) {
                    const int64_t row = group + i * n;
                    loops.grad_row(dx + row, rstd[g] * gains[i], dy + row, slope, x + row, mean[g],
                                   offset, n);
                  }
                }
              });
}

void GroupNormGradParameters(float* dgain, float* dbias, const float* dy, const float* x,
                             const float* mean, const float* rstd, const GroupNormShape& shape) {
  const int64_t width = shape.channels / shape.groups, n = shape.positions;
  ParallelFor(shape.channels, RowGrain(shape.batch * n),
              [=, &loops = Norms()](int64_t begin, int64_t end) {
                for (int64_t c = begin; c < end; ++c) {
                  double gains = 0, biases = 0;
                  for (int64_t b = 0; b < shape.batch; ++b) {
                    const int64_t row = (b * shape.channels + c) * n;
                    const int64_t g = b * shape.groups + c / width;
                    gains += rstd[g] * loops.centered_dot(dy + row, x + row, mean[g], n);
                    biases += loops.sum(dy + row, n);
                  }
                  dgain[c] = static_cast<float>(gains);
                  dbias[c] = static_cast<float>(biases);
                }
              });
}

}  // namespace muster::kernels
