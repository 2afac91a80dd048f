// Sums over the rows of a matrix, several at once.
#pragma once

#include "kernels/cuda/launch.cuh"

namespace muster::kernels::cuda {

// How [rows, columns] is cut: blocks of 32 x 8 threads walk down 32 V columns, parts of the rows in
// different blocks. Partial sums f32[parts, N, columns].
struct ColumnParts {
  int64_t rows;
  int64_t columns;
  int64_t parts;
  int64_t part_rows;

  ColumnParts(int64_t all_rows, int64_t all_columns) : rows(all_rows), columns(all_columns) {
    const int64_t blocks = CeilDiv(columns, 2 * kWarp);
    const int64_t wanted = std::clamp<int64_t>(CeilDiv(1024, blocks), 1, 256);
    parts = std::clamp<int64_t>(CeilDiv(rows, 64), 1, wanted);
    part_rows = CeilDiv(rows, parts);
    parts = CeilDiv(rows, part_rows);
  }
  int64_t WorkspaceBytes(int sums) const {
    return parts * sums * columns * static_cast<int64_t>(sizeof(float));
  }
};

// Adds f.Add<V>(row, first of V columns, sums) over the rows of a part. V divides the columns.
template <int N, int V, typename F>
__global__ void SumColumns(float* partial, ColumnParts shape, F f) {
  constexpr int kRows = kThreads / kWarp;
  __shared__ float of_rows[kRows][kWarp][N * V];
  const int64_t first = blockIdx.y * shape.part_rows;
  const int64_t last = min(first + shape.part_rows, shape.rows);
  for (int64_t start = int64_t{blockIdx.x} * kWarp * V; start < shape.columns;
       start += int64_t{gridDim.x} * kWarp * V) {
    const int64_t column = start + threadIdx.x * V;
    float sums[N][V] = {};
    if (column < shape.columns) {
      for (int64_t row = first + threadIdx.y; row < last; row += kRows) {
        f.template Add<V>(row, column, sums);
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N * V; ++i) of_rows[threadIdx.y][threadIdx.x][i] = sums[i / V][i % V];
    __syncthreads();
    if (threadIdx.y == 0 && column < shape.columns) {
#pragma unroll
      for (int i = 0; i < N * V; ++i) {
        float sum = 0;
        for (int row = 0; row < kRows; ++row) sum += of_rows[row][threadIdx.x][i];
        partial[(int64_t{blockIdx.y} * N + i / V) * shape.columns + column + i % V] = sum;
      }
    }
  }
}

template <int N, typename F>
cudaError_t LaunchSumColumns(float* partial, const ColumnParts& shape, F f, cudaStream_t stream) {
  const int V = shape.columns % 2 == 0 ? 2 : 1;
  const auto blocks =
      static_cast<unsigned>(std::min(CeilDiv(shape.columns, kWarp * V), kBlocksMax));
  const auto kernel = V == 2 ? SumColumns<N, 2, F> : SumColumns<N, 1, F>;
  return Launch(kernel, dim3(blocks, static_cast<unsigned>(shape.parts)),
                dim3(kWarp, kThreads / kWarp), 0, stream, partial, shape, f);
}

// Sum k of a column, over the parts.
template <int N>
__device__ float JoinParts(const float* partial, int k, int64_t column, int64_t columns,
                           int64_t parts) {
  float sum = 0;
  for (int64_t part = 0; part < parts; ++part) sum += partial[(part * N + k) * columns + column];
  return sum;
}

}  // namespace muster::kernels::cuda
