#include "kernels/mean_squared_error.h"

#include "kernels/cpu/softmax_rows.h"

namespace muster::kernels {
namespace {

constexpr int64_t kGrain = 1 << 14;

}  // namespace

void MeanSquaredError(float* loss, const float* prediction, const float* target, float factor,
                      int64_t n) {
  const double total = SumPieces(n, kGrain, [=](int64_t begin, int64_t end) {
    return Softmaxes().squared_error(prediction + begin, target + begin, end - begin);
  });
  *loss = static_cast<float>(factor * total);
}

void MeanSquaredErrorGrad(float* dprediction, const float* prediction, const float* target,
                          float factor, int64_t n) {
  ParallelFor(n, kGrain, [=](int64_t begin, int64_t end) {
    Softmaxes().scaled_difference(dprediction + begin, prediction + begin, target + begin,
                                  2 * factor, end - begin);
  });
}

}  // namespace muster::kernels
