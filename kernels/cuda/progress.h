// Shows the host how far a stream has come, even after the GPU has failed.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace muster::kernels::cuda {

// Sets *progress to `value` after everything before it in the stream has finished. `progress` is
// page-locked host memory. Asynchronous on `stream`. Returns the launch error, if any. One thread
// writes one word over PCIe: about two microseconds, an estimate.
cudaError_t ShowProgress(int64_t* progress, int64_t value, cudaStream_t stream);

}  // namespace muster::kernels::cuda
