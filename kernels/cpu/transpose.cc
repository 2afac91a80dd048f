#include "kernels/transpose.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/cpu/loop_nest.h"
#include "kernels/cpu/parallel.h"

namespace muster::kernels {
namespace {

constexpr int64_t kGrain = 1 << 14;  // elements of a parallel piece
// Rows and columns of a tile; a tile of x and one of y fit in the cache.
constexpr int64_t kTile = 64;

template <typename T>
using Register __attribute__((vector_size(16))) = T;

// Transposes a square of registers. It has no loops, so that the data stays in registers at any
// optimisation level.
template <typename T, size_t... i>
void TransposeSquare(T* y, int64_t y_stride, const T* x, int64_t x_stride,
                     std::index_sequence<i...>) {
  constexpr int kSize = sizeof...(i);
  Register<T> rows[kSize];
  (std::memcpy(&rows[i], x + i * x_stride, sizeof(Register<T>)), ...);
  // Each round interleaves rows that are half the square apart. After log2(kSize) rounds, rows are
  // columns.
  auto interleave = [&rows](auto row) {
    constexpr int k = row / 2;
    if constexpr (kSize == 4) {
      return row % 2 == 0 ? __builtin_shufflevector(rows[k], rows[k + 2], 0, 4, 1, 5)
                          : __builtin_shufflevector(rows[k], rows[k + 2], 2, 6, 3, 7);
    } else {
      return row % 2 == 0
                 ? __builtin_shufflevector(rows[k], rows[k + 4], 0, 8, 1, 9, 2, 10, 3, 11)
                 : __builtin_shufflevector(rows[k], rows[k + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
  };
  auto round = [&] {
    const Register<T> next[] = {interleave(std::integral_constant<int, i>())...};
    ((rows[i] = next[i]), ...);
  };
  round();
  round();
  if constexpr (kSize == 8) round();
  (std::memcpy(y + i * y_stride, &rows[i], sizeof(Register<T>)), ...);
}

// Computes y[columns, rows] = x[rows, columns] transposed, both at most kTile. Rows of x are
// x_stride apart, rows of y are y_stride apart.
template <typename T>
void TransposeTile(T* __restrict y, int64_t y_stride, const T* __restrict x, int64_t x_stride,
                   int64_t rows, int64_t columns) {
  constexpr int64_t kSquare = 16 / sizeof(T);
  // Rows of y are collected here and then written completely. Rows that are a power of two apart
  // compete for the same cache lines, so partial writes would be slow.
  constexpr int64_t kStride = kTile + kSquare;
  T tile[kTile * kStride];
  int64_t r = 0;
  for (; r + kSquare <= rows; r += kSquare) {
    int64_t c = 0;
    for (; c + kSquare <= columns; c += kSquare) {
      TransposeSquare(tile + c * kStride + r, kStride, x + r * x_stride + c, x_stride,
                      std::make_index_sequence<kSquare>());
    }
    for (; c < columns; ++c) {
      for (int64_t i = r; i < r + kSquare; ++i) tile[c * kStride + i] = x[i * x_stride + c];
    }
  }
  for (; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) tile[c * kStride + r] = x[r * x_stride + c];
  }
  for (int64_t c = 0; c < columns; ++c) {
    std::memcpy(y + c * y_stride, tile + c * kStride, rows * sizeof(T));
  }
}

// Returns the loops over y's elements in order, with the strides of x, merged as far as possible.
LoopNest<1> LoopsOverOutput(Dimensions dimensions, Dimensions permutation) {
  CheckRank(dimensions.size());
  std::array<int64_t, kDimensionsMax> strides;
  int64_t elements = 1;
  for (int64_t d = static_cast<int64_t>(dimensions.size()) - 1; d >= 0; --d) {
    strides[d] = elements;
    elements *= dimensions[d];
  }
  LoopNest<1> nest;
  for (int64_t d : permutation) {
    if (dimensions[d] == 1) continue;
    const int outer = nest.rank - 1;
    if (outer >= 0 && nest.strides[0][outer] == strides[d] * dimensions[d]) {
      nest.sizes[outer] *= dimensions[d];
      nest.strides[0][outer] = strides[d];
    } else {
      nest.Append(dimensions[d], {strides[d]});
    }
  }
  if (nest.rank == 0) nest.Append(1, {1});
  return nest;
}

template <typename T>
void TransposeElements(T* y, const T* x, const LoopNest<1>& loops) {
  const int inner = loops.rank - 1;
  const int64_t n = loops.sizes[inner];
  if (loops.strides[0][inner] == 1) {  // contiguous runs are copied
    LoopNest<1> runs = loops;
    --runs.rank;
    ParallelFor(runs.iterations(), std::max<int64_t>(1, kGrain / n),
                [&](int64_t begin, int64_t end) {
                  NestCursor<1> cursor(runs, begin);
                  for (; begin < end; ++begin, cursor.Next()) {
                    std::memcpy(y + begin * n, x + cursor.offset(0), n * sizeof(T));
                  }
                });
    return;
  }
  // The innermost loop of y and the innermost loop of x form a matrix that is transposed. The other
  // loops run around it. Tensors: x, y.
  int columns = 0;
  while (loops.strides[0][columns] != 1) ++columns;
  std::array<int64_t, kDimensionsMax> y_strides;
  int64_t elements = 1;
  for (int d = inner; d >= 0; --d) {
    y_strides[d] = elements;
    elements *= loops.sizes[d];
  }
  LoopNest<2> around;
  for (int d = 0; d < inner; ++d) {
    if (d != columns) around.Append(loops.sizes[d], {loops.strides[0][d], y_strides[d]});
  }
  const int64_t rows = n, width = loops.sizes[columns];
  const int64_t tiles_down = (rows + kTile - 1) / kTile, tiles_across = (width + kTile - 1) / kTile;
  const int64_t tiles = tiles_down * tiles_across;
  const int64_t tile_elements = std::min(rows, kTile) * std::min(width, kTile);
  ParallelFor(around.iterations() * tiles, std::max<int64_t>(1, kGrain / tile_elements),
              [&](int64_t begin, int64_t end) {
                NestCursor<2> cursor(around, begin / tiles);
                for (; begin < end; ++begin) {
                  const int64_t r = begin % tiles % tiles_down * kTile;
                  const int64_t c = begin % tiles / tiles_down * kTile;
                  TransposeTile(y + cursor.offset(1) + c * y_strides[columns] + r,
                                y_strides[columns],
                                x + cursor.offset(0) + r * loops.strides[0][inner] + c,
                                loops.strides[0][inner], std::min(kTile, rows - r),
                                std::min(kTile, width - c));
                  if ((begin + 1) % tiles == 0) cursor.Next();
                }
              });
}

}  // namespace

void Transpose(void* y, const void* x, Dimensions dimensions, Dimensions permutation,
               int element_bytes) {
  const LoopNest<1> loops = LoopsOverOutput(dimensions, permutation);
  if (element_bytes == 2) {
    TransposeElements(static_cast<uint16_t*>(y), static_cast<const uint16_t*>(x), loops);
  } else {
    TransposeElements(static_cast<uint32_t*>(y), static_cast<const uint32_t*>(x), loops);
  }
}

}  // namespace muster::kernels
