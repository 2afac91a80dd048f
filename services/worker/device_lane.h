// One device of a worker and what it computes: its part of every batch and of the held-out samples.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "lib/collective/gradient_reduction.h"
#include "lib/data/dataset.h"
#include "lib/engine/device.h"
#include "lib/engine/executor.h"
#include "proto/muster/v1/graph.pb.h"
#include "services/worker/gradient_exchange.h"
#include "services/worker/tensor_slab.h"

namespace muster {

// Contiguous numbers [first, first + count).
struct SampleRange {
  int64_t first = 0;
  int64_t count = 0;
};

// Part `index` of `range` cut into `parts` as even as possible, larger ones first.
SampleRange PartOf(SampleRange range, int index, int parts);

// Bytes of one sample of the graph's input `name` ("input", "target").
int64_t SampleBytes(const v1::Graph& graph, const std::string& name);

// Thread-compatible; its methods are called on the device's thread.
class DeviceLane : private ParameterFlow {
 public:
  struct Options {
    int index = 0;       // among the worker's devices
    std::string device;  // "cpu", see Device::Create
    int threads = 1;
    std::shared_ptr<const v1::Graph> forward;
    std::shared_ptr<const v1::Graph> training;  // `forward`, differentiated
    SampleRange samples;                        // of the worker's share of a batch
    SampleRange evaluation;                     // of all held-out samples
  };
  static absl::StatusOr<std::unique_ptr<DeviceLane>> Create(Options options);

  Device& device() { return *device_; }
  int64_t samples() const { return options_.samples.count; }
  int64_t evaluation_samples() const { return options_.evaluation.count; }

  // Plans the executors over the parameters' memory (see Executor::Options) and allocates the
  // gradients. Once, before the rest. Errors as in Executor::Create and TensorSlab::Create.
  absl::Status Build(absl::Span<float* const> parameters);
  const TensorSlab& gradients() const { return *gradients_; }

  // Where a training step's parameters come from and its gradients go.
  void Connect(GradientExchange* exchange, GradientReduction* reduction);

  struct StepResult {
    double loss = 0;      // mean over the lane's samples
    absl::Duration wait;  // for parameters
  };
  // Forward and backward of `step` over rows `samples` of the worker's share, given as a whole.
  // Waits for parameters of version `step`, contributes gradients of (samples / batch_size) * mean
  // loss. ABORTED when interrupted while waiting: then nothing of the step will be pushed.
  absl::StatusOr<StepResult> Step(int64_t step, int64_t batch_size,
                                  absl::Span<const std::byte> input,
                                  absl::Span<const std::byte> target);

  struct EvaluationSums {
    double loss = 0;     // mean loss of each sample, summed
    double correct = 0;  // samples; the mean over its targets where a sample has several
  };
  // Over its held-out samples with the parameters as they are. CANCELLED once `cancelled`.
  absl::StatusOr<EvaluationSums> Evaluate(const Dataset& dataset,
                                          const std::atomic<bool>& cancelled);

 private:
  explicit DeviceLane(Options options) : options_(std::move(options)) {}

  absl::StatusOr<std::unique_ptr<Executor>> MakeEvaluator(absl::Span<float* const> parameters,
                                                          int64_t samples);
  absl::Status AwaitParameter(int p) override;
  absl::Status GradientReady(int p) override;

  const Options options_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<TensorSlab> gradients_;
  std::unique_ptr<Executor> trainer_;
  std::unique_ptr<Executor> evaluator_;       // of as many samples as a training step
  std::unique_ptr<Executor> rest_evaluator_;  // of the incomplete last batch; may be null
  GradientExchange* exchange_ = nullptr;
  GradientReduction* reduction_ = nullptr;
  int64_t step_ = 0;
  absl::Duration wait_;
};

}  // namespace muster
