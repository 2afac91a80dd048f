// The worker as a member of the fleet. It follows the coordinator's directives and trains one job
// at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lib/exchange/gradient_exchange.h"
#include "lib/fleet/channel.h"
#include "lib/fleet/fleet_client.h"
#include "lib/job/path_rules.h"
#include "lib/shard/chunks/memory_budget.h"
#include "lib/shard/snapshot/checkpoint_client.h"
#include "lib/telemetry/metrics.h"
#include "lib/telemetry/trace.h"
#include "lib/telemetry/trace_file.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "services/worker/program/program_port.h"
#include "services/worker/runner/worker_metrics.h"
#include "services/worker/worker_job.h"

namespace muster {

// Thread-safe.
class Worker : public FleetMember {
 public:
  struct Options {
    std::string member;                // its name in the fleet
    std::vector<std::string> devices;  // for CreateDevice
    int threads_per_device = 1;
    bool place_gpus = false;  // whether to call Device::PlaceNearby()
    double peak_flops = 0;    // of each device, FLOP/s; 0: from its datasheet, if known
    TransportFactory transport;
    std::optional<CoordinatorTarget> coordinator;       // for checkpoints of allreduce jobs
    std::string checkpoint_root;                        // see CheckpointClient
    int64_t shard_memory_bytes = DefaultMemoryBytes();  // limit for shards of such jobs
    PathRules paths = {};                               // the files that a job may name
    std::string index_folder = {};                      // see DataOptions
    bool allow_programs = false;                        // whether to start commands of jobs
    ExchangeTuning tuning;
    Metrics* metrics = nullptr;         // outlives the worker
    std::function<void()> report_soon;  // FleetClient::ReportSoon
    // Called after a job failed because this process lost a device. The process must exit, because
    // only a new process can use the device again. May be null.
    std::function<void()> device_lost = nullptr;
    // The file for tuning.trace, written after every job that is released. Outlives the worker.
    // Null: no file.
    const TraceFile* trace_file = nullptr;
    ProgramPort* programs = nullptr;  // see WorkerJob::Options; outlives the worker
  };
  explicit Worker(Options options);
  ~Worker() override;  // releases the job and waits for the job thread

  std::vector<v1::JobReport> Report() override ABSL_LOCKS_EXCLUDED(mu_);
  void Handle(const v1::Directive& directive) override ABSL_LOCKS_EXCLUDED(mu_);
  void CoordinatorLost() override ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the trace that records this worker's work for `job`, or null if the worker does not
  // serve `job`. All jobs use the same trace, because they run one after the other.
  Trace* TraceOf(const std::string& job) const ABSL_LOCKS_EXCLUDED(mu_);

  // This process leaves the fleet. Programs are told so when their job ends here.
  void Leave() { leaves_ = true; }
  // Finishes the present step and starts no other. Blocks for up to `timeout`.
  void FinishStep(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Serve() ABSL_LOCKS_EXCLUDED(mu_);
  void Prepare(const v1::Directive& directive) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ReleaseAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<WorkerJob> Find(const v1::Directive& directive) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  std::atomic<bool> leaves_ = false;
  WorkerMetrics metrics_;
  const std::unique_ptr<CheckpointClient> checkpoints_;  // null without a coordinator
  MemoryBudget budget_;
  mutable absl::Mutex mu_;
  std::shared_ptr<WorkerJob> current_ ABSL_GUARDED_BY(mu_);  // on the job thread
  std::shared_ptr<WorkerJob> next_ ABSL_GUARDED_BY(mu_);     // runs after current_ ends
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::jthread job_thread_;  // last, because it uses all of the above
};

}  // namespace muster
