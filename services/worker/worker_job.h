// One generation of one job on this worker, from Prepare to Release; or a rehearsal of one, which
// is prepared and never started.
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
#include "services/worker/progress_log.h"
#include "services/worker/trainer.h"
#include "services/worker/worker_metrics.h"

namespace muster {

// The job thread calls Run(); the rest returns at once and is for any thread. When it has failed or
// is halted the records that were not acknowledged are still reported.
class WorkerJob {
 public:
  struct Options {
    std::shared_ptr<const v1::JobPlan> plan;
    Rank rank{};
    std::vector<std::string> devices;
    int threads_per_device = 1;
    double peak_flops = 0;  // of each device, FLOP/s; 0: its datasheet's, where there is one
    TransportFactory transport;
    CheckpointClient* checkpoints = nullptr;  // these two outlive the job; needed by
    MemoryBudget* budget = nullptr;           // allreduce jobs alone
    PathRules paths = {};                     // which files a job may name
    ExchangeTuning tuning;
    WorkerMetrics* metrics = nullptr;
    std::function<void()> report_soon;  // the state changed
    // This process has lost a device, which only another one can use again; may be null. Told after
    // the job's failure.
    std::function<void()> device_lost = nullptr;
  };
  explicit WorkerJob(Options options);

  // Prepares, trains from Start() on, then stays (done, paused, failed or halted) until Release().
  // `before`: the trainer of the job's last generation here, or null, for this one to go on with;
  // returns its own.
  std::unique_ptr<Trainer> Run(std::unique_ptr<Trainer> before) ABSL_LOCKS_EXCLUDED(mu_);

  // Directives, each for this generation. Repeats do nothing.
  void Start(const v1::Start& start) ABSL_LOCKS_EXCLUDED(mu_);
  void TakeSnapshot(const v1::Snapshot& snapshot) ABSL_LOCKS_EXCLUDED(mu_);
  void Pause() ABSL_LOCKS_EXCLUDED(mu_);
  void Halt() ABSL_LOCKS_EXCLUDED(mu_);
  void Release() ABSL_LOCKS_EXCLUDED(mu_);
  void Acknowledge(const v1::Acknowledge& acknowledge) { log_.Acknowledge(acknowledge); }

  // Pauses and waits until the step that has begun is finished; at most `timeout`.
  void FinishStep(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);

  // Of one that is released: that it has halted, and is here.
  v1::JobReport Report() const ABSL_LOCKS_EXCLUDED(mu_);

  const std::string& job() const { return options_.plan->job(); }
  uint32_t generation() const { return options_.plan->generation(); }
  // Not 0: of which one; `generation` is the one before.
  uint64_t rehearsal() const { return options_.plan->rehearsal(); }
  bool released() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Status Prepare(std::unique_ptr<Trainer> before) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::unique_ptr<Trainer>> MakeTrainer(std::unique_ptr<Trainer> before);
  absl::Status MakeShard() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Train() ABSL_LOCKS_EXCLUDED(mu_);
  // Nothing when paused before Start().
  absl::StatusOr<std::optional<v1::Start>> AwaitStart() ABSL_LOCKS_EXCLUDED(mu_);
  bool Pausing() const ABSL_LOCKS_EXCLUDED(mu_);
  void Enter(v1::MemberJobState state) ABSL_LOCKS_EXCLUDED(mu_);
  void Settle() ABSL_LOCKS_EXCLUDED(mu_);
  void FailWith(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  void AwaitRelease() ABSL_LOCKS_EXCLUDED(mu_);
  bool halting() const ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  ProgressLog log_;
  mutable absl::Mutex mu_;
  v1::MemberJobState state_ ABSL_GUARDED_BY(mu_) = v1::MEMBER_PREPARING;
  v1::MemberError error_ ABSL_GUARDED_BY(mu_);
  // Made and destroyed by the job thread, under mu_; the job thread also reads them without.
  std::unique_ptr<WorkerShard> shard_;  // of an allreduce job
  std::unique_ptr<Trainer> trainer_;
  std::stop_source restoring_;          // stopped by Release()
  std::atomic<uint64_t> prepared_ = 0;  // bytes restored and phases ended, for JobReport
  std::optional<v1::Start> start_ ABSL_GUARDED_BY(mu_);  // since Start()
  bool pausing_ ABSL_GUARDED_BY(mu_) = false;
  bool settled_ ABSL_GUARDED_BY(mu_) = false;  // nothing more will happen before Release()
  bool halting_ ABSL_GUARDED_BY(mu_) = false;
  bool released_ ABSL_GUARDED_BY(mu_) = false;
  mutable absl::Duration links_due_ ABSL_GUARDED_BY(mu_);  // to be told again, see SteadyNow()
};

}  // namespace muster
