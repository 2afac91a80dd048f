// Attention on tensor cores. A block has four warps, with 16 or 32 rows of the scores each, and
// walks over tiles of 64 columns.
//
// Estimated bounds on an H100 for D = 64 and 32 rows, in cycles of an SM for a warp's 32 x 64
// scores, forward:
// - products: 210 (128 of 4096 FLOPs at the 2500 per cycle that mma.sync reaches).
// - operands from shared memory: 160 (40 loads of 512 bytes at 128 per cycle).
// - exp: 128 (2048 at 16 per cycle).
// - other instructions: about 90.
//
// So the products bound it. That is why a warp takes 32 rows: with 16 the operands would take
// longer than the products. dq is bound in the same way. dk and dv are bound by operands (512
// cycles against 420): their two sums leave registers for only 16 columns at a time. The next tile
// is copied while the present one is computed.
#include <limits>
#include <type_traits>

#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/attention_tile.h"

namespace muster::kernels::cuda {
namespace {

constexpr int kBlockThreads = kWarps * kWarp;

__device__ int Lane() { return threadIdx.x % kWarp; }

// R rows of D elements in shared memory. A row's length is a multiple of 128 bytes plus 16, so that
// the eight rows of a matrix are in different banks.
template <typename T, int D, int R = kTile>
struct Tile {
  static constexpr int kRow = D + 8;
  T elements[R * kRow];

  // Loads rows first, first + 1, ... of a matrix of `last` rows and `width` <= D columns; elements
  // beyond it are 0. Called by the whole block, which must then await the copies.
  __device__ void Load(const T* rows, int row, int first, int last, int width) {
    constexpr int kParts = D / 8, kStep = kBlockThreads / kParts;
    const int c = threadIdx.x % kParts * 8;
#pragma unroll
    for (int step = 0; step < R / kStep; ++step) {
      const int r = step * kStep + threadIdx.x / kParts;
      const bool is_there = first + r < last && c < width;
      CopyAsync(&elements[r * kRow + c], rows + (is_there ? (first + r) * row + c : 0), is_there);
    }
  }

  __device__ const T* At(TilePlace place) const {
    return &elements[place.row * kRow + place.column];
  }
};

// scores[16 M, 8 N] = rows r, r + 1, ... of `left` times rows n, n + 1, ... of `right`, transposed.
template <typename T, int D, int R, int M, int N>
__device__ void MultiplyTransposed(float (&scores)[M][N][4], const Tile<T, D, R>& left, int r,
                                   const Tile<T, D>& right, int n) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
#pragma unroll
      for (float& score : scores[m][i]) score = 0;
    }
  }
