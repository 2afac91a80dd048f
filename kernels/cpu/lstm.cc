#include "kernels/lstm.h"

#include <algorithm>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/recurrence.h"
#include "kernels/elementwise.h"

namespace muster::kernels {
namespace {

// One direction's part of the state: gates f32[B, T, 4H] and cells f32[B, T, H].
template <typename T>
struct State {
  State(T* all, const RecurrentShape& s, int64_t direction)
      : gates(all + direction * s.batch * s.time * 5 * s.hidden),
        cells(gates + s.batch * s.time * 4 * s.hidden) {}

  T* gates;
  T* cells;
};

// Returns c before a step.
Hidden PreviousCell(const float* cells, const float* c0, const Direction& direction,
                    const RecurrentShape& s, int64_t step) {
  if (step == 0) return {direction.Last(c0), s.hidden};
  return {cells + direction.TimeOf(step - 1) * s.hidden, s.time * s.hidden};
}

}  // namespace

int64_t LstmStateFloats(const RecurrentShape& s) {
  return s.directions * s.batch * s.time * 5 * s.hidden;
}

// The workspace holds dgates [B, T, 4H], previous h [B, T, H], dh and dc [B, H].
int64_t LstmGradWorkspaceFloats(const RecurrentShape& s) {
  return s.batch * s.time * 5 * s.hidden + 2 * s.batch * s.hidden;
}

void Lstm(float* y, float* h, float* c, float* state, const float* x, const float* w,
          const float* r, const float* bias, const float* h0, const float* c0,
          const RecurrentShape& s) {
  const int64_t hidden = s.hidden, gates = 4 * hidden;
  for (int64_t d = 0; d < s.directions; ++d) {
    const Direction direction(s, d);
    const State<float> kept(state, s, d);
    const MatrixView recurrent{r + d * gates * hidden, hidden};
    Gemm(kept.gates, gates, {x, s.inputs}, MatrixView{w + d * gates * s.inputs, s.inputs}.T(),
         {s.batch * s.time, gates, s.inputs});
    for (int64_t step = 0; step < s.time; ++step) {
      const int64_t t = direction.TimeOf(step);
      const Hidden before = direction.Previous(y, h0, step);
      const Hidden cell_before = PreviousCell(kept.cells, c0, direction, s, step);
      float* products = kept.gates + t * gates;
      if (before.data != nullptr) {
        Gemm(products, s.time * gates, {before.data, before.stride}, recurrent.T(),
             {s.batch, gates, hidden}, GemmMode::kAccumulate);
      }
      ForEachSample(s.batch, gates, [&](int64_t b) {
        Recurrent().lstm(y + direction.OutputOffset(step) + b * direction.sample_stride(),
                         kept.cells + (b * s.time + t) * hidden, products + b * s.time * gates,
                         bias + d * 2 * gates, cell_before.Of(b), hidden);
      });
    }
    const Hidden last = direction.Previous(y, h0, s.time);
    const Hidden last_cell = PreviousCell(kept.cells, c0, direction, s, s.time);
    for (int64_t b = 0; b < s.batch; ++b) {
      std::copy_n(last.Of(b), hidden, direction.Last(h) + b * hidden);
      std::copy_n(last_cell.Of(b), hidden, direction.Last(c) + b * hidden);
    }
  }
}

void LstmGrad(const LstmGradients& gradients, const float* dy, const float* dh, const float* dc,
              const float* x, const float* w, const float* r, const float* y, const float* state,
              const float* h0, const float* c0, float* workspace, const RecurrentShape& s) {
  const int64_t hidden = s.hidden, gates = 4 * hidden, rows = s.batch * s.time;
  float* dgates = workspace;
  float* previous = dgates + rows * gates;
  float* by_h = previous + rows * hidden;
  float* by_c = by_h + s.batch * hidden;
  const int64_t last_size = s.batch * hidden;
  for (int64_t d = 0; d < s.directions; ++d) {
    const Direction direction(s, d);
    const State<const float> kept(state, s, d);
    const MatrixView inputs{w + d * gates * s.inputs, s.inputs};
    const MatrixView recurrent{r + d * gates * hidden, hidden};
    auto start = [&](float* to, const float* from) {
      if (from == nullptr) {
        std::fill_n(to, last_size, 0.0f);
      } else {
        std::copy_n(direction.Last(from), last_size, to);
      }
    };
    start(by_h, dh);
    start(by_c, dc);
    for (int64_t step = s.time - 1; step >= 0; --step) {
      const int64_t t = direction.TimeOf(step);
      const Hidden cell_before = PreviousCell(kept.cells, c0, direction, s, step);
      const Hidden from_above{dy == nullptr ? nullptr : dy + direction.OutputOffset(step),
                              direction.sample_stride()};
      ForEachSample(s.batch, gates, [&](int64_t b) {
        const int64_t row = b * s.time + t;
        Recurrent().lstm_grad(dgates + row * gates, by_c + b * hidden, by_h + b * hidden,
                              from_above.Of(b), kept.gates + row * gates, kept.cells + row * hidden,
                              cell_before.Of(b), hidden);
      });
      if (step > 0 || gradients.dh0 != nullptr) {
        Gemm(by_h, hidden, {dgates + t * gates, s.time * gates}, recurrent,
             {s.batch, hidden, gates});
      }
    }
    if (gradients.dh0 != nullptr) std::copy_n(by_h, last_size, direction.Last(gradients.dh0));
    if (gradients.dc0 != nullptr) std::copy_n(by_c, last_size, direction.Last(gradients.dc0));

    const MatrixView all{dgates, gates};
    direction.GatherPrevious(previous, y, h0);
    Gemm(gradients.dx, s.inputs, all, inputs, {rows, s.inputs, gates},
         d == 0 ? GemmMode::kAssign : GemmMode::kAccumulate);
    Gemm(gradients.dw + d * gates * s.inputs, s.inputs, all.T(), {x, s.inputs},
         {gates, s.inputs, rows});
    Gemm(gradients.dr + d * gates * hidden, hidden, all.T(), {previous, hidden},
         {gates, hidden, rows});
    float* dbias = gradients.dbias + d * 2 * gates;
    SumRows(dbias, dgates, rows, gates);
    std::copy_n(dbias, gates, dbias + gates);
  }
}

}  // namespace muster::kernels
