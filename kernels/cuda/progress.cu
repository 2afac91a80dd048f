#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/progress.h"

namespace muster::kernels::cuda {
namespace {

__global__ void ShowProgressKernel(volatile int64_t* progress, int64_t value) { *progress = value; }

}  // namespace

cudaError_t ShowProgress(int64_t* progress, int64_t value, cudaStream_t stream) {
  return Launch(ShowProgressKernel, dim3(1), dim3(1), 0, stream, progress, value);
}

}  // namespace muster::kernels::cuda
