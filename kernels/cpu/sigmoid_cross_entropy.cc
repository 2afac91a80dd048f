#include "kernels/sigmoid_cross_entropy.h"

#include "kernels/cpu/softmax_rows.h"

namespace muster::kernels {
namespace {

constexpr int64_t kGrain = 1 << 13;

}  // namespace

void SigmoidCrossEntropy(float* loss, const float* logits, const float* target, float factor,
                         int64_t n) {
  const double total = SumPieces(n, kGrain, [=](int64_t begin, int64_t end) {
    return Softmaxes().sigmoid_cross_entropy(logits + begin, target + begin, end - begin);
  });
  *loss = static_cast<float>(factor * total);
}

void SigmoidCrossEntropyGrad(float* dlogits, const float* logits, const float* target, float factor,
                             int64_t n) {
  ParallelFor(n, kGrain, [=](int64_t begin, int64_t end) {
    Softmaxes().sigmoid_cross_entropy_grad(dlogits + begin, logits + begin, target + begin, factor,
                                           end - begin);
  });
}

}  // namespace muster::kernels
