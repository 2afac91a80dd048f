// Trains one generation of one job on this worker's devices.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lib/collective/counted_communicator.h"
#include "lib/collective/gradient_layout.h"
#include "lib/collective/gradient_reduction.h"
#include "lib/collective/nccl_communicator.h"
#include "lib/collective/shared_memory_communicator.h"
#include "lib/data/dataset.h"
#include "lib/data/pipeline/input_pipeline.h"
#include "lib/data/source/open_dataset.h"
#include "lib/exchange/gradient_exchange.h"
#include "lib/exchange/worker_shard.h"
#include "lib/graph/tensor_parallel/placement.h"
#include "lib/job/path_rules.h"
#include "lib/plan/numbers.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/worker/runner/job_runner.h"
#include "services/worker/runner/progress_log.h"
#include "services/worker/runner/worker_metrics.h"
#include "services/worker/training/device_check.h"
#include "services/worker/training/device_grid.h"
#include "services/worker/training/device_lane.h"
#include "services/worker/training/device_team.h"
#include "services/worker/training/leaf_sums.h"
#include "services/worker/training/tensor_slab.h"

namespace muster {

// The thread that calls Step() also calls Create() and Continue().
class Trainer : public JobRunner {
 public:
  struct Options {
    std::shared_ptr<const v1::JobPlan> plan;
    Rank rank{};
    std::vector<std::string> devices;  // see DeviceGrid
    int threads_per_device = 1;
    bool place_gpus = false;  // whether to call Device::PlaceNearby()
    double peak_flops = 0;    // of each device, FLOP/s; 0: from its datasheet, if known
    TransportFactory transport;
    WorkerShard* shard = nullptr;   // this worker's shard, with allreduce; outlives the trainer
    PathRules paths = {};           // the files that a job may name
    std::string index_folder = {};  // see DataOptions
    ExchangeTuning tuning;
    ProgressLog* log = nullptr;  // of this job; `log` and `metrics` outlive the trainer
    WorkerMetrics* metrics = nullptr;
    // Called when Create() has made progress: after each phase, and for each read of a file while
    // the data are opened. May be null.
    std::function<void()> advanced = nullptr;
    std::stop_token stopping = {};  // ends the opening of data with CANCELLED
    // Opens the data, as OpenDataset() does.
    std::function<absl::StatusOr<std::unique_ptr<const Dataset>>(
        const v1::DataSpec&, const v1::Graph&, const DataOptions&)>
        open_data = OpenDataset;
  };
  // Opens the data, builds the executors and allocates memory. Fails as OpenDataset,
  // CreateExecutor and TensorSlab::Create do. Returns UNIMPLEMENTED, reason
  // "TENSOR_PARALLEL_DEVICES", if the devices cannot share the model as the job wants.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(Options options);
  // Continues the job in another generation, with the trainer of the previous one. Keeps as much as
  // it can:
  // - The same share of the batch: data, devices, compiled graphs and memory stay.
  // - Another share: the graphs are compiled again; the rest stays.
  // - Another number of devices, a shard of its own (allreduce), or GPUs that reduce among
  //   themselves: only the data stay, if data and model are the same.
  // Returns null if `before` is of another job; call Create(). Destroys `before` in that case and
  // on failure. Fails as Create() does. Requires: Step() of `before` has returned, or it was never
  // started.
  static absl::StatusOr<std::unique_ptr<Trainer>> Continue(std::unique_ptr<Trainer> before,
                                                           Options options);
  ~Trainer() override;

  v1::DatasetFacts dataset() const override;
  std::string device_kind() const override;

  // Runs the evaluation that the plan requires first.
  absl::Status Start(int64_t total_steps, std::vector<std::string> addresses) override;
  std::string address() const override { return exchange_->address(); }

  // Runs one step: takes the next batch and runs forward and backward on every device, while
  // parameters arrive and gradients leave. Runs the evaluation that is due after the step. Appends
  // records to the log.
  // The record of the step follows after all its answers have arrived: in the next Step(), at once
  // if an evaluation is due or the job ends, or in Drain(). Steps are plan.first_step, + 1, ... in
  // order. A worker that was overtaken (see GradientExchange) continues at the version of the
  // others. It records the steps in between as missed, and evaluations in between without samples.
  //
  // Besides ABORTED after Pause(), returns OUT_OF_RANGE if the loss of a step, or the norm of its
  // gradient, is not finite. Exceptions are jobs that ignore this, skipped steps, and the norm with
  // backup workers. The reason is "DATA_NOT_FINITE" if an input of the batch is not finite,
  // otherwise "LOSS_NOT_FINITE". Then no later step is recorded. If the job rolls back, this step
  // is not recorded either. Fails as Dataset::Read() does if the samples cannot be read.
  absl::Status Step() override;
  bool done() const override { return step_.load() >= total_steps_; }

  // Runs the evaluation that is due after the step, too.
  absl::Status Drain() override;

  // A step is finished when its answers have arrived, it is recorded, and the evaluation that is
  // due after it has run.
  int64_t next_step() const override { return next_step_.load(std::memory_order_acquire); }

  void Pause() override { exchange_->Interrupt(); }
  void Cancel(absl::Status why) override;
  void Halt(absl::Status why) override;
  absl::Status GiveUp() override;

