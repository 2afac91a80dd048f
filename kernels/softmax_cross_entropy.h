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
  // The logits are those of the classes [first, first + V) of `whole`; 0: there are no others. The
  // wanted distribution is over the whole.
  int64_t first = 0;
  int64_t whole = 0;

  int64_t all_classes() const { return whole == 0 ? classes : whole; }
};

// Returns the position of the first target that is neither a class nor ignored, or -1 if there is
// none. The functions below require that there is none.
int64_t FirstBadTarget(const int32_t* target, const CrossEntropyShape& shape);

// Returns the number of rows that count.
int64_t CountedTargets(const int32_t* target, const CrossEntropyShape& shape);

// *loss = factor times the sum of the cross-entropy in nats over the rows that count. It is the
// mean if factor is 1 / CountedTargets(), and 0 if no row counts. Rows are added in double, in an
// order that depends only on the shape; the sum of a row also depends on the instruction set.
//
//   lse   f32[R], log of the sum of exp(logits), for every row; the backward pass reads it
//
// Reads R V floats from memory once: bandwidth-bound.
void SoftmaxCrossEntropy(float* loss, float* lse, const float* logits, const int32_t* target,
                         float factor, const CrossEntropyShape& shape);

// The loss of logits that are divided among ranks. Each rank computes the parts of its classes, and
// every rank merges those of all, in rank order.
//
//   parts   f32[R, 3], for each row: the largest logit m, the sum of exp(logit - m), and the sum of
//           the logits weighted by the wanted distribution
//           (to be merged: f32[ranks, R, 3])
inline constexpr int64_t kCrossEntropyParts = 3;
void SoftmaxCrossEntropyParts(float* parts, const float* logits, const int32_t* target,
                              const CrossEntropyShape& shape);
// As SoftmaxCrossEntropy.
void MergeSoftmaxCrossEntropy(float* loss, float* lse, const float* parts, int64_t ranks,
                              const int32_t* target, float factor, const CrossEntropyShape& shape);

// dlogits f32[R, V] = factor (exp(logits - lse) - wanted distribution), or 0 for rows that do not
// count. dlogits may be logits. Reads and writes R V floats.
void SoftmaxCrossEntropyGrad(float* dlogits, const float* logits, const int32_t* target,
                             const float* lse, float factor, const CrossEntropyShape& shape);

// *count = number of rows that count and whose first largest logit is the target.
void CorrectCount(float* count, const float* logits, const int32_t* target,
                  const CrossEntropyShape& shape);

}  // namespace muster::kernels
