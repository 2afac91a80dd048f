// Binary cross-entropy of sigmoid(logits) over n elements, f32, in parallel, bandwidth-bound.
#pragma once

#include <cstdint>

namespace muster::kernels {

// *loss = factor times the sum of max(x, 0) - x target + log(1 + exp(-|x|)) over the logits x,
// which is finite for every finite x. Blocks of floats are added in double, in an order that
// depends only on n and the instruction set.
void SigmoidCrossEntropy(float* loss, const float* logits, const float* target, float factor,
                         int64_t n);

// dlogits = factor (sigmoid(logits) - target). dlogits may be one of the inputs.
void SigmoidCrossEntropyGrad(float* dlogits, const float* logits, const float* target, float factor,
                             int64_t n);

}  // namespace muster::kernels
