#include "kernels/linear.h"

#include <algorithm>

#include "kernels/cpu/gemm.h"
#include "kernels/elementwise.h"

namespace muster::kernels {

void Linear(float* y, const float* x, const float* w, const float* bias, LinearShape shape) {
  const auto [rows, inputs, outputs] = shape;
  const MatrixView weights = MatrixView{w, inputs}.T();
  if (bias == nullptr) {
    Gemm(y, outputs, {x, inputs}, weights, {rows, outputs, inputs});
    return;
  }
  for (int64_t r = 0; r < rows; ++r) std::copy_n(bias, outputs, y + r * outputs);
  Gemm(y, outputs, {x, inputs}, weights, {rows, outputs, inputs}, GemmMode::kAccumulate);
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