#pragma unroll
  for (int k = 0; k < D; k += 16) {
    uint32_t a[M][4];
#pragma unroll
    for (int m = 0; m < M; ++m) {
      LoadMatrices(a[m], left.At(LeftOperand(Lane(), r + m * kProduct, k)));
    }
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      uint32_t b[4];
      LoadMatrices(b, right.At(TransposedOperand(Lane(), n + i * 8, k)));
#pragma unroll
      for (int m = 0; m < M; ++m) {
        MultiplyAdd<T>(scores[m][i], a[m], b[0], b[1]);
        MultiplyAdd<T>(scores[m][i + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// sum[16 M, D] += weights[16 M, 8 N] times rows k, k + 1, ... of `right`.
template <typename T, int D, int M, int N>
__device__ void AddProduct(float (&sum)[M][D / 8][4], const float (&weights)[M][N][4],
                           const Tile<T, D>& right, int k) {
#pragma unroll
  for (int i = 0; i < N; i += 2) {
    uint32_t a[M][4];
#pragma unroll
    for (int m = 0; m < M; ++m) {
      a[m][0] = Pack<T>(weights[m][i][0], weights[m][i][1]);
      a[m][1] = Pack<T>(weights[m][i][2], weights[m][i][3]);
      a[m][2] = Pack<T>(weights[m][i + 1][0], weights[m][i + 1][1]);
      a[m][3] = Pack<T>(weights[m][i + 1][2], weights[m][i + 1][3]);
    }
#pragma unroll
    for (int d = 0; d < D / 8; d += 2) {
      uint32_t b[4];
      LoadMatricesTransposed(b, right.At(RightOperand(Lane(), k + i * 8, d * 8)));
#pragma unroll
      for (int m = 0; m < M; ++m) {
        MultiplyAdd<T>(sum[m][d], a[m], b[0], b[1]);
        MultiplyAdd<T>(sum[m][d + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// The sum over the four lanes that share rows.
__device__ float QuadSum(float x) {
  x += __shfl_xor_sync(kEveryLane, x, 1);
  return x + __shfl_xor_sync(kEveryLane, x, 2);
}
__device__ float QuadMax(float x) {
  x = fmaxf(x, __shfl_xor_sync(kEveryLane, x, 1));
  return fmaxf(x, __shfl_xor_sync(kEveryLane, x, 2));
}

// Multiplies rows of products by the `factor` of their row, rounds them, and stores them: rows
// first, first + 1, ... of a matrix of `last` rows and `width` columns.
template <typename T, int M, int N>
__device__ void StoreRows(T* to, int row, int first, int last, int width,
                          const float (&sum)[M][N][4], const float (&factor)[M][2]) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        const int r = first + m * kProduct + RowOf(Lane(), e), c = i * 8 + ColumnOf(Lane(), e);
        if (r >= last || c >= width) continue;
        *reinterpret_cast<uint32_t*>(to + (r * row + c)) =
            Pack<T>(sum[m][i][e] * factor[m][e / 2], sum[m][i][e + 1] * factor[m][e / 2]);
      }
    }
  }
}

template <typename T, int M, int N>
__device__ void StoreRows(T* to, int row, int first, int last, int width,
                          const float (&sum)[M][N][4], float factor) {
  float of_rows[M][2];
#pragma unroll
  for (auto& rows : of_rows) rows[0] = rows[1] = factor;
  StoreRows(to, row, first, last, width, sum, of_rows);
}

// A block's head, and how its products become scores. In units of log 2 the logarithm of a
// probability is factor() * score - lse.
template <typename T>
struct Scores {
  Head<T> head;
  const AttentionMask& mask;
  Causality seen;
  float scale;  // in units of log 2

  __device__ Scores(const AttentionInputs& inputs, const AttentionShape& shape, int number)
      : head(inputs, shape, number),
        mask(inputs.mask),
        seen{static_cast<int>(shape.queries), static_cast<int>(shape.keys), shape.causal},
        scale(shape.scale * kLog2E) {}

  __device__ float factor() const { return mask.data == nullptr ? scale : 1; }
  // Whether a tile can be computed without checking each element.
  __device__ bool IsOpen(const Tiles& tiles, int tile) const {
    return mask.data == nullptr && tiles.IsOpen(tile);
  }
  // Returns -inf for a key that the query does not see.
  __device__ float Masked(float product, int t, int key) const {
    if (key >= seen.VisibleKeys(t)) return -INFINITY;
    if (mask.data == nullptr) return product;
    return t < seen.queries ? product * scale + kLog2E * head.mask[t * mask.query_stride + key] : 0;
  }
};

// Rows of scores that a warp computes: M products of kProduct rows.
template <int M>
inline constexpr int kWarpRows = M* kProduct;
template <int M>
inline constexpr int kBlockRows = kWarps* kWarpRows<M>;

template <typename T, int D, int M>
struct ForwardMemory {
  Tile<T, D, kBlockRows<M>> q;
  Tile<T, D> k[2], v[2];  // the present tile and the next
};

// A warp's state per row while it walks over the tiles.
template <int D, int M>
struct OnlineSoftmax {
  float sum[M][D / 8][4] = {};  // of exp(score - maximum) v
  float maximum[M][2];
  float total[M][2] = {};  // sum of exp over this lane's columns

  __device__ OnlineSoftmax() {
#pragma unroll
    for (auto& rows : maximum) rows[0] = rows[1] = -INFINITY;
  }

  // Adds the scores of 8 N columns, and replaces them by exp(score - maximum).
  template <int N>
  __device__ void Add(float (&scores)[M][N][4], float factor) {
    float reference[M][2];
    bool changes = false;
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float larger = maximum[m][r];
#pragma unroll
        for (int i = 0; i < N; ++i) {
          larger = fmaxf(larger, fmaxf(scores[m][i][2 * r], scores[m][i][2 * r + 1]));
        }
        larger = QuadMax(larger);
        changes |= larger != maximum[m][r];
        reference[m][r] = larger;
      }
    }
    // The whole warp rescales or skips it, so its lanes do not diverge.
    if (__any_sync(kEveryLane, changes)) Rescale(reference, factor);
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        // A row that has seen no key yet keeps -inf, and exp2(-inf - 0) = 0.
        const float less = maximum[m][e / 2] == -INFINITY ? 0 : maximum[m][e / 2] * factor;
#pragma unroll
        for (int i = 0; i < N; ++i) {
          scores[m][i][e] = Exp2(scores[m][i][e] * factor - less);
          total[m][e / 2] += scores[m][i][e];
        }
      }
    }
  }

 private:
  __device__ void Rescale(const float (&larger)[M][2], float factor) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float correction =
            larger[m][r] == -INFINITY ? 1 : Exp2((maximum[m][r] - larger[m][r]) * factor);
        maximum[m][r] = larger[m][r];
        total[m][r] *= correction;
#pragma unroll
        for (int d = 0; d < D / 8; ++d) {
          sum[m][d][2 * r] *= correction;
          sum[m][d][2 * r + 1] *= correction;
        }
      }
    }
  }
};

