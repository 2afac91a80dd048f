#include "kernels/cuda/attention_mask.h"
#include "kernels/cuda/launch.cuh"

namespace muster::kernels::cuda {
namespace {

__global__ void MakeAllFinite(float* to, const float* mask, int64_t elements) {
  for (int64_t i = ThreadIndex(); i < elements; i += ThreadCount()) {
    to[i] = mask[i] < kUnseenScore ? kUnseenScore : mask[i];  // NaN stays
  }
}

__global__ void ClearAll(uint16_t* y, float* lse, AttentionShape shape, int64_t queries) {
  for (int64_t i = ThreadIndex(); i < queries; i += ThreadCount()) {
    if (!(lse[i] < kUnseenScore / 2)) continue;
    lse[i] = INFINITY;
    const int64_t t = i % shape.queries, bh = i / shape.queries;
    const int64_t b = bh / shape.heads, h = bh % shape.heads;
    uint16_t* row = y + ((b * shape.queries + t) * shape.heads + h) * shape.head_values;
    for (int64_t d = 0; d < shape.head_values; ++d) row[d] = 0;
  }
}

}  // namespace

cudaError_t MakeMaskFinite(float* to, const float* mask, int64_t elements, cudaStream_t stream) {
  return Launch(MakeAllFinite, Strided(elements), kThreads, 0, stream, to, mask, elements);
}

cudaError_t ClearUnseeingQueries(void* y, float* lse, const AttentionShape& shape,
                                 cudaStream_t stream) {
  const int64_t queries = shape.batch * shape.heads * shape.queries;
  return Launch(ClearAll, Strided(queries), kThreads, 0, stream, static_cast<uint16_t*>(y), lse,
                shape, queries);
}

}  // namespace muster::kernels::cuda
