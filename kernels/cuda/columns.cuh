// Sums over the rows of a matrix, several at once.
#pragma once

#include "kernels/cuda/launch.cuh"

namespace muster::kernels::cuda {

inline constexpr int kColumnsOfBlock = 64;  // a cache line of bf16

// How [rows, columns] is cut: blocks walk down kColumnsOfBlock columns, parts of the rows in
// different blocks. Partial sums f32[parts, N, columns].
struct ColumnParts {
  int64_t rows;
  int64_t columns;
  int64_t parts;
  int64_t part_rows;

  ColumnParts(int64_t all_rows, int64_t all_columns) : rows(all_rows), columns(all_columns) {
    const int64_t blocks = CeilDiv(columns, kColumnsOfBlock);
    const int64_t wanted = std::clamp<int64_t>(CeilDiv(1024, blocks), 1, 256);
    parts = std::clamp<int64_t>(CeilDiv(rows, 64), 1, wanted);
    part_rows = CeilDiv(rows, parts);
    parts = CeilDiv(rows, part_rows);
  }
  int64_t WorkspaceBytes(int sums) const {
    return parts * sums * columns * static_cast<int64_t>(sizeof(float));
  }
};

// Adds up the rows of a part: f.At<V>(first of V columns) holds what a thread needs of its columns,
// its Add(row, first of V elements, sums) adds those of a row. V divides the columns. A block is
// kColumnsOfBlock / V threads wide.
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
#pragma unroll 2
      for (int64_t row = first + threadIdx.y; row < last; row += kRows) {
        own.Add(row, row * shape.columns + column, sums);
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N * V; ++i) of_threads[i][thread] = sums[i / V][i % V];
    __syncthreads();
    // Sum i of the columns of a lane, for every pair of them.
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

// 16 bytes of T at a time where vectors fit the rows, which are then 16-byte aligned.
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

// Sum k of a column, over the parts.
template <int N>
__device__ float JoinParts(const float* partial, int k, int64_t column, int64_t columns,
                           int64_t parts) {
  float sum = 0;
  // One thread adds them, in their order; many loads are under way meanwhile.
#pragma unroll 16
  for (int64_t part = 0; part < parts; ++part) sum += partial[(part * N + k) * columns + column];
  return sum;
}

}  // namespace muster::kernels::cuda
