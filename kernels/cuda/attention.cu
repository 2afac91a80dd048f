// Attention with one warp per row, for f32 and for heads that tensor cores do not support.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_rows.cuh"

namespace muster::kernels::cuda {
namespace {

constexpr int kRowsOfBlock = kThreads / kWarp;

template <typename T>
__device__ float Dot(const T* a, const T* b, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += ToFloat(a[i]) * ToFloat(b[i]);
  return sum;
}

// to[d] += the sum over the first `count` lanes j of (weight of lane j) * rows[j * row + d]. `to`
// is shared memory; a lane owns every 32nd element.
template <typename T>
__device__ void AddWeighted(float* to, float weight, const T* rows, int64_t row, int64_t n,
                            int count) {
  const int lane = threadIdx.x % kWarp;
  for (int64_t start = 0; start < n; start += kWarp) {
    const int64_t d = start + lane;
    float sum = 0;
    for (int j = 0; j < count; ++j) {
      const float of_j = __shfl_sync(kEveryLane, weight, j);
      if (d < n) sum += of_j * ToFloat(rows[j * row + d]);
    }
    if (d < n) to[d] += sum;
  }
}

template <typename T>
__device__ float MaskedScore(const Head<T>& head, const AttentionInputs& inputs,
                             const AttentionShape& shape, int64_t t, int64_t key) {
  const float score =
      shape.scale * Dot(head.q + t * shape.q_row, head.k + key * shape.k_row, shape.head_channels);
  return head.mask == nullptr ? score : score + head.mask[t * inputs.mask.query_stride + key];
}

template <typename T>
__global__ void ForwardRows(T* y, float* lse, AttentionInputs inputs, AttentionShape shape) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  float* sum = static_cast<float*>(LaunchedSharedMemory()) + warp * shape.head_values;
  const int64_t rows = shape.batch * shape.heads * shape.queries;
  for (int64_t row = int64_t{blockIdx.x} * kRowsOfBlock + warp; row < rows;
       row += int64_t{gridDim.x} * kRowsOfBlock) {
    const int64_t t = row % shape.queries;
    const Head<T> head(inputs, shape, row / shape.queries);
    const int64_t visible = VisibleKeys(shape, t);
    float maximum = -INFINITY, total = 0;
    for (int64_t d = lane; d < shape.head_values; d += kWarp) sum[d] = 0;
    for (int64_t start = 0; start < visible; start += kWarp) {
      const int64_t key = start + lane;
      const float score = key < visible ? MaskedScore(head, inputs, shape, t, key) : -INFINITY;
      const float larger = fmaxf(maximum, WarpMax(score));
      const float reference = larger == -INFINITY ? 0 : larger;
      const float correction = expf(maximum - reference);
      const float p = key < visible ? expf(score - reference) : 0;
      total = total * correction + WarpSum(p);
      maximum = larger;
      for (int64_t d = lane; d < shape.head_values; d += kWarp) sum[d] *= correction;
      const int count = static_cast<int>(min(visible - start, int64_t{kWarp}));
      AddWeighted(sum, p, head.v + start * shape.v_row, shape.v_row, shape.head_values, count);
    }
    T* to = y + head.output + t * OutputRow(shape);
    for (int64_t d = lane; d < shape.head_values; d += kWarp) {
      to[d] = FromFloat<T>(total == 0 ? 0 : sum[d] / total);
    }
    if (lane == 0) lse[head.statistics + t] = total == 0 ? -INFINITY : maximum + logf(total);
  }
}

// exp(score - lse); 0 for a query that sees no key.
__device__ float Probability(float score, float lse) {
  return lse == -INFINITY ? 0 : expf(score - lse);
}

template <typename T>
__global__ void GradQueryRows(T* dq, const T* dy, const float* lse, const float* delta,
                              AttentionInputs inputs, AttentionShape shape) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  float* sum = static_cast<float*>(LaunchedSharedMemory()) + warp * shape.head_channels;
  const int64_t rows = shape.batch * shape.heads * shape.queries;
  for (int64_t row = int64_t{blockIdx.x} * kRowsOfBlock + warp; row < rows;
       row += int64_t{gridDim.x} * kRowsOfBlock) {
    const int64_t t = row % shape.queries;
    const Head<T> head(inputs, shape, row / shape.queries);
    const T* dy_row = dy + head.output + t * OutputRow(shape);
    const int64_t visible = VisibleKeys(shape, t);
    for (int64_t d = lane; d < shape.head_channels; d += kWarp) sum[d] = 0;
    for (int64_t start = 0; start < visible; start += kWarp) {
      const int64_t key = start + lane;
      float ds = 0;
      if (key < visible) {
        const float p = Probability(MaskedScore(head, inputs, shape, t, key), lse[row]);
        ds = p * (Dot(dy_row, head.v + key * shape.v_row, shape.head_values) - delta[row]);
      }
      const int count = static_cast<int>(min(visible - start, int64_t{kWarp}));
      AddWeighted(sum, ds, head.k + start * shape.k_row, shape.k_row, shape.head_channels, count);
    }
    T* to = dq + head.QueryOffset(shape) + t * shape.q_row;
    for (int64_t d = lane; d < shape.head_channels; d += kWarp) {
      to[d] = FromFloat<T>(shape.scale * sum[d]);
    }
  }
}

