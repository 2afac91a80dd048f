#include "kernels/mean_squared_error.h"

namespace muster::kernels {

void MeanSquaredError(float* loss, const float* prediction, const float* target, int64_t n) {
  double total = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double difference = double{prediction[i]} - target[i];
    total += difference * difference;
  }
  *loss = static_cast<float>(total / n);
}

void MeanSquaredErrorGrad(float* dprediction, const float* prediction, const float* target,
                          float loss_scale, int64_t n) {
  const float scale = loss_scale * 2.0f / n;
  for (int64_t i = 0; i < n; ++i) dprediction[i] = scale * (prediction[i] - target[i]);
}

}  // namespace muster::kernels