template <typename T, int D, int M>
__global__ void __launch_bounds__(kBlockThreads, 2)
    Forward(T* y, float* lse, AttentionInputs inputs, AttentionShape shape, int blocks) {
  auto& memory = *static_cast<ForwardMemory<T, D, M>*>(LaunchedSharedMemory());
  // The last queries see the most keys under a causal mask, so they start first.
  const int first = (blocks - 1 - static_cast<int>(blockIdx.x) % blocks) * kBlockRows<M>;
  const Scores<T> scores_of(inputs, shape, static_cast<int>(blockIdx.x) / blocks);
  const Head<T>& head = scores_of.head;
  const auto [queries, keys, causal] = scores_of.seen;
  const int k_row = static_cast<int>(shape.k_row), v_row = static_cast<int>(shape.v_row);
  const int channels = static_cast<int>(shape.head_channels);
  const int values = static_cast<int>(shape.head_values);
  const int row = static_cast<int>(threadIdx.x) / kWarp * kWarpRows<M>, own = first + row;
  const Tiles of_block = KeyTiles(scores_of.seen, first, kBlockRows<M>);
  const Tiles of_warp = KeyTiles(scores_of.seen, own, kWarpRows<M>);
  const float factor = scores_of.factor();

  const auto load = [&, keys = keys](int tile) {
    if (tile >= of_block.end) return;
    memory.k[tile % 2].Load(head.k, k_row, tile * kTile, keys, channels);
    memory.v[tile % 2].Load(head.v, v_row, tile * kTile, keys, values);
  };
  OnlineSoftmax<D, M> softmax;
  const auto add = [&](int tile, auto is_masked) {
    float scores[M][kTile / 8][4];
    MultiplyTransposed(scores, memory.q, row, memory.k[tile % 2], 0);
    if constexpr (is_masked.value) {
#pragma unroll
      for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int i = 0; i < kTile / 8; ++i) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            scores[m][i][e] =
                scores_of.Masked(scores[m][i][e], own + m * kProduct + RowOf(Lane(), e),
                                 tile * kTile + i * 8 + ColumnOf(Lane(), e));
          }
        }
      }
    }
    softmax.Add(scores, factor);
    AddProduct(softmax.sum, scores, memory.v[tile % 2], 0);
  };

  memory.q.Load(head.q, static_cast<int>(shape.q_row), first, queries, channels);
  load(0);
  for (int tile = 0; tile < of_block.end; ++tile) {
    AwaitCopies();
    __syncthreads();  // the present tile has arrived; the buffer of the previous one is free
    load(tile + 1);
    // A warp behind its last tile still loads and meets the barriers of its block.
    if (tile >= of_warp.end) continue;
    if (scores_of.IsOpen(of_warp, tile)) {
      add(tile, std::false_type());
    } else {
      add(tile, std::true_type());
    }
  }
  AwaitCopies();

  float of_rows[M][2];
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float total = QuadSum(softmax.total[m][r]);
      of_rows[m][r] = total == 0 ? 0 : 1 / total;
      const int t = own + m * kProduct + RowOf(Lane(), 2 * r);
      if (Lane() % 4 == 0 && t < queries) {
        lse[head.statistics + t] =
            total == 0 ? -INFINITY : kLn2 * (softmax.maximum[m][r] * factor + log2f(total));
      }
    }
  }
  StoreRows(y + head.output, static_cast<int>(OutputRow(shape)), own, queries, values, softmax.sum,
            of_rows);
}

