// The devices that are built in, by name: the one place of the engine that knows them all.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "lib/engine/device.h"
#include "lib/engine/executor.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// "cpu", "cpu:N" or "cuda:N" (the N-th GPU this process sees). INVALID_ARGUMENT for another name,
// UNAVAILABLE with the reason where there is no such GPU; INTERNAL, reason "DEVICE_LOST", where
// this process had it and lost it. `threads`: of the math libraries on a CPU device (>= 1).
absl::StatusOr<std::unique_ptr<Device>> CreateDevice(absl::string_view name, int threads);

// Plans memory, chooses algorithms, compiles kernels: the first Run() is no slower than the next.
// INVALID_ARGUMENT when the graph does not check (see InferTypes) or an op has no kernel on the
// device; RESOURCE_EXHAUSTED, reason "MEMORY_EXHAUSTED", when the activations do not fit.
absl::StatusOr<std::unique_ptr<Executor>> CreateExecutor(const v1::Graph& graph,
                                                         const Executor::Options& options);

// What a run would need of the device, without taking it; `parameters` and `gradients` of the
// options are not looked at. INVALID_ARGUMENT as CreateExecutor().
absl::StatusOr<Executor::MemoryNeed> MemoryNeedOf(const v1::Graph& graph,
                                                  const Executor::Options& options);

}  // namespace muster
