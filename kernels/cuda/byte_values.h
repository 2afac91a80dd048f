// Decodes tensors of one byte per element into floats. CUDA twin of kernels/byte_values.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace muster::kernels::cuda {

// y[i] = values[x[i]] for i in [0, n). All in device memory, 16-byte aligned; `values` has 256
// floats. Asynchronous on `stream`. Returns the launch error, if any. n == 0 is a no-op.
// Bandwidth-bound: 5 n bytes.
cudaError_t DecodeBytes(float* y, const uint8_t* x, int64_t n, const float* values,
                        cudaStream_t stream);

}  // namespace muster::kernels::cuda
