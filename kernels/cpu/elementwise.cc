#include "kernels/elementwise.h"

#include "kernels/cpu/vector_kernels.h"

namespace muster::kernels {

void Add(float* y, const float* a, const float* b, int64_t rows, int64_t n) {
  const VectorKernels& vectors = Vectors();
  for (int64_t r = 0; r < rows; ++r) vectors.add(y + r * n, a + r * n, b, n);
}

void SumRows(float* sum, const float* x, int64_t rows, int64_t n) {
  Vectors().sum_rows(sum, x, rows, n);
}

}  // namespace muster::kernels
