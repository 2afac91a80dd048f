// Trains one generation of one job on this worker's devices.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lib/collective/gradient_layout.h"
#include "lib/collective/gradient_reduction.h"
#include "lib/collective/nccl_communicator.h"
#include "lib/collective/shared_memory_communicator.h"
#include "lib/data/dataset.h"
#include "lib/exchange/gradient_exchange.h"
#include "lib/exchange/worker_shard.h"
#include "lib/job/path_rules.h"
#include "lib/plan/numbers.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/worker/device_lane.h"
#include "services/worker/device_team.h"
#include "services/worker/input_pipeline.h"
#include "services/worker/progress_log.h"
#include "services/worker/tensor_slab.h"
#include "services/worker/worker_metrics.h"

namespace muster {

// One thread creates it and calls Start(), Step() and Drain(); the rest is for any thread.
class Trainer {
 public:
  struct Options {
    std::shared_ptr<const v1::JobPlan> plan;
    Rank rank{};
    std::vector<std::string> devices;  // those beyond the worker's share of samples stay idle
    int threads_per_device = 1;
    double peak_flops = 0;  // of each device, FLOP/s; 0: its datasheet's, where there is one
    TransportFactory transport;
    WorkerShard* shard = nullptr;  // of this worker with allreduce; outlives the trainer
    PathRules paths = {};          // which files a job may name
    ExchangeTuning tuning;
    ProgressLog* log = nullptr;  // of this job; these two outlive the trainer
    WorkerMetrics* metrics = nullptr;
    std::function<void()> phase_ended = nullptr;  // told of each phase of Create()
  };
  // Opens the data, plans executors, allocates. Errors as in Dataset::Open, CreateExecutor and
  // TensorSlab::Create.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(Options options);
  // One whose Step() has returned, or that was never started, goes on in another generation of its
  // job: data, devices, compiled graphs and memory stay. Where it has another share of the batch
  // there, graphs are compiled again. Where it has another number of devices, was stopped where
  // they cannot begin anew, holds a shard of its own (all-reduce) or has GPUs that reduce among
  // themselves, the data alone stay, if they and the model are the same. Null: it is of another
  // job; Create() one.
  static absl::StatusOr<std::unique_ptr<Trainer>> Continue(std::unique_ptr<Trainer> before,
                                                           Options options);
  ~Trainer();

  v1::DatasetFacts dataset() const;

  // Connects to the shards and begins to fetch; makes the evaluation that the plan wants first.
  // `total_steps`: updates of the whole job;
  // `addresses`: as in GradientExchange::Connect.
  absl::Status Start(int64_t total_steps, std::vector<std::string> addresses = {});
  // Where the other workers of an allreduce job reach this one; else "".
  std::string address() const { return exchange_->address(); }

  // One step, the evaluation that is due after it included: next batch, forward and backward on
  // every device while parameters come and gradients go, records to the log. The step's own record
  // follows when all its answers are in: in the next Step(), at once when an evaluation is due or
  // the job ends, or in Drain(). Steps are plan.first_step, + 1, ... in order, but that a worker
  // that was overtaken (see GradientExchange) goes on where the others are: the steps between are
  // recorded as missed, evaluations between without samples.
  //
  // ABORTED after Pause() when it would have to wait: call Drain(). Other errors are final.
  // OUT_OF_RANGE, unless the job ignores that: the loss of a step, or the norm of its gradient, is
  // not finite, and the step was not skipped for it. The reason is "DATA_NOT_FINITE" if an input of
  // the step's batch is not, else "LOSS_NOT_FINITE". Nothing of a later step is recorded, nor,
  // where the job rolls back, of this one.
  absl::Status Step();
  // No step is left to begin.
  bool done() const { return step_.load() >= total_steps_; }

  // After Pause(): waits, as long as it takes, until what was pushed is answered, and completes
  // that step, the evaluation that is due after it included.
  absl::Status Drain();

  // The first step that is not finished: answers in, recorded, evaluated where that is due.
  int64_t next_step() const { return next_step_.load(std::memory_order_acquire); }

  // Step() does not wait for others any more.
  void Pause() { exchange_->Interrupt(); }

