// Attention on tensor cores: 64 queries by 64 keys, four warps of 16 rows each.
#include "kernels/cuda/attention_rows.cuh"

namespace muster::kernels::cuda {
namespace {

constexpr int kTile = 64;
constexpr int kWarps = 4;
constexpr int kRows = kTile / kWarps;  // of a warp: those of one product
constexpr int kHalf = 32;              // columns of scores that the derivatives hold at a time

// Rows of D elements in shared memory, 16 bytes apart from a multiple of 128: the eight rows of a
// matrix lie in different banks.
template <typename T, int D>
struct Tile {
  static constexpr int kRow = D + 8;
  T elements[kTile * kRow];

  // Rows [first, last) of a matrix of `width` <= D columns, zeros beyond. By the whole block.
  __device__ void Load(const T* rows, int64_t row, int64_t first, int64_t last, int64_t width) {
    constexpr int kParts = D / 8;
    for (int i = threadIdx.x; i < kTile * kParts; i += kWarps * kWarp) {
      const int r = i / kParts, c = i % kParts * 8;
      uint4 part = make_uint4(0, 0, 0, 0);
      if (first + r < last && c < width) {
        part = *reinterpret_cast<const uint4*>(rows + (first + r) * row + c);
      }
      *reinterpret_cast<uint4*>(&elements[r * kRow + c]) = part;
    }
  }

  // The left operand: rows r .. r + 15, columns c .. c + 15.
  __device__ void Left(uint32_t (&to)[4], int r, int c) const {
    const int lane = threadIdx.x % kWarp;
    LoadMatrices(to, &elements[(r + lane % 16) * kRow + c + lane / 16 * 8]);
  }
  // The right operand transposed: its columns n .. n + 15 are rows of the tile, its rows k .. k +
  // 15 columns. Registers 0, 1 for the first 8 columns, 2, 3 for the others.
  __device__ void RightTransposed(uint32_t (&to)[4], int n, int k) const {
    const int lane = threadIdx.x % kWarp;
    LoadMatrices(to, &elements[(n + lane % 8 + lane / 16 * 8) * kRow + k + lane / 8 % 2 * 8]);
  }
  // The right operand as it lies: rows k .. k + 15, columns n .. n + 15.
  __device__ void Right(uint32_t (&to)[4], int k, int n) const {
    const int lane = threadIdx.x % kWarp;
    LoadMatricesTransposed(to,
                           &elements[(k + lane % 8 + lane / 8 % 2 * 8) * kRow + n + lane / 16 * 8]);
  }
};

// scores[16, 8 N] = rows r .. r + 15 of `left` times rows n .. n + 8 N - 1 of `right`, transposed.
template <typename T, int D, int N>
__device__ void MultiplyTransposed(float (&scores)[N][4], const Tile<T, D>& left, int r,
                                   const Tile<T, D>& right, int n) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
#pragma unroll
    for (float& score : scores[i]) score = 0;
  }
#pragma unroll
  for (int k = 0; k < D; k += 16) {
    uint32_t a[4];
    left.Left(a, r, k);
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      uint32_t b[4];
      right.RightTransposed(b, n + i * 8, k);
      MultiplyAdd<T>(scores[i], a, b[0], b[1]);
      MultiplyAdd<T>(scores[i + 1], a, b[2], b[3]);
    }
  }
}

// sum[16, D] += weights[16, 8 N] times rows k .. k + 8 N - 1 of `right`.
template <typename T, int D, int N>
__device__ void AddProduct(float (&sum)[D / 8][4], const float (&weights)[N][4],
                           const Tile<T, D>& right, int k) {
#pragma unroll
  for (int i = 0; i < N; i += 2) {
    const uint32_t a[4] = {Pack<T>(weights[i][0], weights[i][1]),
                           Pack<T>(weights[i][2], weights[i][3]),
                           Pack<T>(weights[i + 1][0], weights[i + 1][1]),
                           Pack<T>(weights[i + 1][2], weights[i + 1][3])};
#pragma unroll
    for (int d = 0; d < D / 8; d += 2) {
      uint32_t b[4];
      right.Right(b, k + i * 8, d * 8);
      MultiplyAdd<T>(sum[d], a, b[0], b[1]);
      MultiplyAdd<T>(sum[d + 1], a, b[2], b[3]);
    }
  }
}

// Where element e of a lane's products of 8 columns lies.
__device__ int RowOf(int e) { return threadIdx.x % kWarp / 4 + e / 2 * 8; }
__device__ int ColumnOf(int e) { return threadIdx.x % 4 * 2 + e % 2; }

