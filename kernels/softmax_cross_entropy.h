// Softmax cross-entropy of R rows of V logits against integer targets, and the count of right
// answers. Row-major f32, in parallel.
#pragma once

#include <cstdint>
#include <optional>

namespace muster::kernels {

struct CrossEntropyShape {
  int64_t rows;               // R
  int64_t classes;            // V
  float label_smoothing = 0;  // s: the wanted distribution is (1 - s) onehot(target) + s / V
  std::optional<int32_t> ignore_index;  // rows with this target do not count
};

// The position of the first target that neither lies in [0, V) nor is ignored, or -1. The functions
// below require -1.
int64_t FirstBadTarget(const int32_t* target, const CrossEntropyShape& shape);

// The rows that count.
int64_t CountedTargets(const int32_t* target, const CrossEntropyShape& shape);

// *loss = factor times the sum over the counted rows of the cross-entropy in nats (the mean, with
// factor 1 / counted rows); 0 when none counts. Added in double, in an order that depends on the
// shape alone.
//
//   lse   f32[R], log of the sum of exp(logits): written for the backward pass, of every row
//
// Reads R V floats from memory once: bandwidth-bound.
void SoftmaxCrossEntropy(float* loss, float* lse, const float* logits, const int32_t* target,
                         float factor, const CrossEntropyShape& shape);

// dlogits f32[R, V] = factor (exp(logits - lse) - wanted distribution); 0 for rows that do not
// count. dlogits may be logits. Reads and writes R V floats.
void SoftmaxCrossEntropyGrad(float* dlogits, const float* logits, const int32_t* target,
                             const float* lse, float factor, const CrossEntropyShape& shape);

// *count = counted rows whose first largest logit is the target.
void CorrectCount(float* count, const float* logits, const int32_t* target,
                  const CrossEntropyShape& shape);

}  // namespace muster::kernels
