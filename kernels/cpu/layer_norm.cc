#include "kernels/layer_norm.h"

#include <algorithm>

#include "kernels/cpu/vector_kernels.h"

namespace muster::kernels {

void LayerNorm(float* y, float* mean, float* rstd, const float* x, const float* gain,
               const float* bias, float epsilon, LayerNormShape shape) {
  const VectorKernels& vectors = Vectors();
  for (int64_t r = 0; r < shape.rows; ++r) {
    const int64_t row = r * shape.channels;
    vectors.layer_norm(y + row, mean + r, rstd + r, x + row, gain, bias, epsilon, shape.channels);
  }
}

void LayerNormGradInput(float* dx, const float* dy, const float* x, const float* gain,
                        const float* mean, const float* rstd, LayerNormShape shape) {
  const VectorKernels& vectors = Vectors();
  for (int64_t r = 0; r < shape.rows; ++r) {
    const int64_t row = r * shape.channels;
    vectors.layer_norm_grad_input(dx + row, dy + row, x + row, gain, mean[r], rstd[r],
                                  shape.channels);
  }
}

void LayerNormGradParameters(float* dgain, float* dbias, const float* dy, const float* x,
                             const float* mean, const float* rstd, LayerNormShape shape) {
  const VectorKernels& vectors = Vectors();
  std::fill_n(dgain, shape.channels, 0.0f);
  std::fill_n(dbias, shape.channels, 0.0f);
  for (int64_t r = 0; r < shape.rows; ++r) {
    const int64_t row = r * shape.channels;
    vectors.layer_norm_grad_parameters(dgain, dbias, dy + row, x + row, mean[r], rstd[r],
                                       shape.channels);
  }
}

}  // namespace muster::kernels