  // Everything returns `why` (an error) as soon as possible.
  void Cancel(absl::Status why);
  // Likewise, but what was computed is still recorded: call GiveUp() when Step() has returned.
  void Halt(absl::Status why);
  // Records the step that was computed last, without the gradient's norm where not all its answers
  // are in.
  absl::Status GiveUp();

  // Where it went wrong: the step that was being run, or the one whose answers are missing.
  // First of all the step at which a device failed, or whose loss or gradient was not finite.
  int64_t failed_step() const {
    if (failed_step_ >= 0) return failed_step_;
    return exchange_->failed() ? exchange_->step() : step_.load();
  }
  // Where the time of the steps of this generation went; no steps: none was finished yet.
  v1::StepTiming timing() const ABSL_LOCKS_EXCLUDED(timing_mu_);
  // See GradientExchange.
  std::string culprit() const { return exchange_->culprit(); }

 private:
  explicit Trainer(Options options) : options_(std::move(options)) {}

  absl::Status Open();
  bool MemoryFits(const Options& next) const;
  bool HasTheShareOf(const Options& next) const;
  absl::Status Connect();
  absl::StatusOr<std::shared_ptr<const LaneGraphs>> LowerGraphs() const;
  absl::Status CheckSynchronised(int devices) const;
  // What a step of this worker's costs, and what its devices could do: for metrics.
  void CountFlops();
  double CountEvaluationLabels() const;
  GradientLayout LayOut(const v1::Graph& graph, int devices) const;
  absl::Status AllocateMemory();
  std::vector<bool> NarrowParameters(const LaneGraphs& graphs) const;
  absl::Status MakeExchange();
  void MakeReduction();
  absl::Status RenewReduction();
  absl::Status MakeRing();
  ExchangeTuning TuningOfJob() const;
  int ReaderThreads() const;
  Device& DeviceOfRows() const;
  InputBatch NextBatch();
  void StopDevices(const absl::Status& why);
  absl::Status AfterStep(int64_t version);
  absl::Status FinishStep();
  absl::Status RecordStep(double gradient_norm);
  bool StopsAt(double loss_or_norm) const;
  absl::Status NotFinite(int64_t step, const std::string& what);
  std::string NameNonFiniteInputOf(int64_t step) const;
  std::string NameNonFiniteTensor(int64_t version) const;
  std::optional<int> FirstNonFiniteValue(int64_t version) const;
  bool IsStatistic(int parameter) const;
  std::string NameWithGroup(int parameter) const;
  absl::Status RecordAnswered(double gradient_norm);
  absl::Status CatchUp();
  struct StepTimes {
    absl::Duration step, data, wait, forward;
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
  GradientLayout layout_;                           // of parameters and gradients
  std::unique_ptr<NcclGroup> gpus_;                 // of several GPUs
  std::vector<std::unique_ptr<DeviceLane>> lanes_;  // by device
  std::unique_ptr<TensorSlab> parameters_;          // shared by all CPU devices
  std::vector<bool> narrow_parameters_;             // see Executor::Options
  std::vector<std::unique_ptr<TensorSlab>> slots_;  // local_sgd: of the optimizer
  std::unique_ptr<GradientExchange> exchange_;
  std::unique_ptr<SharedMemoryGroup> group_;      // of several devices
  std::unique_ptr<GradientReduction> reduction_;  // feeds the exchange: goes first
  std::unique_ptr<InputPipeline> pipeline_;
  int64_t total_steps_ = 0;
  std::atomic<int64_t> step_ = 0;  // being run, or next to run
  bool loss_was_nonfinite_ = false;
  bool evaluation_was_nonfinite_ = false;
  std::atomic<int64_t> failed_step_ = -1;  // at which it stopped by itself; -1: none
  double evaluation_labels_ = 0;           // that count, of all held-out samples
  std::optional<v1::StepRecord> pending_;  // computed, not yet finished
  std::atomic<int64_t> next_step_ = 0;
  std::atomic<bool> cancelled_ = false;
  mutable absl::Mutex timing_mu_;
  v1::StepTiming timing_ ABSL_GUARDED_BY(timing_mu_);
  // What the process had sent and received when the generation began.
  int64_t sent_before_ = 0;
  int64_t received_before_ = 0;
};

}  // namespace muster
