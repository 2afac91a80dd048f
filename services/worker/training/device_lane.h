// One device of a worker. It computes a part of every batch and of the held-out samples.
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
#include "lib/collective/counted_communicator.h"
#include "lib/collective/gradient_layout.h"
#include "lib/collective/gradient_reduction.h"
#include "lib/collective/nccl_communicator.h"
#include "lib/data/dataset.h"
#include "lib/data/pipeline/decode_pool.h"
#include "lib/data/pipeline/input_pipeline.h"
#include "lib/engine/device.h"
#include "lib/engine/executor.h"
#include "lib/exchange/gradient_exchange.h"
#include "lib/graph/tensor_parallel/placement.h"
#include "lib/telemetry/metrics.h"
#include "lib/telemetry/trace.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"
#include "services/worker/training/device_grid.h"
#include "services/worker/training/tensor_slab.h"

namespace muster {

// The graphs that the devices of one rank run. They are built from the forward graph of the job's
// plan. A rank of a split graph has slices of the plan's parameters.
struct LaneGraphs {
  v1::Graph training;
  v1::Graph inference;
  std::vector<ParameterSlice> slices;  // empty: the parameters are whole
};

// Thread-compatible. All methods are called on the device's thread.
class DeviceLane : private ParameterFlow {
 public:
  struct Options {
    int index = 0;       // among the worker's devices
    int replica = 0;     // see DeviceGrid
    int rank = 0;        // in the replica
    std::string device;  // for example "cpu", see CreateDevice
    int threads = 1;
    bool place_nearby = false;  // whether to call Device::PlaceNearby()
    std::shared_ptr<const LaneGraphs> graphs;
    v1::TrainingSpec training;
    int64_t batch_size = 0;      // global
    int64_t first_position = 0;  // of the worker's share in every batch
    // The samples of the worker's share that each run of a step has: a micro-batch, or this
    // replica's samples of a logical worker. Not empty; the sizes differ by 1 at most.
    std::vector<SampleRange> runs;
    int replicas = 1;  // of the worker; they normalise together, see SynchroniseNorms()
    // true: the gradients of each run are contributed (logical workers). false: the device adds
    // those of all runs and contributes the sums (micro-batches).
    bool contributes_each_run = false;
    SampleRange evaluation;            // of all held-out samples
    int64_t evaluation_at_once = 0;    // samples
    const Dataset* dataset = nullptr;  // outlives the lane
    Trace* trace = nullptr;            // outlives the lane; null: no trace
  };
  static absl::StatusOr<std::unique_ptr<DeviceLane>> Create(Options options);

  Device& device() { return *device_; }
  // Returns the bytes of the held-out samples that the lane reads ahead.
  int64_t evaluation_bytes() const;

  // Allocates the gradients of the plan's graph, which are whole. Call it once, before Build().
  // Fails as TensorSlab::Create does.
  absl::Status Allocate(const v1::Graph& graph, const GradientLayout& layout);
  // Uses the gradients of `peer` instead of allocating its own: peers (see ExecutorPeers) and the
  // ranks of a replica share them.
  void ShareGradients(const DeviceLane& peer) { gradients_ = peer.gradients_; }
  // Adds the device to a group of GPUs that reduce gradients among themselves. `metrics` counts the
  // collective operations and outlives the lane.
  // Call it once, before Build(), on all lanes concurrently.
  // Blocks until all lanes of the group have called it. Fails as NcclGroup::Join does.
  absl::Status JoinPeers(NcclGroup& group, const GradientLayout& layout, float* parameters,
                         Metrics& metrics);
  // Switches to another share of the batch, for the same job and device. Keeps the allocated
  // gradients and destroys the executors; call Build() next.
  // Requires: JoinPeers() was not called.
  void Reshare(Options options);
  // Creates the executors over the parameters' memory; for both arguments see Executor::Options.
  // Call it before the methods below, and again after Reshare(). Fails as CreateExecutor does.
  absl::Status Build(absl::Span<float* const> parameters,
                     const std::vector<bool>& narrow_parameters);
  const TensorSlab& gradients() const { return *gradients_; }

  // Sets the source of parameters and the sink of gradients for the following steps.
  void Connect(GradientExchange* exchange, GradientReduction* reduction);

  // Makes synchronised norms of the following steps merge the sums of this device with those of the
  // other ranks. GPUs that joined peers do so by their group and need no call.
  void SynchroniseNorms(std::unique_ptr<Communicator> norms) { norms_ = std::move(norms); }

