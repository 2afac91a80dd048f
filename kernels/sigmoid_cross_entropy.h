// Binary cross-entropy of sigmoid(logits) over n elements, f32, in parallel, bandwidth-bound.
#pragma once

#include <cstdint>

namespace muster::kernels {

// *loss = factor times the sum of max(x, 0) - x target + log(1 + exp(-|x|)), x the logit: finite
// for every finite x. Blocks of floats, added in double, in an order that depends on n alone.
void SigmoidCrossEntropy(float* loss, const float* logits, const float* target, float factor,
                         int64_t n);

// dlogits = factor (sigmoid(logits) - target). dlogits may be one of the inputs.
void SigmoidCrossEntropyGrad(float* dlogits, const float* logits, const float* target, float factor,
                             int64_t n);

}  // namespace muster::kernels
