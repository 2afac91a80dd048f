#include "kernels/embedding.h"

#include <algorithm>

#include "kernels/cpu/vector_kernels.h"

namespace muster::kernels {

int64_t FirstOutOfRange(const int32_t* ids, int64_t n, int64_t limit) {
  const int32_t* bad =
      std::find_if(ids, ids + n, [limit](int32_t id) { return id < 0 || id >= limit; });
  return bad == ids + n ? -1 : bad - ids;
}

void Embedding(float* y, const int32_t* ids, const float* table, EmbeddingShape shape) {
  for (int64_t r = 0; r < shape.rows; ++r) {
    std::copy_n(table + ids[r] * shape.channels, shape.channels, y + r * shape.channels);
  }
}

void EmbeddingGrad(float* dtable, const float* dy, const int32_t* ids, EmbeddingShape shape) {
  const VectorKernels& vectors = Vectors();
  std::fill_n(dtable, shape.vocabulary * shape.channels, 0.0f);
  for (int64_t r = 0; r < shape.rows; ++r) {
    float* row = dtable + ids[r] * shape.channels;
    vectors.add(row, row, dy + r * shape.channels, shape.channels);
  }
}

}  // namespace muster::kernels
