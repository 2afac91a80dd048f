// A member of the fleet that holds parameters of several jobs at once, on all of its shard threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "lib/fleet/channel.h"
#include "lib/fleet/fleet_client.h"
#include "lib/shard/chunks/memory_budget.h"
#include "lib/shard/snapshot/checkpoint_client.h"
#include "lib/telemetry/trace.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "services/ps/ps_metrics.h"
#include "services/ps/served_job.h"
#include "services/ps/shard_thread.h"

namespace muster {

// Thread-safe.
class ParameterServer : public FleetMember {
 public:
  struct Options {
    std::string member;
    int threads = 1;
    int64_t memory_bytes = 0;
    TransportFactory transport;         // called once by every shard thread
    CoordinatorTarget coordinator;      // for reading and writing checkpoints
    std::string checkpoint_root;        // see CheckpointClient
    Metrics* metrics = nullptr;         // must outlive the server
    std::function<void()> report_soon;  // called from any thread
  };
  // Returns the transport's error if a shard thread cannot create its transport.
  static absl::StatusOr<std::unique_ptr<ParameterServer>> Create(Options options);
  ~ParameterServer() override;  // calls Stop()

  // Drops every job and ends the shard threads. Blocks until nothing of the server runs;
  // `report_soon` is not called after that.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  // Fills in the fields of Hello that describe this ps: member, role, memory, addresses, transport.
  void Describe(v1::Hello& hello) const;

  std::vector<v1::JobReport> Report() override ABSL_LOCKS_EXCLUDED(mu_);
  void Handle(const v1::Directive& directive) override ABSL_LOCKS_EXCLUDED(mu_);
  void CoordinatorLost() override ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the trace of the job's work here, or null if the job has none here.
  std::shared_ptr<Trace> TraceOf(const std::string& job) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  explicit ParameterServer(Options options);

  void Prepare(const v1::JobPlan& plan) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  ServedJob* Find(const std::string& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Release(const std::string& job, uint32_t generation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  PsMetrics metrics_;
  MemoryBudget budget_;
  CheckpointClient checkpoints_;
  std::vector<std::unique_ptr<ShardThread>> threads_;
  ServedJob::Environment environment_;

  absl::Mutex mu_;
  std::vector<std::unique_ptr<ServedJob>> jobs_ ABSL_GUARDED_BY(mu_);
  // released, but still in use
  std::vector<std::unique_ptr<ServedJob>> leaving_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