// Of the four lanes that share rows.
__device__ float QuadSum(float x) {
  x += __shfl_xor_sync(kEveryLane, x, 1);
  return x + __shfl_xor_sync(kEveryLane, x, 2);
}
__device__ float QuadMax(float x) {
  x = fmaxf(x, __shfl_xor_sync(kEveryLane, x, 1));
  return fmaxf(x, __shfl_xor_sync(kEveryLane, x, 2));
}

// Rows of a product, rounded, to memory: rows [first, last) of `width` columns.
template <typename T, int D>
__device__ void StoreRows(T* to, int64_t row, int64_t first, int64_t last, int64_t width,
                          const float (&sum)[D / 8][4], const float (&factor)[2]) {
#pragma unroll
  for (int d = 0; d < D / 8; ++d) {
#pragma unroll
    for (int e = 0; e < 4; e += 2) {
      const int64_t r = first + RowOf(e);
      const int c = d * 8 + ColumnOf(e);
      if (r >= last || c >= width) continue;
      *reinterpret_cast<uint32_t*>(to + r * row + c) =
          Pack<T>(sum[d][e] * factor[e / 2], sum[d][e + 1] * factor[e / 2]);
    }
  }
}

// In units of log 2: scale score + mask; -inf for a key that the query does not see.
template <typename T>
struct Scores {
  Head<T> head;
  AttentionInputs inputs;
  AttentionShape shape;

  __device__ float operator()(float product, int64_t t, int64_t key) const {
    if (t >= shape.queries || key >= VisibleKeys(shape, t)) return -INFINITY;
    const float score = product * (shape.scale * kLog2E);
    return head.mask == nullptr ? score
                                : score + kLog2E * head.mask[t * inputs.mask.query_stride + key];
  }
};

template <typename T, int D>
struct ForwardMemory {
  Tile<T, D> q, k, v;
};

template <typename T, int D>
__global__ void __launch_bounds__(kWarps* kWarp)
    Forward(T* y, float* lse, AttentionInputs inputs, AttentionShape shape, int64_t tiles) {
  auto& memory = *static_cast<ForwardMemory<T, D>*>(LaunchedSharedMemory());
  // Causal: the last tiles see most keys and come first.
  const int64_t first = (tiles - 1 - blockIdx.x % tiles) * kTile;
  const Scores<T> score_of = {Head<T>(inputs, shape, blockIdx.x / tiles), inputs, shape};
  const Head<T>& head = score_of.head;
  const int row = threadIdx.x / kWarp * kRows;

  float sum[D / 8][4] = {}, maximum[2] = {-INFINITY, -INFINITY}, total[2] = {};
  memory.q.Load(head.q, shape.q_row, first, shape.queries, shape.head_channels);
  const int64_t visible = VisibleKeys(shape, min(first + kTile, shape.queries) - 1);
  for (int64_t start = 0; start < visible; start += kTile) {
    __syncthreads();
    memory.k.Load(head.k, shape.k_row, start, shape.keys, shape.head_channels);
    memory.v.Load(head.v, shape.v_row, start, shape.keys, shape.head_values);
    __syncthreads();
    float scores[kTile / 8][4];
    MultiplyTransposed(scores, memory.q, row, memory.k, 0);

    float larger[2] = {maximum[0], maximum[1]};
#pragma unroll
    for (int i = 0; i < kTile / 8; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        scores[i][e] = score_of(scores[i][e], first + row + RowOf(e), start + i * 8 + ColumnOf(e));
        larger[e / 2] = fmaxf(larger[e / 2], scores[i][e]);
      }
    }
    float correction[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      larger[r] = QuadMax(larger[r]);
      // A row that has seen no key yet keeps -inf, and exp2(-inf - 0) = 0.
      const float reference = larger[r] == -INFINITY ? 0 : larger[r];
      correction[r] = exp2f(maximum[r] - reference);
      maximum[r] = larger[r];
      larger[r] = reference;
      total[r] *= correction[r];
    }
#pragma unroll
    for (int d = 0; d < D / 8; ++d) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[d][e] *= correction[e / 2];
    }
#pragma unroll
    for (int i = 0; i < kTile / 8; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        scores[i][e] = exp2f(scores[i][e] - larger[e / 2]);
        total[e / 2] += scores[i][e];
      }
    }
    AddProduct(sum, scores, memory.v, 0);
  }

  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    total[r] = QuadSum(total[r]);
    factor[r] = total[r] == 0 ? 0 : 1 / total[r];
    const int64_t t = first + row + RowOf(2 * r);
    if (threadIdx.x % 4 == 0 && t < shape.queries) {
      lse[head.statistics + t] = total[r] == 0 ? -INFINITY : kLn2 * (maximum[r] + log2f(total[r]));
    }
  }
  StoreRows<T, D>(y + head.output, OutputRow(shape), first + row, shape.queries, shape.head_values,
                  sum, factor);
}

