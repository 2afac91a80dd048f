// Runs a graph on the CPU.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "lib/engine/executor.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// CreateExecutor() for a device of kind kCpu. It reads f32 parameters in the caller's memory.
// Without micro-batches it also writes f32 gradients there. Neither is copied.
absl::StatusOr<std::unique_ptr<Executor>> CreateCpuExecutor(const v1::Graph& graph,
                                                            const Executor::Options& options);

// MemoryNeedOf() for a device of kind kCpu.
absl::StatusOr<Executor::MemoryNeed> PlanCpuMemory(const v1::Graph& graph,
                                                   const Executor::Options& options);

}  // namespace muster
