// What the engine asks of CUDA, whether or not it is built in: without the toolkit every answer is
// UNAVAILABLE.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "lib/engine/device.h"
#include "lib/engine/executor.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// How many GPUs this process sees, > 0. UNAVAILABLE with the reason when none, or when cuBLASLt or
// cuDNN cannot be loaded.
absl::StatusOr<int> CountCudaDevices();

// GPU `number` of those visible; UNAVAILABLE with the reason when there is none such.
absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(int number);

// CreateExecutor() for a device of kind kCuda.
absl::StatusOr<std::unique_ptr<Executor>> CreateCudaExecutor(const v1::Graph& graph,
                                                             const Executor::Options& options);

// MemoryNeedOf() for a device of kind kCuda.
absl::StatusOr<Executor::MemoryNeed> PlanCudaMemory(const v1::Graph& graph,
                                                    const Executor::Options& options);

}  // namespace muster
