// Decodes tensors of one byte per element into floats. CUDA twin of kernels/byte_values.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace muster::kernels::cuda {

// y[i] = tables[i / plane % channels][x[i]] for i in [0, n).
//
//   y, x      device, f32[n] and u8[n], 16-byte aligned
//   tables    device, f32[channels, 256]
//   plane     elements of a channel; any number, >= 1, if channels == 1. Otherwise n is a multiple
//   of
//             channels * plane.
//
// Asynchronous on `stream`. Returns the launch error, if any. n == 0 is a no-op.
// Bandwidth-bound: 5 n bytes.
cudaError_t DecodeBytes(float* y, const uint8_t* x, int64_t n, const float* tables,
                        int64_t channels, int64_t plane, cudaStream_t stream);

}  // namespace muster::kernels::cuda
