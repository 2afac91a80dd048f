// Softmax of rows, and losses. CUDA twins of kernels/softmax.h, softmax_cross_entropy.h,
// sigmoid_cross_entropy.h and mean_squared_error.h.
//
// Device memory, row-major, T[R, V] of floating `type`, target i32[R], sums in f32. Asynchronous on
// `stream`. Returns the launch error, if any. A block takes a row, in one pass for maximum and sum:
// bandwidth-bound.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/out_of_range.h"
#include "kernels/cuda/type.h"

namespace muster::kernels::cuda {

struct SoftmaxShape {
  int64_t rows;     // R
  int64_t classes;  // V
  Type type;        // T
};

enum class SoftmaxKind { kPlain, kLog };

cudaError_t Softmax(SoftmaxKind kind, void* y, const void* x, const SoftmaxShape& shape,
                    cudaStream_t stream);

// dx may be dy.
cudaError_t SoftmaxGrad(SoftmaxKind kind, void* dx, const void* dy, const void* y,
                        const SoftmaxShape& shape, cudaStream_t stream);

struct CrossEntropyShape {
  SoftmaxShape logits;
  int64_t row = 0;  // elements from one row of logits (and dlogits) to the next, >= V; 0: V
  float label_smoothing = 0;
  bool has_ignore_index = false;
  int32_t ignore_index = 0;
  // The logits are those of the classes [first, first + V) of `whole`; 0: there are no others. The
  // target distribution is over the whole.
  int64_t first = 0;
  int64_t whole = 0;

  int64_t all_classes() const { return whole == 0 ? logits.classes : whole; }
};

// *factor = weight / the number of rows of the global batch that count; 0 if there are none.
// - Without ignore_index: rows of this run / its samples * the global batch.
// - With ignore_index: *counted if `counted` is not null and *counted is not negative, else the
//   rows of this run that count.
cudaError_t LossFactor(float* factor, float weight, const RunNumbers* numbers, int64_t rows,
                       const int32_t* target, const CrossEntropyShape* shape,
                       const int64_t* counted, cudaStream_t stream);

// *loss = *factor * the sum of the cross-entropies of the rows that count; lse is f32[R]. A target
// that is neither ignored nor a class is reported. `workspace`: f32[R].
cudaError_t SoftmaxCrossEntropy(float* loss, float* lse, const void* logits, const int32_t* target,
                                const float* factor, const CrossEntropyShape& shape,
                                float* workspace, OutOfRange* out_of_range, cudaStream_t stream);

// The loss of logits that are divided among ranks. Each rank computes the parts of its classes, and
// every rank merges those of all, in rank order. A bad target is reported by every rank.
//
//   parts   f32[R, 3], for each row: the largest logit m, the sum of exp(logit - m), and the sum of
//           the logits weighted by the target distribution
//           (to be merged: f32[ranks, R, 3])
inline constexpr int64_t kCrossEntropyParts = 3;
cudaError_t SoftmaxCrossEntropyParts(float* parts, const void* logits, const int32_t* target,
                                     const CrossEntropyShape& shape, OutOfRange* out_of_range,
                                     cudaStream_t stream);
// Like SoftmaxCrossEntropy().
cudaError_t MergeSoftmaxCrossEntropy(float* loss, float* lse, const float* parts, int64_t ranks,
                                     const int32_t* target, const float* factor,
                                     const CrossEntropyShape& shape, float* workspace,
                                     cudaStream_t stream);

// dlogits = loss scale * *factor * (softmax - target distribution), 0 in the gaps between rows.
// dlogits may be logits.
cudaError_t SoftmaxCrossEntropyGrad(void* dlogits, const void* logits, const int32_t* target,
                                    const float* lse, const float* factor,
                                    const RunNumbers* numbers, const CrossEntropyShape& shape,
                                    cudaStream_t stream);

// *count = the number of rows that are not ignored and have their first largest logit at the
// target. `workspace`: f32[R].
cudaError_t CorrectCount(float* count, const void* logits, const int32_t* target,
                         const CrossEntropyShape& shape, float* workspace, cudaStream_t stream);

// Losses per element, target f32[n]: *loss = *factor * the sum over n elements. `workspace`:
// f32[kLossParts].
enum class ElementLoss { kSigmoidCrossEntropy, kSquaredError };
inline constexpr int64_t kLossParts = 1024;
cudaError_t SumElementLoss(ElementLoss kind, float* loss, const void* x, Type type,
                           const float* target, const float* factor, int64_t n, float* workspace,
                           cudaStream_t stream);

// dx = loss scale * *factor * the derivative. dx may be x.
cudaError_t ElementLossGrad(ElementLoss kind, void* dx, const void* x, Type type,
                            const float* target, const float* factor, const RunNumbers* numbers,
                            int64_t n, cudaStream_t stream);

}  // namespace muster::kernels::cuda
