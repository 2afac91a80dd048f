// What CUDA hands out, returned when its owner goes.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"

namespace muster {

// Whether the environment's CUDA_LAUNCH_BLOCKING makes every launch wait for its kernel.
bool CudaLaunchesWait();

// A GPU does not come to the end of its work: from now on this process returns nothing that CUDA
// handed out. That would wait for the GPU, for ever, or take memory from under it.
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

// On the current device. RESOURCE_EXHAUSTED, reason "MEMORY_EXHAUSTED", when there is not as much.
// `what` begins the message: "activations of 8 samples".
absl::StatusOr<CudaMemory> AllocateCudaMemory(int64_t bytes, absl::string_view what);

absl::StatusOr<CudaStream> CreateCudaStream();
// For order and waiting, not for times; who waits for it sleeps.
absl::StatusOr<CudaEvent> CreateCudaEvent();

}  // namespace muster
