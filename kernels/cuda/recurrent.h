// The pointwise parts of LSTM and GRU, one time step of one direction at a time; products with the
// weights are matrix products between them (kernels/cuda/matmul.h). As torch.nn.LSTM and GRU.
//
//   inputs   f32[B, T, G H]   w x of all steps, without bias; G gates: 4 (i, f, g, o) or 3 (r, z,
//   n) hidden   f32[B, G H]      r h of the step before, without bias; null: zeros bias     T[2, G
//   H]        of w, then of r y, dy    T[B, T, y_row]   of which H columns from `column` are this
//   direction's state    f32[T, B, 5 H]   LSTM: activated gates and c; GRU: r, z, n, r h + bias,
//   and h: it goes from
//                             step to step unrounded but for the product with r
//
// Device memory. Asynchronous on `stream`; the launch error, if any, is returned. Each step waits
// for the one before: bound by latency.
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
  int64_t before;  // the one that this direction came from, or -1
  Type type;       // T
};

inline int64_t RecurrentStateFloats(int64_t batch, int64_t time, int64_t hidden) {
  return 5 * batch * time * hidden;
}

// h0, c0 T[B, H]: before the first step; null: zeros. h and c T[B, H] take this step's values where
// not null (the last step).
cudaError_t LstmStep(void* y, void* h, void* c, float* state, const float* inputs,
                     const float* hidden, const void* bias, const void* c0,
                     const RecurrentStep& step, cudaStream_t stream);
cudaError_t GruStep(void* y, void* h, float* state, const float* inputs, const float* hidden,
                    const void* bias, const void* h0, const RecurrentStep& step,
                    cudaStream_t stream);

// One step back in time. `carried` f32[B, H]: what the step after sent to h, through r (null at the
// first); `carried_through` f32[B, H]: what it sent to c (LSTM), or to h past r (GRU), read and
// replaced, zeros at first. dy, or null. dh, dc T[B, H]: of the outputs h and c, at the first or
// null. The gates' gradients: dgates T[B, T, G H], and for GRU dhidden T[B, T, G H] as well, the
// gradients of r h + bias (of w x + bias in dgates).
cudaError_t LstmStepGrad(void* dgates, float* carried_through, const float* carried, const void* dy,
                         const void* dh, const void* dc, const float* state, const void* c0,
                         const RecurrentStep& step, cudaStream_t stream);
cudaError_t GruStepGrad(void* dgates, void* dhidden, float* carried_through, const float* carried,
                        const void* dy, const void* dh, const float* state, const void* h0,
                        const RecurrentStep& step, cudaStream_t stream);

// before T[B, T, H]: for every step the h that it started from. `first` and `direction`: the step
// that starts from h0, and +1 or -1.
cudaError_t ShiftHidden(void* before, const void* y, const void* h0, const RecurrentStep& shape,
                        int64_t first, int64_t direction, cudaStream_t stream);

// to T[n] = a (or nothing) + b f32[n] (or nothing).
cudaError_t AddCarried(void* to, const float* a, const float* b, Type type, int64_t n,
                       cudaStream_t stream);

}  // namespace muster::kernels::cuda