template <typename T, int D>
struct GradMemory {
  Tile<T, D> q, k, v, dy;
  float lse[kTile];  // in units of log 2; +inf for a query that passes nothing
  float delta[kTile];
};

__device__ float UsableLse(float lse) { return lse == -INFINITY ? INFINITY : lse * kLog2E; }

template <typename T, int D>
__global__ void __launch_bounds__(kWarps* kWarp)
    GradQuery(T* dq, const T* dy, const float* lse, const float* delta, AttentionInputs inputs,
              AttentionShape shape, int64_t tiles) {
  auto& memory = *static_cast<GradMemory<T, D>*>(LaunchedSharedMemory());
  const int64_t first = (tiles - 1 - blockIdx.x % tiles) * kTile;
  const Scores<T> score_of = {Head<T>(inputs, shape, blockIdx.x / tiles), inputs, shape};
  const Head<T>& head = score_of.head;
  const int row = threadIdx.x / kWarp * kRows;

  memory.q.Load(head.q, shape.q_row, first, shape.queries, shape.head_channels);
  memory.dy.Load(dy + head.output, OutputRow(shape), first, shape.queries, shape.head_values);
  float of_lse[2], of_delta[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int64_t t = first + row + RowOf(2 * r);
    of_lse[r] = t < shape.queries ? UsableLse(lse[head.statistics + t]) : INFINITY;
    of_delta[r] = t < shape.queries ? delta[head.statistics + t] : 0;
  }

  float sum[D / 8][4] = {};
  const int64_t visible = VisibleKeys(shape, min(first + kTile, shape.queries) - 1);
  for (int64_t start = 0; start < visible; start += kTile) {
    __syncthreads();
    memory.k.Load(head.k, shape.k_row, start, shape.keys, shape.head_channels);
    memory.v.Load(head.v, shape.v_row, start, shape.keys, shape.head_values);
    __syncthreads();
    for (int half = 0; half < kTile; half += kHalf) {
      float scores[kHalf / 8][4], slopes[kHalf / 8][4];
      MultiplyTransposed(scores, memory.q, row, memory.k, half);
      MultiplyTransposed(slopes, memory.dy, row, memory.v, half);
#pragma unroll
      for (int i = 0; i < kHalf / 8; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float score =
              score_of(scores[i][e], first + row + RowOf(e), start + half + i * 8 + ColumnOf(e));
          slopes[i][e] = exp2f(score - of_lse[e / 2]) * (slopes[i][e] - of_delta[e / 2]);
        }
      }
      AddProduct(sum, slopes, memory.k, half);
    }
  }
  const float factor[2] = {shape.scale, shape.scale};
  StoreRows<T, D>(dq + head.QueryOffset(shape), shape.q_row, first + row, shape.queries,
                  shape.head_channels, sum, factor);
}

// Keys are the rows of the products, queries their columns.
template <typename T, int D>
__global__ void __launch_bounds__(kWarps* kWarp)
    GradKey(T* dk, T* dv, const T* dy, const float* lse, const float* delta, AttentionInputs inputs,
            AttentionShape shape, int64_t tiles) {
  auto& memory = *static_cast<GradMemory<T, D>*>(LaunchedSharedMemory());
  const int64_t first = blockIdx.x % tiles * kTile;
  const Scores<T> score_of = {Head<T>(inputs, shape, blockIdx.x / tiles), inputs, shape};
  const Head<T>& head = score_of.head;
  const int row = threadIdx.x / kWarp * kRows;

  memory.k.Load(head.k, shape.k_row, first, shape.keys, shape.head_channels);
  memory.v.Load(head.v, shape.v_row, first, shape.keys, shape.head_values);
  float sum_k[D / 8][4] = {}, sum_v[D / 8][4] = {};
  for (int64_t start = FirstQuery(shape, first) / kTile * kTile; start < shape.queries;
       start += kTile) {
    __syncthreads();
    memory.q.Load(head.q, shape.q_row, start, shape.queries, shape.head_channels);
    memory.dy.Load(dy + head.output, OutputRow(shape), start, shape.queries, shape.head_values);
    if (threadIdx.x < kTile) {
      const int64_t t = start + threadIdx.x;
      const bool is_query = t < shape.queries;
      memory.lse[threadIdx.x] = is_query ? UsableLse(lse[head.statistics + t]) : INFINITY;
      memory.delta[threadIdx.x] = is_query ? delta[head.statistics + t] : 0;
    }
    __syncthreads();
    for (int half = 0; half < kTile; half += kHalf) {
      float scores[kHalf / 8][4], slopes[kHalf / 8][4];
      MultiplyTransposed(scores, memory.k, row, memory.q, half);
      MultiplyTransposed(slopes, memory.v, row, memory.dy, half);
#pragma unroll
      for (int i = 0; i < kHalf / 8; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int column = half + i * 8 + ColumnOf(e);
          const float score = score_of(scores[i][e], start + column, first + row + RowOf(e));
          scores[i][e] = exp2f(score - memory.lse[column]);
          slopes[i][e] = scores[i][e] * (slopes[i][e] - memory.delta[column]);
        }
      }
      AddProduct(sum_v, scores, memory.dy, half);
      AddProduct(sum_k, slopes, memory.q, half);
    }
  }
  const float of_k[2] = {shape.scale, shape.scale}, of_v[2] = {1, 1};
  StoreRows<T, D>(dk + head.KeyOffset(shape), shape.k_row, first + row, shape.keys,
                  shape.head_channels, sum_k, of_k);
  StoreRows<T, D>(dv + head.ValueOffset(shape), shape.v_row, first + row, shape.keys,
                  shape.head_values, sum_v, of_v);
}

