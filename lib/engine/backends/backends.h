// Creates built-in devices by name. This is the only place of the engine that knows all of them.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "lib/engine/device.h"
#include "lib/engine/executor.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// Creates the device "cpu", "cpu:N" or "cuda:N" (the N-th GPU this process sees). `threads` (>= 1)
// is the number of threads on which a CPU device runs its kernels.
//
// Returns INVALID_ARGUMENT for another name. Returns UNAVAILABLE with the reason if there is no
// such GPU. Returns INTERNAL, reason "DEVICE_LOST", if this process had the GPU and lost it.
absl::StatusOr<std::unique_ptr<Device>> CreateDevice(absl::string_view name, int threads);

// Returns an executor of `graph`. Plans memory, chooses algorithms and compiles kernels now, so
// that the first Run() is as fast as the next.
//
// Returns INVALID_ARGUMENT if the graph is not valid (see InferTypes) or an op has no kernel on the
// device. Returns RESOURCE_EXHAUSTED, reason "MEMORY_EXHAUSTED", if the memory that it
// allocates does not fit: activations, and copies of parameters in another type.
absl::StatusOr<std::unique_ptr<Executor>> CreateExecutor(const v1::Graph& graph,
                                                         const Executor::Options& options);

// Returns the memory that a run would need on the device, without allocating it. Ignores
// `parameters` and `gradients` of the options. Returns INVALID_ARGUMENT like CreateExecutor().
absl::StatusOr<Executor::MemoryNeed> MemoryNeedOf(const v1::Graph& graph,
                                                  const Executor::Options& options);

}  // namespace muster