// Returns lse in units of log 2; +inf for a query that sees no key, which makes its probabilities
// 0.
__device__ float UsableLse(float lse) { return lse == -INFINITY ? INFINITY : lse * kLog2E; }

// Number of tiles that the derivatives buffer. Wide tiles have one buffer, so that a block fits
// into the 99 KiB that most devices offer.
template <int D>
inline constexpr int kGradBuffers = D <= 64 ? 2 : 1;

template <typename T, int D, int M>
struct GradQueryMemory {
  Tile<T, D, kBlockRows<M>> q, dy;
  Tile<T, D> k[kGradBuffers<D>], v[kGradBuffers<D>];
};
static_assert(sizeof(GradQueryMemory<__half, 128, 1>) <= 99 * 1024);

template <typename T, int D, int M>
__global__ void __launch_bounds__(kBlockThreads, 2)
    GradQuery(T* dq, const T* dy, const float* lse, const float* delta, AttentionInputs inputs,
              AttentionShape shape, int blocks) {
  auto& memory = *static_cast<GradQueryMemory<T, D, M>*>(LaunchedSharedMemory());
  const int first = (blocks - 1 - static_cast<int>(blockIdx.x) % blocks) * kBlockRows<M>;
  const Scores<T> scores_of(inputs, shape, static_cast<int>(blockIdx.x) / blocks);
  const Head<T>& head = scores_of.head;
  const auto [queries, keys, causal] = scores_of.seen;
  const int k_row = static_cast<int>(shape.k_row), v_row = static_cast<int>(shape.v_row);
  const int channels = static_cast<int>(shape.head_channels);
  const int values = static_cast<int>(shape.head_values);
  const int row = static_cast<int>(threadIdx.x) / kWarp * kWarpRows<M>, own = first + row;
  const Tiles of_block = KeyTiles(scores_of.seen, first, kBlockRows<M>);
  const Tiles of_warp = KeyTiles(scores_of.seen, own, kWarpRows<M>);
  const float factor = scores_of.factor();

  const auto load = [&, keys = keys](int tile) {
    if (tile >= of_block.end) return;
    memory.k[tile % kGradBuffers<D>].Load(head.k, k_row, tile * kTile, keys, channels);
    memory.v[tile % kGradBuffers<D>].Load(head.v, v_row, tile * kTile, keys, values);
  };
  memory.q.Load(head.q, static_cast<int>(shape.q_row), first, queries, channels);
  memory.dy.Load(dy + head.output, static_cast<int>(OutputRow(shape)), first, queries, values);
  load(0);
  float of_lse[M][2], of_delta[M][2];
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int t = own + m * kProduct + RowOf(Lane(), 2 * r);
      of_lse[m][r] = t < queries ? UsableLse(lse[head.statistics + t]) : INFINITY;
      of_delta[m][r] = t < queries ? delta[head.statistics + t] : 0;
    }
  }

  float sum[M][D / 8][4] = {};
  const auto add = [&](int tile, auto is_masked) {
    const int buffer = tile % kGradBuffers<D>;
#pragma unroll 1
    for (int half = 0; half < kTile; half += kHalf) {
      float scores[M][kHalf / 8][4], slopes[M][kHalf / 8][4];
      MultiplyTransposed(scores, memory.q, row, memory.k[buffer], half);
      MultiplyTransposed(slopes, memory.dy, row, memory.v[buffer], half);
#pragma unroll
      for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int i = 0; i < kHalf / 8; ++i) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            float score = scores[m][i][e];
            if constexpr (is_masked.value) {
              score = scores_of.Masked(score, own + m * kProduct + RowOf(Lane(), e),
                                       tile * kTile + half + i * 8 + ColumnOf(Lane(), e));
            }
            slopes[m][i][e] =
                Exp2(score * factor - of_lse[m][e / 2]) * (slopes[m][i][e] - of_delta[m][e / 2]);
          }
        }
      }
      AddProduct(sum, slopes, memory.k[buffer], half);
    }
  };
  for (int tile = 0; tile < of_block.end; ++tile) {
    AwaitCopies();
    __syncthreads();
    if (kGradBuffers<D> == 2) load(tile + 1);
    if (tile < of_warp.end) {
      if (scores_of.IsOpen(of_warp, tile)) {
        add(tile, std::false_type());
      } else {
        add(tile, std::true_type());
      }
    }
    if (kGradBuffers<D> == 1) {
      __syncthreads();
      load(tile + 1);
    }
  }
  AwaitCopies();
  StoreRows(dq + head.QueryOffset(shape), static_cast<int>(shape.q_row), own, queries, channels,
            sum, shape.scale);
}