// A launch may take more shared memory than 48 KiB once the kernel has said so.
template <typename Kernel, typename... Arguments>
cudaError_t LaunchTiles(Kernel kernel, int64_t blocks, int64_t shared_bytes, cudaStream_t stream,
                        Arguments... arguments) {
  MUSTER_RETURN_IF_CUDA_ERROR(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   static_cast<int>(shared_bytes)));
  return Launch(kernel, dim3(static_cast<unsigned>(blocks)), kWarps * kWarp, shared_bytes, stream,
                arguments...);
}

template <int D>
struct HeadWidth {
  static constexpr int kValue = D;
};

// f(an element, a HeadWidth).
template <typename F>
cudaError_t ForTiles(const AttentionShape& shape, F f) {
  const bool is_narrow = std::max(shape.head_channels, shape.head_values) <= 64;
  if (shape.type == Type::kBf16) {
    return is_narrow ? f(__nv_bfloat16{}, HeadWidth<64>()) : f(__nv_bfloat16{}, HeadWidth<128>());
  }
  return is_narrow ? f(__half{}, HeadWidth<64>()) : f(__half{}, HeadWidth<128>());
}

}  // namespace

bool FitsTensorCores(const AttentionShape& shape) {
  if (shape.type != Type::kBf16 && shape.type != Type::kF16) return false;
  for (int64_t n :
       {shape.head_channels, shape.head_values, shape.q_row, shape.k_row, shape.v_row}) {
    if (n % 8 != 0) return false;
  }
  return std::max(shape.head_channels, shape.head_values) <= 128;
}

cudaError_t AttentionTiles(void* y, float* lse, const AttentionInputs& inputs,
                           const AttentionShape& shape, cudaStream_t stream) {
  const int64_t heads = shape.batch * shape.heads, tiles = CeilDiv(shape.queries, kTile);
  return ForTiles(shape, [&](auto one, auto width) {
    using T = decltype(one);
    constexpr int D = decltype(width)::kValue;
    return LaunchTiles(Forward<T, D>, heads * tiles, sizeof(ForwardMemory<T, D>), stream,
                       static_cast<T*>(y), lse, inputs, shape, tiles);
  });
}

cudaError_t AttentionGradTiles(const AttentionGradients& gradients, const void* dy,
                               const float* lse, const float* delta, const AttentionInputs& inputs,
                               const AttentionShape& shape, cudaStream_t stream) {
  const int64_t heads = shape.batch * shape.heads;
  const int64_t query_tiles = CeilDiv(shape.queries, kTile), key_tiles = CeilDiv(shape.keys, kTile);
  return ForTiles(shape, [&](auto one, auto width) {
    using T = decltype(one);
    constexpr int D = decltype(width)::kValue;
    const auto* of_dy = static_cast<const T*>(dy);
    MUSTER_RETURN_IF_CUDA_ERROR(
        LaunchTiles(GradQuery<T, D>, heads * query_tiles, sizeof(GradMemory<T, D>), stream,
                    static_cast<T*>(gradients.dq), of_dy, lse, delta, inputs, shape, query_tiles));
    return LaunchTiles(GradKey<T, D>, heads * key_tiles, sizeof(GradMemory<T, D>), stream,
                       static_cast<T*>(gradients.dk), static_cast<T*>(gradients.dv), of_dy, lse,
                       delta, inputs, shape, key_tiles);
  });
}

}  // namespace muster::kernels::cuda
