// Gated recurrent unit over whole sequences, as torch.nn.GRU with batch_first, and its derivative.
// Row-major f32; no buffer aliases another. Results do not depend on the number of threads.
//   Source: Cho et al., "Learning phrase representations using RNN encoder-decoder", EMNLP 2014;
//   the bias inside the reset product as in cuDNN.
//
//   x, dx        f32[B, T, I]
//   w, dw        f32[D, 3H, I]    of the inputs; gates in the order r, z, n
//   r, dr        f32[D, 3H, H]    recurrent
//   bias, dbias  f32[D, 6H]       of w, then of r
//   y, dy        f32[B, T, D H]   the hidden states
//   h, dh        f32[D, B, H]     after the last time step in the direction's order
//   h0, dh0      f32[D, B, H]     before the first time step; null h0 means zeros
//   state        f32[GruStateFloats]   kept from forward to backward
//   workspace    scratch: f32[GruWorkspaceFloats] for Gru, f32[GruGradWorkspaceFloats] for GruGrad
#pragma once

#include <cstdint>

#include "kernels/recurrent_shape.h"

namespace muster::kernels {

int64_t GruStateFloats(const RecurrentShape& shape);
int64_t GruWorkspaceFloats(const RecurrentShape& shape);
int64_t GruGradWorkspaceFloats(const RecurrentShape& shape);

void Gru(float* y, float* h, float* state, const float* x, const float* w, const float* r,
         const float* bias, const float* h0, float* workspace, const RecurrentShape& shape);

struct GruGradients {
  float* dx;
  float* dw;
  float* dr;
  float* dbias;
  float* dh0 = nullptr;  // null: not computed
};

// dy and dh are the gradients of the two outputs; null means zeros.
void GruGrad(const GruGradients& gradients, const float* dy, const float* dh, const float* x,
             const float* w, const float* r, const float* y, const float* state, const float* h0,
             float* workspace, const RecurrentShape& shape);

}  // namespace muster::kernels