template <typename T, int D, int M>
struct GradKeyMemory {
  Tile<T, D, kBlockRows<M>> k, v;
  Tile<T, D> q[kGradBuffers<D>], dy[kGradBuffers<D>];
  float2 lse[2][kTile / 2];  // pairs of neighbouring queries
  float2 delta[2][kTile / 2];
};
static_assert(sizeof(GradKeyMemory<__half, 128, 1>) <= 99 * 1024);
static_assert(kBlockThreads == 2 * kTile);

// The rows of the products are keys, their columns queries.
template <typename T, int D, int M>
__global__ void __launch_bounds__(kBlockThreads, 2)
    GradKey(T* dk, T* dv, const T* dy, const float* lse, const float* delta, AttentionInputs inputs,
            AttentionShape shape, int blocks) {
  auto& memory = *static_cast<GradKeyMemory<T, D, M>*>(LaunchedSharedMemory());
  const int first = static_cast<int>(blockIdx.x) % blocks * kBlockRows<M>;
  const Scores<T> scores_of(inputs, shape, static_cast<int>(blockIdx.x) / blocks);
  const Head<T>& head = scores_of.head;
  const auto [queries, keys, causal] = scores_of.seen;
  const int q_row = static_cast<int>(shape.q_row), y_row = static_cast<int>(OutputRow(shape));
  const int k_row = static_cast<int>(shape.k_row), v_row = static_cast<int>(shape.v_row);
  const int channels = static_cast<int>(shape.head_channels);
  const int values = static_cast<int>(shape.head_values);
  const int row = static_cast<int>(threadIdx.x) / kWarp * kWarpRows<M>, own = first + row;
  const Tiles of_block = QueryTiles(scores_of.seen, first, kBlockRows<M>);
  const Tiles of_warp = QueryTiles(scores_of.seen, own, kWarpRows<M>);
  const float factor = scores_of.factor();

  const int statistics = static_cast<int>(head.statistics);
  // Half of the threads load lse, the others delta. Each holds the value of one query of the next
  // tile in `next` until that tile's turn comes.
  const bool takes_lse = threadIdx.x < kTile;
  float next = 0;
  const auto load = [&, queries = queries](int tile) {
    if (tile >= of_block.end) return;
    memory.q[tile % kGradBuffers<D>].Load(head.q, q_row, tile * kTile, queries, channels);
    memory.dy[tile % kGradBuffers<D>].Load(dy + head.output, y_row, tile * kTile, queries, values);
    const int t = tile * kTile + static_cast<int>(threadIdx.x) % kTile;
    if (t >= queries) {
      next = takes_lse ? INFINITY : 0;
    } else {
      next = takes_lse ? UsableLse(lse[statistics + t]) : delta[statistics + t];
    }
  };
  const auto store = [&](int tile) {
    if (tile >= of_block.end) return;
    float2* to = takes_lse ? memory.lse[tile % 2] : memory.delta[tile % 2];
    reinterpret_cast<float*>(to)[threadIdx.x % kTile] = next;
  };

  float sum_k[M][D / 8][4] = {}, sum_v[M][D / 8][4] = {};
  const auto add = [&](int tile, auto is_masked) {
    const int buffer = tile % kGradBuffers<D>;
    // If M > 1, sum_k and sum_v take so many registers that only half of the columns fit.
    constexpr int kColumns = M > 1 ? kHalf / 2 : kHalf;
#pragma unroll 1
    for (int half = 0; half < kTile; half += kColumns) {
      float scores[M][kColumns / 8][4], slopes[M][kColumns / 8][4];
      MultiplyTransposed(scores, memory.k, row, memory.q[buffer], half);
      MultiplyTransposed(slopes, memory.v, row, memory.dy[buffer], half);
#pragma unroll
      for (int i = 0; i < kColumns / 8; ++i) {
        const int column = half + i * 8 + ColumnOf(Lane(), 0);
        const float2 of_lse = memory.lse[tile % 2][column / 2];
        const float2 of_delta = memory.delta[tile % 2][column / 2];
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            float score = scores[m][i][e];
            if constexpr (is_masked.value) {
              score = scores_of.Masked(score, tile * kTile + column + e % 2,
                                       own + m * kProduct + RowOf(Lane(), e));
            }
            scores[m][i][e] = Exp2(score * factor - (e % 2 == 0 ? of_lse.x : of_lse.y));
            slopes[m][i][e] =
                scores[m][i][e] * (slopes[m][i][e] - (e % 2 == 0 ? of_delta.x : of_delta.y));
          }
        }
      }
      AddProduct(sum_v, scores, memory.dy[buffer], half);
      AddProduct(sum_k, slopes, memory.q[buffer], half);
    }
  };
  memory.k.Load(head.k, k_row, first, keys, channels);
  memory.v.Load(head.v, v_row, first, keys, values);
  load(of_block.begin);
  store(of_block.begin);
  for (int tile = of_block.begin; tile < of_block.end; ++tile) {
    AwaitCopies();
    __syncthreads();
    if (kGradBuffers<D> == 2) load(tile + 1);
    if (tile >= of_warp.begin && tile < of_warp.end) {
      if (scores_of.IsOpen(of_warp, tile)) {
        add(tile, std::false_type());
      } else {
        add(tile, std::true_type());
      }
    }
    if (kGradBuffers<D> == 1) {
      __syncthreads();
      load(tile + 1);
    }
    store(tile + 1);
  }
  AwaitCopies();
  StoreRows(dk + head.KeyOffset(shape), k_row, own, keys, channels, sum_k, shape.scale);
  StoreRows(dv + head.ValueOffset(shape), v_row, own, keys, values, sum_v, 1);
}

