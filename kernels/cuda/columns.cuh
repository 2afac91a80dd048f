// Sums over the rows of a matrix. A kernel computes several different sums at once.
#pragma once

#include "kernels/cuda/launch.cuh"

namespace muster::kernels::cuda {

inline constexpr int kColumnsOfBlock = 64;  // a cache line of bf16
inline constexpr int kRowsAtOnce = 4;       // rows that a thread loads at once

// How [rows, columns] is divided: a block walks down kColumnsOfBlock columns, and the rows are
// split into parts for different blocks. Partial sums are f32[parts, N, columns].
struct ColumnParts {
  int64_t rows;
  int64_t columns;
  int64_t parts;
  int64_t part_rows;

  ColumnParts(int64_t all_rows, int64_t all_columns) : rows(all_rows), columns(all_columns) {
    const int64_t blocks = CeilDiv(columns, kColumnsOfBlock);
    const int64_t wanted = std::clamp<int64_t>(CeilDiv(2048, blocks), 1, 512);
    parts = std::clamp<int64_t>(CeilDiv(rows, 128), 1, wanted);
    part_rows = CeilDiv(rows, parts);
    parts = CeilDiv(rows, part_rows);
  }
  int64_t WorkspaceBytes(int sums) const {
    return parts * sums * columns * static_cast<int64_t>(sizeof(float));
  }
};

// Adds up the rows of a part. V divides the columns; a block is kColumnsOfBlock / V threads wide.
// - f.At<V>(first of V columns) returns what a thread needs for its columns.
// - Its Load(row, first of V elements) reads a row's elements.
// - Its Add(loaded, row, first, sums) adds them to the sums, and may store.
//
// A thread loads several rows before it adds the first, so that the loads overlap.
template <int N, int V, typename F>
__global__ void SumColumns(float* partial, ColumnParts shape, F f) {
  constexpr int kLanes = kColumnsOfBlock / V;
  constexpr int kRows = kThreads / kLanes;
  __shared__ float of_threads[N * V][kThreads];
  const int64_t first = blockIdx.y * shape.part_rows;
  const int64_t last = min(first + shape.part_rows, shape.rows);
  const int thread = static_cast<int>(threadIdx.y * kLanes + threadIdx.x);
  for (int64_t start = int64_t{blockIdx.x} * kColumnsOfBlock; start < shape.columns;
       start += int64_t{gridDim.x} * kColumnsOfBlock) {
    const int64_t column = start + threadIdx.x * V;
    float sums[N][V] = {};
    if (column < shape.columns) {
      const auto own = f.template At<V>(column, /*step=*/1);
      const auto element = [&](int64_t row) { return row * shape.columns + column; };
      int64_t row = first + threadIdx.y;
      for (; row + (kRowsAtOnce - 1) * kRows < last; row += kRowsAtOnce * kRows) {
        decltype(own.Load(row, row)) loaded[kRowsAtOnce];
#pragma unroll
        for (int k = 0; k < kRowsAtOnce; ++k) {
          loaded[k] = own.Load(row + k * kRows, element(row + k * kRows));
        }
#pragma unroll
        for (int k = 0; k < kRowsAtOnce; ++k) {
          own.Add(loaded[k], row + k * kRows, element(row + k * kRows), sums);
        }
      }
      for (; row < last; row += kRows) {
        own.Add(own.Load(row, element(row)), row, element(row), sums);
      }
    }
    __syncthreads();  // wait until the sums of the previous columns are read
#pragma unroll
    for (int i = 0; i < N * V; ++i) of_threads[i][thread] = sums[i / V][i % V];
    __syncthreads();
    // Each step adds up sum i of the columns of one lane.
    for (int pair = thread; pair < N * V * kLanes; pair += kThreads) {
      const int lane = pair % kLanes, i = pair / kLanes;
      const int64_t own = start + lane * V + i % V;
      if (own >= shape.columns) continue;
      float sum = 0;
      for (int row = 0; row < kRows; ++row) sum += of_threads[i][row * kLanes + lane];
      partial[(int64_t{blockIdx.y} * N + i / V) * shape.columns + own] = sum;
    }
  }
}

// Launches SumColumns(). If the rows are whole vectors, it takes 16 bytes of T at a time; the rows
// must then be 16-byte aligned.
template <int N, typename T, typename F>
cudaError_t LaunchSumColumns(float* partial, const ColumnParts& shape, F f, cudaStream_t stream) {
  const bool vectorises = shape.columns % kVector<T> == 0;
  const int lanes = kColumnsOfBlock / (vectorises ? kVector<T> : 1);
  const auto blocks =
      static_cast<unsigned>(std::min(CeilDiv(shape.columns, kColumnsOfBlock), kBlocksMax));
  const auto kernel = vectorises ? SumColumns<N, kVector<T>, F> : SumColumns<N, 1, F>;
  return Launch(kernel, dim3(blocks, static_cast<unsigned>(shape.parts)),
                dim3(lanes, kThreads / lanes), 0, stream, partial, shape, f);
}

// Calls f(column, sums of the parts) once for each column. A block takes as many columns as a warp
// has lanes. Each warp adds up every kWarps-th part; warp 0 then adds up the warps' sums.
template <int N, typename F>
__device__ void ForJoined(const float* partial, int64_t columns, int64_t parts, F f) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ float of_warps[N][kWarps][kWarp];
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  for (int64_t start = int64_t{blockIdx.x} * kWarp; start < columns;
       start += int64_t{gridDim.x} * kWarp) {
    const int64_t column = start + lane;
    float sums[N] = {};
    if (column < columns) {
#pragma unroll 8
      for (int64_t part = warp; part < parts; part += kWarps) {
#pragma unroll
        for (int k = 0; k < N; ++k) sums[k] += partial[(part * N + k) * columns + column];
      }
    }
    __syncthreads();  // wait until the sums of the previous columns are read
#pragma unroll
    for (int k = 0; k < N; ++k) of_warps[k][warp][lane] = sums[k];
    __syncthreads();
    if (warp != 0 || column >= columns) continue;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      sums[k] = 0;
      for (int w = 0; w < kWarps; ++w) sums[k] += of_warps[k][w][lane];
    }
    f(column, sums);
  }
}

// The grid of kThreads-wide blocks in which ForJoined() covers all columns.
inline dim3 JoiningBlocks(int64_t columns) {
  return dim3(static_cast<unsigned>(std::min(CeilDiv(columns, kWarp), kBlocksMax)));
}

}  // namespace muster::kernels::cuda
