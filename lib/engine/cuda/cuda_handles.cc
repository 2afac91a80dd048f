#include "lib/engine/cuda/cuda_handles.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "lib/engine/cuda/cuda_kernels.h"
#include "lib/engine/host_memory.h"
#include "lib/status/status.h"

namespace muster {
namespace {

std::atomic<bool> resources_are_kept = false;

}  // namespace

bool CudaLaunchesWait() {
  const char* wait = std::getenv("CUDA_LAUNCH_BLOCKING");
  return wait != nullptr && std::atoi(wait) != 0;
}

void KeepCudaResources() { resources_are_kept = true; }
bool CudaResourcesAreKept() { return resources_are_kept; }

absl::StatusOr<CudaMemory> AllocateCudaMemory(int64_t bytes, absl::string_view what) {
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, static_cast<size_t>(std::max<int64_t>(bytes, 1)));
  if (error == cudaSuccess) return CudaMemory(static_cast<std::byte*>(memory));
  if (error != cudaErrorMemoryAllocation) return StatusOf(error);
  cudaGetLastError();  // clear the error, so that the next call does not return it
  size_t available = 0, total = 0;
  RETURN_IF_ERROR(StatusOf(cudaMemGetInfo(&available, &total)));
  return MemoryExhausted(what, bytes, "the GPU's memory", static_cast<int64_t>(available));
}

absl::StatusOr<CudaStream> CreateCudaStream() {
  cudaStream_t stream;
  RETURN_IF_ERROR(StatusOf(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)));
  return CudaStream(stream);
}

absl::StatusOr<CudaStream> CreateUrgentCudaStream() {
  int lowest = 0, highest = 0;
  RETURN_IF_ERROR(StatusOf(cudaDeviceGetStreamPriorityRange(&lowest, &highest)));
  cudaStream_t stream;
  RETURN_IF_ERROR(StatusOf(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest)));
  return CudaStream(stream);
}

absl::StatusOr<CudaEvent> CreateCudaEvent() {
  cudaEvent_t event;
  RETURN_IF_ERROR(
      StatusOf(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync)));
  return CudaEvent(event);
}

}  // namespace muster