// A launch may use more than 48 KiB of shared memory only after an attribute of the kernel allows
// it.
template <typename Kernel, typename... Arguments>
cudaError_t LaunchTiles(Kernel kernel, int64_t blocks, int64_t shared_bytes, cudaStream_t stream,
                        Arguments... arguments) {
  MUSTER_RETURN_IF_CUDA_ERROR(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   static_cast<int>(shared_bytes)));
  return Launch(kernel, dim3(static_cast<unsigned>(blocks)), kBlockThreads, shared_bytes, stream,
                arguments...);
}

// Heads of at most D channels; a warp's products have 16 M rows.
template <int D, int M>
struct HeadWidth {
  static constexpr int kWidth = D;
  static constexpr int kProducts = M;
};

// Calls f(an element, a HeadWidth).
template <typename F>
cudaError_t ForTiles(const AttentionShape& shape, F f) {
  const bool is_narrow = std::max(shape.head_channels, shape.head_values) <= 64;
  const auto of_type = [&](auto one) {
    return is_narrow ? f(one, HeadWidth<64, 2>()) : f(one, HeadWidth<128, 1>());
  };
  return shape.type == Type::kBf16 ? of_type(__nv_bfloat16{}) : of_type(__half{});
}

}  // namespace

bool FitsTensorCores(const AttentionShape& shape) {
  if (shape.type != Type::kBf16 && shape.type != Type::kF16) return false;
  for (int64_t n :
       {shape.head_channels, shape.head_values, shape.q_row, shape.k_row, shape.v_row}) {
    if (n % 8 != 0) return false;
  }
  constexpr int64_t kIndexMax = std::numeric_limits<int>::max() - kTile * 4;
  for (int64_t n :
       {shape.queries * shape.q_row, shape.keys * shape.k_row, shape.keys * shape.v_row,
        shape.queries * shape.heads * shape.head_values, shape.batch * shape.heads * shape.queries,
        shape.batch * shape.heads * CeilDiv(std::max(shape.queries, shape.keys), kTile)}) {
    if (n > kIndexMax) return false;
  }
  return shape.scale > 0 && std::max(shape.head_channels, shape.head_values) <= 128;
}