  // If a device failed, samples could not be read, or a loss or gradient was not finite, that is
  // its step. Otherwise it is the step with missing answers, or the running step.
  int64_t failed_step() const override {
    if (failed_step_ >= 0) return failed_step_;
    return exchange_->failed() ? exchange_->step() : step_.load();
  }
  v1::StepTiming timing() const override ABSL_LOCKS_EXCLUDED(timing_mu_);
  std::string culprit() const override { return exchange_->culprit(); }

 private:
  explicit Trainer(Options options) : options_(std::move(options)) {}

  absl::Status Open();
  absl::Status OpenData();
  bool MemoryFits(const Options& next) const;
  bool HasTheShareOf(const Options& next) const;
  absl::Status Connect();
  absl::StatusOr<std::shared_ptr<const LaneGraphs>> LowerGraphs(const TensorParallel& part) const;
  // Sets the metrics for the cost of this worker's steps and the peak FLOP/s of its devices.
  void CountFlops();
  double CountEvaluationLabels() const;
  GradientLayout LayOut(const v1::Graph& graph, int replicas) const;
  absl::Status AllocateMemory();
  absl::Status MakeGpuGroup();
  UsedDevices DevicesInUse() const;
  bool reduces_on_gpus() const;
  absl::Status OnFirstDevice(absl::FunctionRef<absl::Status()> task);
  std::vector<bool> NarrowParameters(const LaneGraphs& graphs) const;
  absl::Status MakeExchange();
  absl::Status MakeReduction();
  int64_t LastRoundOf(int64_t step) const;
  absl::Status RenewReduction();
  absl::Status MakeRing();
  ExchangeTuning TuningOfJob() const;
  int ReaderThreads() const;
  absl::Status ShareInputMemory();
  void CountInput() ABSL_LOCKS_EXCLUDED(timing_mu_);
  Device& DeviceOfRows() const;
  absl::StatusOr<InputBatch> NextBatch();
  void StopDevices(const absl::Status& why);
  std::unique_ptr<CountedCommunicator> Join(SharedMemoryGroup& group, int rank) const;
  void SynchroniseNorms();
  absl::Status JoinRanks();
  void AbortGroups(const absl::Status& why);
  absl::Status AfterStep(int64_t version);
  absl::Status FinishStep();
  absl::Status RecordStep(double gradient_norm);
  bool StopsAt(double loss_or_norm) const;
  absl::Status NotFinite(int64_t step, const std::string& what);
  std::string NameNonFiniteInputOf(int64_t step) const;
  absl::Status RecordAnswered(double gradient_norm);
  absl::Status CatchUp();
  struct StepTimes {
    absl::Duration step, data, wait, tensor_parallel, forward;
  };
  void AddTimes(const StepTimes& times) ABSL_LOCKS_EXCLUDED(timing_mu_);
  absl::Status Evaluate(int64_t version);
  void ShowStep(const v1::StepRecord& record);
  void WarnOfLoss(const v1::StepRecord& record) const;
  void WarnOfEvaluation(int64_t version) const;
  SampleRange HeldOut() const;
  bool EvaluationIsDue(int64_t version) const;

  Options options_;  // changed only by Continue()
  std::unique_ptr<const Dataset> dataset_;
  std::vector<int64_t> counted_evaluation_targets_;  // see CountEvaluationTargets()
  double step_flops_ = 0;
  std::unique_ptr<DeviceTeam> team_;
  GradientLayout layout_;            // of parameters and gradients
  std::unique_ptr<NcclGroup> gpus_;  // only for several GPUs
  // Groups of CPU devices: by rank, if several replicas normalise together; by replica, if it has
  // several ranks.
  std::vector<std::unique_ptr<SharedMemoryGroup>> norms_;
  std::vector<std::unique_ptr<SharedMemoryGroup>> ranks_;
  std::atomic<bool> ranks_aborted_ = false;         // AbortGroups() was called since JoinRanks()
  std::vector<std::unique_ptr<DeviceLane>> lanes_;  // by device
  std::unique_ptr<TensorSlab> parameters_;          // shared by all CPU devices
  std::vector<bool> narrow_parameters_;             // see Executor::Options
  std::vector<std::unique_ptr<TensorSlab>> slots_;  // local_sgd: slots of the optimizer
  std::unique_ptr<GradientExchange> exchange_;
  std::unique_ptr<SharedMemoryGroup> group_;      // only for several replicas of CPUs
  std::unique_ptr<LeafSums> leaf_sums_;           // null: a step has one leaf
  std::unique_ptr<GradientReduction> reduction_;  // uses the above, so it is destroyed first
  int batches_ = 0;                               // for the pipeline
  std::unique_ptr<InputPipeline> pipeline_;
  int64_t total_steps_ = 0;
  std::atomic<int64_t> step_ = 0;  // the running step, or the next one to run
  bool loss_was_nonfinite_ = false;
  bool evaluation_was_nonfinite_ = false;
  std::atomic<int64_t> failed_step_ = -1;  // the step at which this worker itself failed; -1: none
  double evaluation_labels_ = 0;           // number of labels that count, in all held-out samples
  std::optional<v1::StepRecord> pending_;  // computed, not yet finished
  std::atomic<int64_t> next_step_ = 0;
  std::atomic<bool> cancelled_ = false;
  mutable absl::Mutex timing_mu_;
  v1::StepTiming timing_ ABSL_GUARDED_BY(timing_mu_);
  // Bytes that the process had sent and received when the generation began.
  int64_t sent_before_ = 0;
  int64_t received_before_ = 0;
  int64_t substituted_before_ = 0;  // samples of the dataset, at that time
};

}  // namespace muster
