// CUDA resources that are released with their owner.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"

namespace muster {

// Returns whether CUDA_LAUNCH_BLOCKING in the environment makes every launch wait for its kernel.
bool CudaLaunchesWait();

// Call if a GPU does not finish its work. From then on this process releases no CUDA resource,
// because a release would wait for the GPU forever or free memory that it still uses.
void KeepCudaResources();
bool CudaResourcesAreKept();

template <auto kDestroy>
struct CudaDestroyer {
  template <typename T>
  void operator()(T* handle) const {
    if (!CudaResourcesAreKept()) kDestroy(handle);
  }
};

using CudaStream = std::unique_ptr<CUstream_st, CudaDestroyer<cudaStreamDestroy>>;
using CudaEvent = std::unique_ptr<CUevent_st, CudaDestroyer<cudaEventDestroy>>;
using CudaGraph = std::unique_ptr<CUgraphExec_st, CudaDestroyer<cudaGraphExecDestroy>>;
using CublasHandle = std::unique_ptr<cublasLtContext, CudaDestroyer<cublasLtDestroy>>;
using CudnnHandle = std::unique_ptr<cudnnContext, CudaDestroyer<cudnnDestroy>>;

// 256-byte aligned.
using CudaMemory = std::unique_ptr<std::byte[], CudaDestroyer<cudaFree>>;

// Allocates memory on the current device. Returns RESOURCE_EXHAUSTED, reason "MEMORY_EXHAUSTED", if
// there is not enough. `what` begins the message: "activations of 8 samples".
absl::StatusOr<CudaMemory> AllocateCudaMemory(int64_t bytes, absl::string_view what);

absl::StatusOr<CudaStream> CreateCudaStream();
// Creates a stream with the highest priority: its blocks start before waiting blocks of others.
absl::StatusOr<CudaStream> CreateUrgentCudaStream();
// Creates an event for ordering and waiting, without timing. A thread that waits for it sleeps.
absl::StatusOr<CudaEvent> CreateCudaEvent();

}  // namespace muster