cudaError_t AttentionTiles(void* y, float* lse, const AttentionInputs& inputs,
                           const AttentionShape& shape, cudaStream_t stream) {
  return ForTiles(shape, [&](auto one, auto width) {
    using T = decltype(one);
    constexpr int D = width.kWidth, M = width.kProducts;
    const int64_t blocks = CeilDiv(shape.queries, kBlockRows<M>);
    return LaunchTiles(Forward<T, D, M>, shape.batch * shape.heads * blocks,
                       sizeof(ForwardMemory<T, D, M>), stream, static_cast<T*>(y), lse, inputs,
                       shape, blocks);
  });
}

cudaError_t AttentionGradTiles(const AttentionGradients& gradients, const void* dy,
                               const float* lse, const float* delta, const AttentionInputs& inputs,
                               const AttentionShape& shape, cudaStream_t stream) {
  const int64_t heads = shape.batch * shape.heads;
  return ForTiles(shape, [&](auto one, auto width) {
    using T = decltype(one);
    constexpr int D = width.kWidth, M = width.kProducts;
    const int64_t of_queries = CeilDiv(shape.queries, kBlockRows<M>);
    const int64_t of_keys = CeilDiv(shape.keys, kBlockRows<M>);
    const auto* of_dy = static_cast<const T*>(dy);
    MUSTER_RETURN_IF_CUDA_ERROR(LaunchTiles(
        GradQuery<T, D, M>, heads * of_queries, sizeof(GradQueryMemory<T, D, M>), stream,
        static_cast<T*>(gradients.dq), of_dy, lse, delta, inputs, shape, of_queries));
    return LaunchTiles(GradKey<T, D, M>, heads * of_keys, sizeof(GradKeyMemory<T, D, M>), stream,
                       static_cast<T*>(gradients.dk), static_cast<T*>(gradients.dv), of_dy, lse,
                       delta, inputs, shape, of_keys);
  });
}

}  // namespace muster::kernels::cuda
