// Softmax cross-entropy of R rows of V logits against integer targets. Row-major; targets must lie
// in [0, V) (FirstOutOfRange in kernels/embedding.h tells).
#pragma once

#include <cstdint>

namespace muster::kernels {

struct ClassesShape {
  int64_t rows;     // R
  int64_t classes;  // V
};

// probabilities f32[R, V] = softmax(logits f32[R, V]); *loss = mean over rows of -log p[target], in
// nats.
void SoftmaxCrossEntropy(float* loss, float* probabilities, const float* logits,
                         const int32_t* target, ClassesShape shape);

// dlogits[R, V] = loss_scale (p - onehot(target)) / R. dlogits may be probabilities.
void SoftmaxCrossEntropyGrad(float* dlogits, const float* probabilities, const int32_t* target,
                             float loss_scale, ClassesShape shape);

// *count = rows whose first largest logit is the target. A row with a NaN does not count.
void CorrectCount(float* count, const float* logits, const int32_t* target, ClassesShape shape);

}  // namespace muster::kernels