template <typename T>
__global__ void GradKeyRows(T* dk, T* dv, const T* dy, const float* lse, const float* delta,
                            AttentionInputs inputs, AttentionShape shape) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  float* sum_k = static_cast<float*>(LaunchedSharedMemory()) +
                 warp * (shape.head_channels + shape.head_values);
  float* sum_v = sum_k + shape.head_channels;
  const int64_t rows = shape.batch * shape.heads * shape.keys;
  for (int64_t row = int64_t{blockIdx.x} * kRowsOfBlock + warp; row < rows;
       row += int64_t{gridDim.x} * kRowsOfBlock) {
    const int64_t key = row % shape.keys;
    const Head<T> head(inputs, shape, row / shape.keys);
    const int64_t output_row = OutputRow(shape);
    for (int64_t d = lane; d < shape.head_channels; d += kWarp) sum_k[d] = 0;
    for (int64_t d = lane; d < shape.head_values; d += kWarp) sum_v[d] = 0;
    for (int64_t start = FirstQuery(shape, key); start < shape.queries; start += kWarp) {
      const int64_t t = start + lane;
      float p = 0, ds = 0;
      if (t < shape.queries) {
        p = Probability(MaskedScore(head, inputs, shape, t, key), lse[head.statistics + t]);
        const float dp =
            Dot(dy + head.output + t * output_row, head.v + key * shape.v_row, shape.head_values);
        ds = p * (dp - delta[head.statistics + t]);
      }
      const int count = static_cast<int>(min(shape.queries - start, int64_t{kWarp}));
      AddWeighted(sum_v, p, dy + head.output + start * output_row, output_row, shape.head_values,
                  count);
      AddWeighted(sum_k, ds, head.q + start * shape.q_row, shape.q_row, shape.head_channels, count);
    }
    T* to_k = dk + head.KeyOffset(shape) + key * shape.k_row;
    T* to_v = dv + head.ValueOffset(shape) + key * shape.v_row;
    for (int64_t d = lane; d < shape.head_channels; d += kWarp) {
      to_k[d] = FromFloat<T>(shape.scale * sum_k[d]);
    }
    for (int64_t d = lane; d < shape.head_values; d += kWarp) to_v[d] = FromFloat<T>(sum_v[d]);
  }
}

template <typename T>
__global__ void DeltaRows(float* delta, const T* dy, const T* y, AttentionShape shape) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t rows = shape.batch * shape.queries * shape.heads;
  for (int64_t row = int64_t{blockIdx.x} * kRowsOfBlock + warp; row < rows;
       row += int64_t{gridDim.x} * kRowsOfBlock) {
    const T* own_dy = dy + row * shape.head_values;
    const T* own_y = y + row * shape.head_values;
    float sum = 0;
    for (int64_t d = lane; d < shape.head_values; d += kWarp) {
      sum += ToFloat(own_dy[d]) * ToFloat(own_y[d]);
    }
    sum = WarpSum(sum);
    const int64_t head = row % shape.heads, t = row / shape.heads % shape.queries;
    const int64_t batch = row / shape.heads / shape.queries;
    if (lane == 0) delta[(batch * shape.heads + head) * shape.queries + t] = sum;
  }
}

dim3 Blocks(int64_t rows) {
  return dim3(static_cast<unsigned>(std::min(CeilDiv(rows, kRowsOfBlock), kBlocksMax)));
}

int64_t SharedBytes(int64_t floats_of_row) {
  return kRowsOfBlock * floats_of_row * static_cast<int64_t>(sizeof(float));
}

}  // namespace

cudaError_t AttentionDelta(float* delta, const void* dy, const void* y, const AttentionShape& shape,
                           cudaStream_t stream) {
  return ForFloating(shape.type, [&](auto one) {
    using T = decltype(one);
    return Launch(DeltaRows<T>, Blocks(shape.batch * shape.heads * shape.queries), kThreads, 0,
                  stream, delta, static_cast<const T*>(dy), static_cast<const T*>(y), shape);
  });
}

cudaError_t Attention(void* y, float* lse, const AttentionInputs& inputs,
                      const AttentionShape& shape, cudaStream_t stream) {
  if (FitsTensorCores(shape)) return AttentionTiles(y, lse, inputs, shape, stream);
  if (std::max(shape.head_channels, shape.head_values) > kHeadMax) return cudaErrorInvalidValue;
  return ForFloating(shape.type, [&](auto one) {
    using T = decltype(one);
    return Launch(ForwardRows<T>, Blocks(shape.batch * shape.heads * shape.queries), kThreads,
                  SharedBytes(shape.head_values), stream, static_cast<T*>(y), lse, inputs, shape);
  });
}

cudaError_t AttentionGrad(const AttentionGradients& gradients, const void* dy, const void* y,
                          const float* lse, const AttentionInputs& inputs,
                          const AttentionShape& shape, float* workspace, cudaStream_t stream) {
  if (std::max(shape.head_channels, shape.head_values) > kHeadMax) return cudaErrorInvalidValue;
  MUSTER_RETURN_IF_CUDA_ERROR(AttentionDelta(workspace, dy, y, shape, stream));
  if (FitsTensorCores(shape)) {
    return AttentionGradTiles(gradients, dy, lse, workspace, inputs, shape, stream);
  }
  return ForFloating(shape.type, [&](auto one) {
    using T = decltype(one);
    const auto* of_dy = static_cast<const T*>(dy);
    MUSTER_RETURN_IF_CUDA_ERROR(
        Launch(GradQueryRows<T>, Blocks(shape.batch * shape.heads * shape.queries), kThreads,
               SharedBytes(shape.head_channels), stream, static_cast<T*>(gradients.dq), of_dy, lse,
               static_cast<const float*>(workspace), inputs, shape));
    return Launch(GradKeyRows<T>, Blocks(shape.batch * shape.heads * shape.keys), kThreads,
                  SharedBytes(shape.head_channels + shape.head_values), stream,
                  static_cast<T*>(gradients.dk), static_cast<T*>(gradients.dv), of_dy, lse,
                  static_cast<const float*>(workspace), inputs, shape);
  });
}

}  // namespace muster::kernels::cuda
