#include "kernels/embedding.h"

#include <algorithm>

#include "kernels/gather.h"

namespace muster::kernels {
namespace {

GatherShape SlicesOf(const EmbeddingShape& shape) {
  return {.outer = 1,
          .size = shape.vocabulary,
          .inner = shape.channels,
          .indices = shape.rows,
          .first = shape.first};
}

}  // namespace

int64_t FirstOutOfRange(const int32_t* ids, int64_t n, int64_t begin, int64_t end) {
  const int32_t* bad =
      std::find_if(ids, ids + n, [=](int32_t id) { return id < begin || id >= end; });
  return bad == ids + n ? -1 : bad - ids;
}

void Embedding(float* y, const int32_t* ids, const float* table, EmbeddingShape shape) {
  Gather(y, table, ids, SlicesOf(shape), sizeof(float));
}

void EmbeddingGrad(float* dtable, const float* dy, const int32_t* ids, EmbeddingShape shape) {
  GatherGrad(dtable, dy, ids, SlicesOf(shape));
}

}  // namespace muster::kernels
