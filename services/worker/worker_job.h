// One generation of one job on this worker, from Prepare to Release. It may also be a warm-up,
// which is prepared and never started.
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
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lib/exchange/gradient_exchange.h"
#include "lib/exchange/worker_shard.h"
#include "lib/job/path_rules.h"
#include "lib/plan/numbers.h"
#include "lib/shard/chunks/memory_budget.h"
#include "lib/shard/snapshot/checkpoint_client.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/worker/program/program_port.h"
#include "services/worker/runner/job_runner.h"
#include "services/worker/runner/progress_log.h"
#include "services/worker/runner/worker_metrics.h"

namespace muster {

// Thread-safe. The job thread calls Run(); the other methods return at once, except FinishStep().
// A failed or halted job still reports its unacknowledged records.
class WorkerJob {
 public:
  struct Options {
    std::shared_ptr<const v1::JobPlan> plan;
    Rank rank{};
    std::vector<std::string> devices;
    int threads_per_device = 1;
    bool place_gpus = false;  // whether to call Device::PlaceNearby()
    double peak_flops = 0;    // of each device, FLOP/s; 0: from its datasheet, if known
    TransportFactory transport;
    CheckpointClient* checkpoints = nullptr;  // both outlive the job; only
    MemoryBudget* budget = nullptr;           // allreduce jobs use them
    PathRules paths = {};                     // the files that a job may name
    std::string index_folder = {};            // see DataOptions
    bool allow_programs = false;              // whether to start commands of jobs
    ExchangeTuning tuning;
    WorkerMetrics* metrics = nullptr;
    std::function<void()> report_soon;  // called when the state changes
    // Called after the job failed because this process lost a device. Only a new process can use
    // the device again. May be null.
    std::function<void()> device_lost = nullptr;
    // The port outlives the job. Null: this worker runs no jobs with model.external.
    ProgramPort* programs = nullptr;
  };
  explicit WorkerJob(Options options);

  // Prepares the job and trains it after Start(). Then stays done, paused, failed or halted.
  // Blocks until Release(). `before` is the runner of the job's previous generation on this worker,
  // which this one reuses if it can, or null. Returns the runner for the next generation, or null.
  std::unique_ptr<JobRunner> Run(std::unique_ptr<JobRunner> before) ABSL_LOCKS_EXCLUDED(mu_);

  // Directives for this generation. Repeated directives have no effect.
  void Start(const v1::Start& start) ABSL_LOCKS_EXCLUDED(mu_);
  void TakeSnapshot(const v1::Snapshot& snapshot) ABSL_LOCKS_EXCLUDED(mu_);
  void Pause() ABSL_LOCKS_EXCLUDED(mu_);
  void Halt() ABSL_LOCKS_EXCLUDED(mu_);
  void Release() ABSL_LOCKS_EXCLUDED(mu_);
  void Acknowledge(const v1::Acknowledge& acknowledge) ABSL_LOCKS_EXCLUDED(mu_);

  // Pauses the job. Blocks for up to `timeout` until the present step is finished.
  void FinishStep(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the state of the job. A released job that is still unwinding reports HALTED.
  v1::JobReport Report() const ABSL_LOCKS_EXCLUDED(mu_);

  const std::string& job() const { return options_.plan->job(); }
  uint32_t generation() const { return options_.plan->generation(); }
  // Returns the number of the warm-up, or 0 if this is a generation to train. The generation() of a
  // warm-up is the one that runs meanwhile.
  uint64_t rehearsal() const { return options_.plan->rehearsal(); }
  bool released() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Takes `before`, unless it fails earlier.
  absl::Status Prepare(std::unique_ptr<JobRunner>& before) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::unique_ptr<JobRunner>> MakeRunner(std::unique_ptr<JobRunner> before);
  absl::StatusOr<std::unique_ptr<JobRunner>> MakeTrainer(std::unique_ptr<JobRunner> before);
  absl::StatusOr<std::unique_ptr<JobRunner>> MakeExternalLoop(std::unique_ptr<JobRunner> before);
  absl::Status MakeShard() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Train() ABSL_LOCKS_EXCLUDED(mu_);
  // Blocks until a directive arrives. Returns nothing if the job is paused before Start().
  absl::StatusOr<std::optional<v1::Start>> AwaitStart() ABSL_LOCKS_EXCLUDED(mu_);
  bool Pausing() const ABSL_LOCKS_EXCLUDED(mu_);
  void Enter(v1::MemberJobState state) ABSL_LOCKS_EXCLUDED(mu_);
  void Settle() ABSL_LOCKS_EXCLUDED(mu_);
  void FailWith(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  void AwaitRelease() ABSL_LOCKS_EXCLUDED(mu_);
  bool halting() const ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  const std::shared_ptr<ProgressLog> log_ = std::make_shared<ProgressLog>();
  mutable absl::Mutex mu_;
  v1::MemberJobState state_ ABSL_GUARDED_BY(mu_) = v1::MEMBER_PREPARING;
  v1::MemberError error_ ABSL_GUARDED_BY(mu_);
  // The job thread creates and destroys these two under mu_. It may read them without mu_.
  std::unique_ptr<WorkerShard> shard_;  // only for an allreduce job
  std::unique_ptr<JobRunner> runner_;
  std::stop_source restoring_;          // of shard and data; stopped by Halt() and Release()
  std::atomic<uint64_t> prepared_ = 0;  // bytes restored, phases ended and reads, for JobReport
  std::optional<v1::Start> start_ ABSL_GUARDED_BY(mu_);  // set by Start()
  bool pausing_ ABSL_GUARDED_BY(mu_) = false;
  bool settled_ ABSL_GUARDED_BY(mu_) = false;  // only Halt() and Release() matter now
  bool halting_ ABSL_GUARDED_BY(mu_) = false;
  bool released_ ABSL_GUARDED_BY(mu_) = false;
  mutable absl::Duration links_due_
      ABSL_GUARDED_BY(mu_);  // when to report links again, see SteadyNow()
};

}  // namespace muster
