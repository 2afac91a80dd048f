#include "kernels/gru.h"

#include <algorithm>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/recurrence.h"
#include "kernels/elementwise.h"

namespace muster::kernels {
namespace {

// One direction's part of the state: gates f32[B, T, 3H], and the values that the reset gates
// multiply, f32[B, T, H].
template <typename T>
struct State {
  State(T* all, const RecurrentShape& s, int64_t direction)
      : gates(all + direction * s.batch * s.time * 4 * s.hidden),
        candidates(gates + s.batch * s.time * 3 * s.hidden) {}

  T* gates;
  T* candidates;
};

}  // namespace

int64_t GruStateFloats(const RecurrentShape& s) {
  return s.directions * s.batch * s.time * 4 * s.hidden;
}

// The workspace holds the products with h of one step, [B, 3H].
int64_t GruWorkspaceFloats(const RecurrentShape& s) { return s.batch * 3 * s.hidden; }

// The workspace holds dgates and dproducts [B, T, 3H], previous h [B, T, H], dh [B, H].
int64_t GruGradWorkspaceFloats(const RecurrentShape& s) {
  return s.batch * s.time * 7 * s.hidden + s.batch * s.hidden;
}

void Gru(float* y, float* h, float* state, const float* x, const float* w, const float* r,
         const float* bias, const float* h0, float* workspace, const RecurrentShape& s) {
  const int64_t hidden = s.hidden, gates = 3 * hidden;
  for (int64_t d = 0; d < s.directions; ++d) {
    const Direction direction(s, d);
    const State<float> kept(state, s, d);
    const MatrixView recurrent{r + d * gates * hidden, hidden};
    Gemm(kept.gates, gates, {x, s.inputs}, MatrixView{w + d * gates * s.inputs, s.inputs}.T(),
         {s.batch * s.time, gates, s.inputs});
    for (int64_t step = 0; step < s.time; ++step) {
      const int64_t t = direction.TimeOf(step);
      const Hidden before = direction.Previous(y, h0, step);
      if (before.data != nullptr) {
        Gemm(workspace, gates, {before.data, before.stride}, recurrent.T(),
             {s.batch, gates, hidden});
      } else {
        std::fill_n(workspace, s.batch * gates, 0.0f);
      }
      ForEachSample(s.batch, gates, [&](int64_t b) {
        const int64_t row = b * s.time + t;
        Recurrent().gru(y + direction.OutputOffset(step) + b * direction.sample_stride(),
                        kept.gates + row * gates, kept.candidates + row * hidden,
                        workspace + b * gates, bias + d * 2 * gates, before.Of(b), hidden);
      });
    }
    const Hidden last = direction.Previous(y, h0, s.time);
    for (int64_t b = 0; b < s.batch; ++b) {
      std::copy_n(last.Of(b), hidden, direction.Last(h) + b * hidden);
    }
  }
}

void GruGrad(const GruGradients& gradients, const float* dy, const float* dh, const float* x,
             const float* w, const float* r, const float* y, const float* state, const float* h0,
             float* workspace, const RecurrentShape& s) {
  const int64_t hidden = s.hidden, gates = 3 * hidden, rows = s.batch * s.time;
  float* dgates = workspace;
  float* dproducts = dgates + rows * gates;
  float* previous = dproducts + rows * gates;
  float* by_h = previous + rows * hidden;
  for (int64_t d = 0; d < s.directions; ++d) {
    const Direction direction(s, d);
    const State<const float> kept(state, s, d);
    const MatrixView inputs{w + d * gates * s.inputs, s.inputs};
    const MatrixView recurrent{r + d * gates * hidden, hidden};
    if (dh == nullptr) {
      std::fill_n(by_h, s.batch * hidden, 0.0f);
    } else {
      std::copy_n(direction.Last(dh), s.batch * hidden, by_h);
    }
    for (int64_t step = s.time - 1; step >= 0; --step) {
      const int64_t t = direction.TimeOf(step);
      const Hidden before = direction.Previous(y, h0, step);
      const Hidden from_above{dy == nullptr ? nullptr : dy + direction.OutputOffset(step),
                              direction.sample_stride()};
      ForEachSample(s.batch, gates, [&](int64_t b) {
        const int64_t row = b * s.time + t;
        Recurrent().gru_grad(dgates + row * gates, dproducts + row * gates, by_h + b * hidden,
                             from_above.Of(b), kept.gates + row * gates,
                             kept.candidates + row * hidden, before.Of(b), hidden);
      });
      if (step > 0 || gradients.dh0 != nullptr) {
        Gemm(by_h, hidden, {dproducts + t * gates, s.time * gates}, recurrent,
             {s.batch, hidden, gates}, GemmMode::kAccumulate);
      }
    }
    if (gradients.dh0 != nullptr) {
      std::copy_n(by_h, s.batch * hidden, direction.Last(gradients.dh0));
    }

    const MatrixView by_x{dgates, gates}, by_products{dproducts, gates};
    direction.GatherPrevious(previous, y, h0);
    Gemm(gradients.dx, s.inputs, by_x, inputs, {rows, s.inputs, gates},
         d == 0 ? GemmMode::kAssign : GemmMode::kAccumulate);
    Gemm(gradients.dw + d * gates * s.inputs, s.inputs, by_x.T(), {x, s.inputs},
         {gates, s.inputs, rows});
    Gemm(gradients.dr + d * gates * hidden, hidden, by_products.T(), {previous, hidden},
         {gates, hidden, rows});
    SumRows(gradients.dbias + d * 2 * gates, dgates, rows, gates);
    SumRows(gradients.dbias + d * 2 * gates + gates, dproducts, rows, gates);
  }
}

}  // namespace muster::kernels
