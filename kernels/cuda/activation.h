// CUDA twins of kernels/activation.h: the same contracts on device memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace muster::kernels::cuda {

// y, x, dx, dy: device, f32[n]; each output may be one of the inputs. Asynchronous on `stream`.
// Returns the launch error, if any. n == 0 is a no-op. Read n (gradients: 2n) and write n floats:
// bandwidth-bound.
cudaError_t Relu(float* y, const float* x, int64_t n, cudaStream_t stream);
cudaError_t ReluGrad(float* dx, const float* dy, const float* y, int64_t n, cudaStream_t stream);
cudaError_t Gelu(float* y, const float* x, int64_t n, cudaStream_t stream);
cudaError_t GeluGrad(float* dx, const float* dy, const float* x, int64_t n, cudaStream_t stream);

}  // namespace muster::kernels::cuda
