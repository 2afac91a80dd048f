// Tensors with a byte an element become floats, CUDA twin of kernels/byte_values.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace muster::kernels::cuda {

// y[i] = values[x[i]] for i in [0, n). All on the device and 16-byte aligned; `values` are 256
// floats. Asynchronous on `stream`; the launch error, if any, is returned. n == 0 is a no-op.
// Bandwidth-bound: 5 n bytes.
cudaError_t DecodeBytes(float* y, const uint8_t* x, int64_t n, const float* values,
                        cudaStream_t stream);

}  // namespace muster::kernels::cuda
