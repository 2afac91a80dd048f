// Runs a graph on a device: memory planned once from liveness, no allocation per step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "lib/engine/device.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// What a run waits for and announces. Called on the thread that runs.
class ParameterFlow {
 public:
  virtual ~ParameterFlow() = default;

  // Before the first node of a run that reads parameter `p`: returns once its values may be read.
  // An error ends the run.
  virtual absl::Status AwaitParameter(int p) = 0;

  // d loss / d parameter `p` is final in its memory, and no later node of this run reads the
  // parameter's values: they may be overwritten. Announced once per parameter of a differentiated
  // graph, as early as possible.
  virtual absl::Status GradientReady(int p) = 0;
};

// Thread-compatible. Several executors may share parameter memory while nobody writes it.
class Executor {
 public:
  struct Options {
    int64_t batch = 0;         // samples of a run
    Device* device = nullptr;  // outlives the executor
    // One pointer per parameter (index = parameter id), device f32[elements], owned by the caller,
    // 64-byte aligned.
    absl::Span<float* const> parameters;
    absl::Span<float* const> gradients;  // likewise; empty for a graph that was not differentiated
  };

  // INVALID_ARGUMENT when the graph does not check (see InferTypes) or an op has no kernel on the
  // device; RESOURCE_EXHAUSTED, reason "MEMORY_EXHAUSTED", when the activations do not fit.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(const v1::Graph& graph,
                                                          const Options& options);
  virtual ~Executor() = default;

  // Memory of a graph input, to be filled before Run(). On the host for a CPU device.
  virtual absl::Span<std::byte> input(absl::string_view name) = 0;

  // A tensor named in Graph.loss, logits or correct, after Run(). Valid until the next Run().
  virtual absl::Span<const float> output(absl::string_view name) const = 0;

  // One pass over all nodes. `loss_scale`: see lib/graph/ops.md. `flow` may be null: nothing is
  // waited for or announced. INVALID_ARGUMENT for data outside the model's range (a token id beyond
  // the vocabulary).
  virtual absl::Status Run(float loss_scale, ParameterFlow* flow) = 0;

  virtual int64_t arena_bytes() const = 0;  // activations and temporaries
};

}  // namespace muster
