#include "kernels/linear.h"

#include <algorithm>

#include "kernels/activation.h"
#include "kernels/cpu/gemm.h"
#include "kernels/elementwise.h"

namespace muster::kernels {
namespace {

// Computes y = x wᵀ + bias by tiles. Calls finish(offset in y, n) for every row of a tile while it
// is still in the cache.
template <typename F>
void LinearThen(float* y, const float* x, const float* w, const float* bias, LinearShape shape,
                F finish) {
  const int64_t outputs = shape.outputs;
  const MatrixView a{x, shape.inputs}, b{w, shape.inputs, /*transposed=*/true};
  ForEachTile({shape.rows, outputs, shape.inputs}, [&](const GemmTile& tile) {
    const int64_t corner = tile.row * outputs + tile.column;
    const int64_t end = corner + tile.shape.rows * outputs;
    if (bias != nullptr) {
      for (int64_t at = corner; at < end; at += outputs) {
        std::copy_n(bias + tile.column, tile.shape.columns, y + at);
      }
    }
    SerialGemm(y + corner, outputs, a.FromRow(tile.row), b.FromColumn(tile.column), tile.shape,
               bias == nullptr ? GemmMode::kAssign : GemmMode::kAccumulate);
    for (int64_t at = corner; at < end; at += outputs) finish(at, tile.shape.columns);
  });
}

}  // namespace

void Linear(float* y, const float* x, const float* w, const float* bias, LinearShape shape) {
  LinearThen(y, x, w, bias, shape, [](int64_t, int64_t) {});
}

void LinearRelu(float* y, const float* x, const float* w, const float* bias, LinearShape shape) {
  LinearThen(y, x, w, bias, shape, [y](int64_t at, int64_t n) { Relu(y + at, y + at, n); });
}

void LinearGelu(float* y, float* preactivation, const float* x, const float* w, const float* bias,
                LinearShape shape, GeluKind kind) {
  LinearThen(preactivation, x, w, bias, shape, [=](int64_t at, int64_t n) {
    (kind == GeluKind::kExact ? GeluExact : Gelu)(y + at, preactivation + at, n);
  });
}

void LinearGradInput(float* dx, const float* dy, const float* w, LinearShape shape) {
  const auto [rows, inputs, outputs] = shape;
  Gemm(dx, inputs, {dy, outputs}, {w, inputs}, {rows, inputs, outputs});
}

void LinearGradWeight(float* dw, const float* dy, const float* x, LinearShape shape) {
  const auto [rows, inputs, outputs] = shape;
  Gemm(dw, inputs, MatrixView{dy, outputs}.T(), {x, inputs}, {outputs, inputs, rows});
}

void LinearGradBias(float* db, const float* dy, LinearShape shape) {
  SumRows(db, dy, shape.rows, shape.outputs);
}

}  // namespace muster::kernels
