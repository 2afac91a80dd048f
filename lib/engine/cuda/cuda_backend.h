// The engine's interface to CUDA, whether or not it is built in. Without the toolkit every function
// returns UNAVAILABLE.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "lib/engine/device.h"
#include "lib/engine/executor.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// Returns the number of GPUs that this process sees, > 0. Returns UNAVAILABLE with the reason if
// there is none, or if cuBLASLt or cuDNN cannot be loaded.
absl::StatusOr<int> CountCudaDevices();

// Creates the device of visible GPU `number`. Returns UNAVAILABLE with the reason if there is none.
absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(int number);

// CreateExecutor() for a device of kind kCuda.
absl::StatusOr<std::unique_ptr<Executor>> CreateCudaExecutor(const v1::Graph& graph,
                                                             const Executor::Options& options);

// MemoryNeedOf() for a device of kind kCuda.
absl::StatusOr<Executor::MemoryNeed> PlanCudaMemory(const v1::Graph& graph,
                                                    const Executor::Options& options);

}  // namespace muster
