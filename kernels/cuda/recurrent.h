// The pointwise parts of LSTM and GRU, one time step of one direction at a time. The caller
// computes the products with the weights in between (kernels/cuda/matmul.h). Same formulas as
// torch.nn.LSTM and GRU.
//
//   inputs   f32[B, T, G H]   w x of all steps, without bias
//                             G gates: 4 (i, f, g, o) or 3 (r, z, n)
//   hidden   f32[B, G H]      r h of the previous step, without bias; null: zeros
//   bias     T[2, G H]        of w, then of r
//   y, dy    T[B, T, y_row]   H columns from `column` on are this direction's
//   state    f32[T, B, 5 H]   LSTM: activated gates and c
//                             GRU: r, z, n, r h + bias, and h
//
// A GRU's h goes from step to step through the state, unrounded; only the product with r rounds it.
//
// Device memory. Asynchronous on `stream`. Returns the launch error, if any. Each step waits for
// the previous one: latency-bound.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/type.h"

namespace muster::kernels::cuda {

struct RecurrentStep {
  int64_t batch;   // B
  int64_t time;    // T
  int64_t hidden;  // H
  int64_t y_row;   // directions * H
  int64_t column;  // direction * H
  int64_t step;    // the time step, in [0, T)
  int64_t before;  // the previous step in this direction, or -1
  Type type;       // T
};

inline int64_t RecurrentStateFloats(int64_t batch, int64_t time, int64_t hidden) {
  return 5 * batch * time * hidden;
}

// h0 and c0, T[B, H], are the values before the first step; null: zeros. h and c, T[B, H], receive
// this step's values if they are not null (the last step).
cudaError_t LstmStep(void* y, void* h, void* c, float* state, const float* inputs,
                     const float* hidden, const void* bias, const void* c0,
                     const RecurrentStep& step, cudaStream_t stream);
cudaError_t GruStep(void* y, void* h, float* state, const float* inputs, const float* hidden,
                    const void* bias, const void* h0, const RecurrentStep& step,
                    cudaStream_t stream);

// One step back in time.
//
//   carried          f32[B, H]       gradient from the next step to h, through r; null at first
//   carried_through  f32[B, H]       its gradient to c (LSTM), or to h past r (GRU);
//                                    read and replaced, zeros at first
//   dy                               or null
//   dh, dc           T[B, H]         gradients of the outputs h and c; used at first, else null
//   dgates           T[B, T, G H]    receives the gradients of the gates (GRU: of w x + bias)
//   dhidden          T[B, T, G H]    GRU: receives the gradients of r h + bias
cudaError_t LstmStepGrad(void* dgates, float* carried_through, const float* carried, const void* dy,
                         const void* dh, const void* dc, const float* state, const void* c0,
                         const RecurrentStep& step, cudaStream_t stream);
cudaError_t GruStepGrad(void* dgates, void* dhidden, float* carried_through, const float* carried,
                        const void* dy, const void* dh, const float* state, const void* h0,
                        const RecurrentStep& step, cudaStream_t stream);

// before T[B, T, H] = the h from which each step starts. `first` is the step that starts from h0,
// `direction` is +1 or -1.
cudaError_t ShiftHidden(void* before, const void* y, const void* h0, const RecurrentStep& shape,
                        int64_t first, int64_t direction, cudaStream_t stream);

// to T[n] = a + b, both f32[n]; null stands for zeros.
cudaError_t AddCarried(void* to, const float* a, const float* b, Type type, int64_t n,
                       cudaStream_t stream);

}  // namespace muster::kernels::cuda
