#include "kernels/softmax_cross_entropy.h"

#include <cmath>

#include "kernels/cpu/vector_kernels.h"

namespace muster::kernels {

void SoftmaxCrossEntropy(float* loss, float* probabilities, const float* logits,
                         const int32_t* target, ClassesShape shape) {
  const VectorKernels& vectors = Vectors();
  double total = 0;
  for (int64_t r = 0; r < shape.rows; ++r) {
    const float* row = logits + r * shape.classes;
    const SoftmaxSums sums =
        vectors.softmax(probabilities + r * shape.classes, row, 1.0f, shape.classes);
    total += std::log(double{sums.sum}) + sums.max - row[target[r]];
  }
  *loss = static_cast<float>(total / shape.rows);
}

void SoftmaxCrossEntropyGrad(float* dlogits, const float* probabilities, const int32_t* target,
                             float loss_scale, ClassesShape shape) {
  const VectorKernels& vectors = Vectors();
  const float scale = loss_scale / shape.rows;
  for (int64_t r = 0; r < shape.rows; ++r) {
    const float* p = probabilities + r * shape.classes;
    const float at_target = (p[target[r]] - 1.0f) * scale;
    float* row = dlogits + r * shape.classes;
    vectors.scale(row, p, scale, shape.classes);
    row[target[r]] = at_target;
  }
}

void CorrectCount(float* count, const float* logits, const int32_t* target, ClassesShape shape) {
  int64_t correct = 0;
  for (int64_t r = 0; r < shape.rows; ++r) {
    const float* row = logits + r * shape.classes;
    const float wanted = row[target[r]];
    bool first_largest = wanted == wanted;
    for (int64_t c = 0; first_largest && c < target[r]; ++c) first_largest = row[c] < wanted;
    for (int64_t c = target[r] + 1; first_largest && c < shape.classes; ++c) {
      first_largest = row[c] <= wanted;
    }
    correct += first_largest;
  }
  *count = static_cast<float>(correct);
}

}  // namespace muster::kernels
