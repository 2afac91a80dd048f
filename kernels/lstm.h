// Long short-term memory over whole sequences, as torch.nn.LSTM with batch_first, and its
// derivative. Row-major f32; no buffer aliases another. Results do not depend on the number of
// threads.
//   Source: Hochreiter, Schmidhuber, "Long short-term memory", Neural Computation 9(8), 1997.
//
//   x, dx        f32[B, T, I]
//   w, dw        f32[D, 4H, I]    of the inputs; gates in the order i, f, g, o
//   r, dr        f32[D, 4H, H]    recurrent
//   bias, dbias  f32[D, 8H]       of w, then of r
//   y, dy        f32[B, T, D H]   the hidden states
//   h, c, dh, dc      f32[D, B, H]   after the last time step in the direction's order
//   h0, c0, dh0, dc0  f32[D, B, H]   before the first time step; null h0 or c0 means zeros
//   state        f32[LstmStateFloats]   kept from forward to backward
//   workspace    f32[LstmGradWorkspaceFloats], scratch
//
// The products with x of all time steps are one matrix product. Those with the state are one per
// step, of 8 B H² operations, and bound the speed.
#pragma once

#include <cstdint>

#include "kernels/recurrent_shape.h"

namespace muster::kernels {

int64_t LstmStateFloats(const RecurrentShape& shape);
int64_t LstmGradWorkspaceFloats(const RecurrentShape& shape);

void Lstm(float* y, float* h, float* c, float* state, const float* x, const float* w,
          const float* r, const float* bias, const float* h0, const float* c0,
          const RecurrentShape& shape);

struct LstmGradients {
  float* dx;
  float* dw;
  float* dr;
  float* dbias;
  float* dh0 = nullptr;  // null dh0 or dc0: not computed
  float* dc0 = nullptr;
};

// dy, dh and dc are the gradients of the three outputs; null means zeros.
void LstmGrad(const LstmGradients& gradients, const float* dy, const float* dh, const float* dc,
              const float* x, const float* w, const float* r, const float* y, const float* state,
              const float* h0, const float* c0, float* workspace, const RecurrentShape& shape);

}  // namespace muster::kernels
