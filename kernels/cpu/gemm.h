// Matrix products for the CPU kernels.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/parallel.h"

namespace muster::kernels {

// A row-major matrix inside a larger one: element (r, c) is data[r * stride + c]. If transposed,
// the view is its transpose.
struct MatrixView {
  const float* data;
  int64_t stride;
  bool transposed = false;

  MatrixView T() const { return {data, stride, !transposed}; }
  MatrixView FromRow(int64_t r) const {
    return {data + (transposed ? r : r * stride), stride, transposed};
  }
  MatrixView FromColumn(int64_t c) const { return T().FromRow(c).T(); }
};

struct GemmShape {
  int64_t rows;     // rows of a and c
  int64_t columns;  // columns of b and c
  int64_t inner;    // columns of a, rows of b
};

enum class GemmMode { kAssign, kAccumulate };

// Computes c = a b, or c += a b, on the calling thread alone. Row `r` of c starts at c + r *
// c_stride.
//
// Uses oneDNN's sgemm, which selects its code by the processor's features. Debian's OpenBLAS
// selects by model number. On a processor that it does not know, it uses SSE2 code, which is five
// times slower.
void SerialGemm(float* c, int64_t c_stride, MatrixView a, MatrixView b, GemmShape shape,
                GemmMode mode = GemmMode::kAssign);

// A part of c that has all of its rows or all of its columns.
struct GemmTile {
  int64_t row;     // its first row
  int64_t column;  // its first column
  GemmShape shape;
};

// Calls f(tile) in parallel for one tile of c per thread. c is cut along its columns or its rows,
// whichever are more.
//
// It is never cut along `inner`, so an element is summed in the same order for any number of
// threads. Exceptions are shapes for which oneDNN uses other code for a tile than for the whole
// (about 1 in 1000). oneDNN's own division among threads reaches 81 to 97 % of this speed for the
// products of GPT-2 on two cores.
template <typename F>
void ForEachTile(const GemmShape& shape, F f) {
  const bool by_columns = shape.columns >= shape.rows;
  const int64_t n = by_columns ? shape.columns : shape.rows;
  constexpr int64_t kUnit = 48;           // three registers of oneDNN's code
  constexpr int64_t kProducts = 1 << 19;  // about 6 us: worth the wake-up of another thread
  const int64_t products = shape.rows * shape.columns * shape.inner;
  const int64_t units = std::max<int64_t>(1, n / kUnit);
  const int64_t units_per_piece =
      std::clamp<int64_t>(kProducts * units / std::max<int64_t>(products, 1), 1, units);
  ParallelFor(units, units_per_piece, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kUnit;
    const int64_t size = (end == units ? n : end * kUnit) - first;
    f(by_columns ? GemmTile{0, first, {shape.rows, size, shape.inner}}
                 : GemmTile{first, 0, {size, shape.columns, shape.inner}});
  });
}

// Computes what SerialGemm() computes, on all threads.
void Gemm(float* c, int64_t c_stride, MatrixView a, MatrixView b, GemmShape shape,
          GemmMode mode = GemmMode::kAssign);

}  // namespace muster::kernels
