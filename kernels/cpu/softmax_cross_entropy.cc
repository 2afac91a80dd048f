#include "kernels/softmax_cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/reduction_loop.h"
#include "kernels/cpu/softmax_rows.h"

namespace muster::kernels {
namespace {

bool Counts(int32_t target, const CrossEntropyShape& shape) {
  return !shape.ignore_index.has_value() || target != *shape.ignore_index;
}

// Returns whether the row's target is among the classes of these logits.
bool HasTarget(int32_t target, const CrossEntropyShape& shape) {
  return target >= shape.first && target < shape.first + shape.classes;
}

}  // namespace

int64_t FirstBadTarget(const int32_t* target, const CrossEntropyShape& shape) {
  for (int64_t r = 0; r < shape.rows; ++r) {
    if (Counts(target[r], shape) && (target[r] < 0 || target[r] >= shape.all_classes())) return r;
  }
  return -1;
}

int64_t CountedTargets(const int32_t* target, const CrossEntropyShape& shape) {
  return std::count_if(target, target + shape.rows, [&](int32_t t) { return Counts(t, shape); });
}

void SoftmaxCrossEntropy(float* loss, float* lse, const float* logits, const int32_t* target,
                         float factor, const CrossEntropyShape& shape) {
  const int64_t n = shape.classes;
  const double smoothing = shape.label_smoothing;
  const double total = SumPieces(shape.rows, SoftmaxGrain(n), [&](int64_t begin, int64_t end) {
    double sum = 0;
    for (int64_t r = begin; r < end; ++r) {
      const float* row = logits + r * n;
      lse[r] = Softmaxes().log_sum_exp(row, n);
      if (!Counts(target[r], shape)) continue;
      // - (1 - s) log p[target] - s mean of log p
      sum += lse[r] - (1 - smoothing) * row[target[r]];
      if (smoothing != 0) sum -= smoothing * Elementwise().sum(row, n) / n;
    }
    return sum;
  });
  *loss = static_cast<float>(factor * total);
}

void SoftmaxCrossEntropyParts(float* parts, const float* logits, const int32_t* target,
                              const CrossEntropyShape& shape) {
  const int64_t n = shape.classes;
  const double smoothing = shape.label_smoothing;
  ParallelFor(shape.rows, SoftmaxGrain(n), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* row = logits + r * n;
      const ExpSum sum = Softmaxes().sum_exp(row, n);
      double wanted =
          HasTarget(target[r], shape) ? (1 - smoothing) * row[target[r] - shape.first] : 0.0;
      if (smoothing != 0) {
        wanted += smoothing * Elementwise().sum(row, n) / static_cast<double>(shape.all_classes());
      }
      float* part = parts + r * kCrossEntropyParts;
      part[0] = static_cast<float>(sum.top);
      part[1] = static_cast<float>(sum.sum);
      part[2] = static_cast<float>(wanted);
    }
  });
}

void MergeSoftmaxCrossEntropy(float* loss, float* lse, const float* parts, int64_t ranks,
                              const int32_t* target, float factor, const CrossEntropyShape& shape) {
  const int64_t stride = shape.rows * kCrossEntropyParts;
  const auto part = [&](int64_t rank, int64_t row) {
    return parts + rank * stride + row * kCrossEntropyParts;
  };
  const double total = SumPieces(shape.rows, SoftmaxGrain(ranks), [&](int64_t begin, int64_t end) {
    double losses = 0;
    for (int64_t r = begin; r < end; ++r) {
      float top = part(0, r)[0];
      for (int64_t k = 1; k < ranks; ++k) top = std::max(top, part(k, r)[0]);
      double sum = 0, wanted = 0;
      for (int64_t k = 0; k < ranks; ++k) {
        // A rank without a finite logit has a sum of 0, and exp(-inf - -inf) would be no number.
        if (part(k, r)[1] != 0) sum += part(k, r)[1] * std::exp(double{part(k, r)[0]} - top);
        wanted += part(k, r)[2];
      }
      lse[r] = static_cast<float>(std::log(sum) + top);
      if (Counts(target[r], shape)) losses += lse[r] - wanted;
    }
    return losses;
  });
  *loss = static_cast<float>(factor * total);
}

void SoftmaxCrossEntropyGrad(float* dlogits, const float* logits, const int32_t* target,
                             const float* lse, float factor, const CrossEntropyShape& shape) {
  const int64_t n = shape.classes;
  const float smooth = factor * shape.label_smoothing / shape.all_classes();
  const float at_target = factor * (1 - shape.label_smoothing);
  ParallelFor(shape.rows, SoftmaxGrain(n), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* row = dlogits + r * n;
      if (Counts(target[r], shape)) {
        Softmaxes().scaled_exp(row, logits + r * n, lse[r], factor, smooth, n);
        if (HasTarget(target[r], shape)) row[target[r] - shape.first] -= at_target;
      } else {
        std::fill_n(row, n, 0.0f);
      }
    }
  });
}

void CorrectCount(float* count, const float* logits, const int32_t* target,
                  const CrossEntropyShape& shape) {
  const int64_t n = shape.classes;
  const double total = SumPieces(shape.rows, SoftmaxGrain(n), [&](int64_t begin, int64_t end) {
    double correct = 0;
    for (int64_t r = begin; r < end; ++r) {
      if (!Counts(target[r], shape)) continue;
      const float* row = logits + r * n;
      const float wanted = row[target[r]];
      if (wanted != Elementwise().max(row, n)) continue;  // also if an element is NaN
      correct += std::find(row, row + target[r], wanted) == row + target[r];
    }
    return correct;
  });
  *count = static_cast<float>(total);
}

}  // namespace muster::kernels
