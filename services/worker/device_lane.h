// One device of a worker and what it computes: its part of every batch and of the held-out samples.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "lib/collective/communicator.h"
#include "lib/collective/gradient_layout.h"
#include "lib/collective/gradient_reduction.h"
#include "lib/collective/nccl_communicator.h"
#include "lib/data/dataset.h"
#include "lib/engine/device.h"
#include "lib/engine/executor.h"
#include "lib/exchange/gradient_exchange.h"
#include "lib/telemetry/metrics.h"
#include "lib/telemetry/trace.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"
#include "services/worker/input_pipeline.h"
#include "services/worker/tensor_slab.h"

namespace muster {

// Contiguous numbers [first, first + count).
struct SampleRange {
  int64_t first = 0;
  int64_t count = 0;
};

// Part `index` of `range` cut into `parts` as even as possible, larger ones first.
SampleRange PartOf(SampleRange range, int index, int parts);

// What a job's devices run, made from the forward graph of its plan.
struct LaneGraphs {
  v1::Graph training;
  v1::Graph inference;
};

// Thread-compatible; its methods are called on the device's thread.
class DeviceLane : private ParameterFlow {
 public:
  struct Options {
    int index = 0;       // among the worker's devices
    std::string device;  // "cpu", see CreateDevice
    int threads = 1;
    std::shared_ptr<const LaneGraphs> graphs;
    v1::TrainingSpec training;
    int64_t batch_size = 0;            // global
    int64_t first_position = 0;        // of the worker's share in every batch
    SampleRange samples;               // of the worker's share
    SampleRange evaluation;            // of all held-out samples
    const Dataset* dataset = nullptr;  // outlives the lane
    Trace* trace = nullptr;            // outlives the lane; null: none is taken
  };
  static absl::StatusOr<std::unique_ptr<DeviceLane>> Create(Options options);

  Device& device() { return *device_; }
  int64_t samples() const { return options_.samples.count; }
  int64_t evaluation_samples() const { return options_.evaluation.count; }

  // Allocates the gradients. Once, before Build(). Errors as in TensorSlab::Create.
  absl::Status Allocate(const GradientLayout& layout);
  // Instead: takes those of a peer, see ExecutorPeers.
  void ShareGradients(const DeviceLane& peer) { gradients_ = peer.gradients_; }
  // Makes the device one of a group of GPUs that reduce gradients among themselves. Once, before
  // Build(), on every lane at once: each waits for the others. Errors as in NcclGroup::Join.
  // The operations with them are counted in `metrics`, which outlives the lane.
  absl::Status JoinPeers(NcclGroup& group, const GradientLayout& layout, float* parameters,
                         Metrics& metrics);
  // Takes another share of the batch, of the same job on the same device: what was allocated stays,
  // executors go. Not with peers. Build() follows.
  void Reshare(Options options);
  // Makes the executors over the parameters' memory (both see Executor::Options). Once, before the
  // rest, and again after Reshare(). Errors as in CreateExecutor.
  absl::Status Build(absl::Span<float* const> parameters,
                     const std::vector<bool>& narrow_parameters);
  const TensorSlab& gradients() const { return *gradients_; }

  // Where a training step's parameters come from and its gradients go.
  void Connect(GradientExchange* exchange, GradientReduction* reduction);

  struct StepResult {
    double loss_share = 0;  // of the global batch's mean
    float loss_scale = 0;   // that the gradients were computed with; 0 but for fp16
    absl::Duration wait;    // for parameters
    // Up to the last parameter that was asked for, less the waiting; 0 where the device computes
    // behind this thread's back, or in micro-batches.
    absl::Duration forward;
  };
  // Forward and backward of a step over rows `samples` of the worker's share, which is `batch`, the
  // last that `input` gave, in micro-batches. Waits for parameters of version `step`, contributes
  // gradients of the lane's share of the mean loss. The batch after it is given to the device
  // early, if it has been read by then. ABORTED when interrupted while waiting: then nothing of the
  // step will be pushed.
  absl::StatusOr<StepResult> Step(const InputBatch& batch, const InputPipeline& input);

  struct EvaluationSums {
    double loss_share = 0;  // of the mean over all held-out samples
    double correct = 0;     // targets
  };
  // Over its held-out samples with the parameters as they are. `counted_targets`: of all held-out
  // samples, see InputBatch. CANCELLED once `cancelled`.
  absl::StatusOr<EvaluationSums> Evaluate(absl::Span<const int64_t> counted_targets,
                                          const std::atomic<bool>& cancelled);

 private:
  explicit DeviceLane(Options options)
      : options_(std::move(options)),
        row_bytes_(RowBytes(*options_.dataset, options_.graphs->training)) {}

  // A micro-batch of a step.
  struct Part {
    int64_t step = -1;
    int number = 0;

    bool operator==(const Part&) const = default;
  };

  int micro_batches() const;
  // Of the most samples that an executor takes at once.
  int64_t samples_at_once() const;
  Executor& TrainerOf(int part);
  absl::Status GiveRows(const InputBatch& batch, int part);
  absl::StatusOr<std::unique_ptr<Executor>> MakeExecutor(const v1::Graph& graph, int64_t samples,
                                                         absl::Span<float* const> parameters,
                                                         const std::vector<bool>& narrow_parameters,
                                                         absl::Span<float* const> gradients);
  bool tracing() const { return options_.trace != nullptr && options_.trace->on(); }
  void TraceStep(int64_t begin) const;
  absl::StatusOr<float> AwaitLossScale(int64_t step);
  absl::Status AwaitParameter(int p) override;
  absl::Status RowsMayCome() override;
  absl::Status GradientReady(int p) override;
  absl::Status SliceReduced(int bucket) override;

  Options options_;                       // changed only by Reshare()
  const std::vector<int64_t> row_bytes_;  // by graph input, as the dataset reads them
  std::unique_ptr<Device> device_;
  Device::Memory evaluation_rows_ = Device::Memory(nullptr, nullptr);
  std::shared_ptr<TensorSlab> gradients_;
  std::unique_ptr<Communicator> communicator_;  // with the peers; null: alone
  std::optional<ExecutorPeers> peers_;
  std::unique_ptr<Executor> trainer_;         // of the larger micro-batches
  std::unique_ptr<Executor> rest_trainer_;    // of those with one sample less; may be null
  std::unique_ptr<Executor> evaluator_;       // of as many samples as trainer_; may be null
  std::unique_ptr<Executor> rest_evaluator_;  // of the incomplete last batch; may be null
  GradientExchange* exchange_ = nullptr;
  GradientReduction* reduction_ = nullptr;
  int64_t step_ = 0;
  const InputBatch* batch_ = nullptr;     // of the step that is run
  const InputPipeline* input_ = nullptr;  // where it came from
  int part_ = 0;                          // that is run
  Part given_;                            // whose rows an executor has taken
  absl::Duration wait_;
  int64_t forward_end_ = 0;       // while it is traced: when the last parameter was here
  absl::Duration last_asked_;     // when a parameter was last asked for, and what had been waited
  absl::Duration waited_before_;  // for until then
};

}  // namespace muster
