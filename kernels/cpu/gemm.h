// Matrix products for the CPU kernels.
#pragma once

#include <cstdint>

namespace muster::kernels {

// A row-major matrix inside a larger one: element (r, c) is data[r * stride + c], or of its
// transpose.
struct MatrixView {
  const float* data;
  int64_t stride;
  bool transposed = false;

  MatrixView T() const { return {data, stride, !transposed}; }
};

struct GemmShape {
  int64_t rows;     // of a and c
  int64_t columns;  // of b and c
  int64_t inner;    // columns of a, rows of b
};

enum class GemmMode { kAssign, kAccumulate };

// c = a b, or c += a b. Row `r` of c starts at c + r * c_stride.
//
// oneDNN's sgemm: it picks its code by the processor's features. Debian's OpenBLAS picks by model
// number and falls back to SSE2 code on processors newer than itself, five times slower.
void Gemm(float* c, int64_t c_stride, MatrixView a, MatrixView b, GemmShape shape,
          GemmMode mode = GemmMode::kAssign);

}  // namespace muster::kernels