  // Makes the device one of the ranks that compute the following steps of its replica.
  void JoinRanks(std::unique_ptr<CountedCommunicator> ranks) { ranks_ = std::move(ranks); }
  // Ends the operations of the replica's ranks with `why`. May be called on any thread.
  void AbortRanks(const absl::Status& why) {
    if (ranks_ != nullptr) ranks_->Abort(why);
  }

  struct StepResult {
    double loss_share = 0;  // of the global batch's mean loss
    float loss_scale = 0;   // applied to the gradients; 0 unless fp16
    absl::Duration wait;    // time spent waiting for parameters
    // Time until the last parameter was requested, without `wait`. 0 if the device computes
    // asynchronously or the step has several runs.
    absl::Duration forward;
    absl::Duration tensor_parallel;  // time in operations with the other ranks
  };
  // Runs forward and backward of one step, run by run, over the lane's rows of `batch`. Contributes
  // the gradients of the lane's share of the mean loss: once, or with contributes_each_run in
  // rounds step * runs + run. CPU devices of a group then meet after each round but the last.
  // Copies the rows of the following batch to the device early, if `input` has read that batch by
  // then. Blocks until parameters of version `batch.step` arrive. Returns ABORTED if interrupted
  // while it waits; then no gradient of the step is pushed. Requires: `batch` is the worker's whole
  // share and the last result of `input.Next()`. With contributes_each_run in a group, the
  // parameters are there, so that no device stops alone. Ranks, and devices with synchronised
  // norms, also meet in the middle of a run, so the caller must abort their groups if one of them
  // fails.
  absl::StatusOr<StepResult> Step(const InputBatch& batch, const InputPipeline& input);

  struct EvaluationSums {
    double loss_share = 0;  // of the mean loss over all held-out samples
    double correct = 0;     // correctly predicted targets
    int64_t samples = 0;    // that the lane evaluated
  };
  // Evaluates the lane's held-out samples with the present parameters. `counted_targets` counts the
  // targets of all held-out samples, see InputBatch. `readers` read the samples of the next batch
  // while the device computes. Returns CANCELLED once `cancelled` is true. Fails as
  // Dataset::ReadEvaluation() does.
  absl::StatusOr<EvaluationSums> Evaluate(absl::Span<const int64_t> counted_targets,
                                          DecodePool& readers, const std::atomic<bool>& cancelled);

 private:
  explicit DeviceLane(Options options)
      : options_(std::move(options)),
        row_bytes_(RowBytes(*options_.dataset, options_.graphs->training)) {}

  // One run of a step.
  struct Run {
    int64_t step = -1;
    int number = 0;

    bool operator==(const Run&) const = default;
  };

  int runs() const { return static_cast<int>(options_.runs.size()); }
  int64_t round() const { return options_.contributes_each_run ? step_ * runs() + run_ : step_; }
  // Returns the samples of the largest run.
  int64_t samples_at_once() const;
  Executor& TrainerOf(int run);
  absl::Status GiveRows(const InputBatch& batch, int run);
  std::vector<float*> ExportedGradients() const;
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

  Options options_;                       // only Reshare() changes them
  const std::vector<int64_t> row_bytes_;  // by graph input, as the dataset reads them
  std::unique_ptr<Device> device_;
  Device::Memory evaluation_rows_ = Device::Memory(nullptr, nullptr);
  std::shared_ptr<TensorSlab> gradients_;
  std::unique_ptr<Communicator> communicator_;  // null: no peers
  std::unique_ptr<Communicator> norms_;         // see SynchroniseNorms(); may be null
  std::unique_ptr<CountedCommunicator> ranks_;  // see JoinRanks(); null: the replica has one rank
  std::optional<ExecutorPeers> peers_;
  std::unique_ptr<Executor> trainer_;         // for the larger runs
  std::unique_ptr<Executor> rest_trainer_;    // for those with one sample less; may be null
  std::unique_ptr<Executor> evaluator_;       // may be null
  std::unique_ptr<Executor> rest_evaluator_;  // for the incomplete last batch; may be null
  GradientExchange* exchange_ = nullptr;
  GradientReduction* reduction_ = nullptr;
  int64_t step_ = 0;
  const InputBatch* batch_ = nullptr;     // of the present step
  const InputPipeline* input_ = nullptr;  // the source of batch_
  int run_ = 0;                           // the present one
  Run given_;                             // the run whose rows an executor has
  absl::Duration wait_;
  int64_t forward_end_ = 0;       // when the last parameter arrived; only if traced
  absl::Duration last_asked_;     // when a parameter was last requested
  absl::Duration waited_before_;  // the value of wait_ at that time
};

}  // namespace muster
