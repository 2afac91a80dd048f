// The coordinator without its ports: creates its parts and connects them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/job/path_rules.h"
#include "lib/telemetry/metrics.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "services/coordinator/common/state_disk.h"
#include "services/coordinator/diagnostics/job_traces.h"
#include "services/coordinator/diagnostics/member_logs.h"
#include "services/coordinator/membership/fleet.h"
#include "services/coordinator/membership/fleet_clock.h"
#include "services/coordinator/membership/lease_table.h"
#include "services/coordinator/membership/watch_hub.h"
#include "services/coordinator/operations/checkpointer.h"
#include "services/coordinator/operations/ended_jobs.h"
#include "services/coordinator/operations/job_queries.h"
#include "services/coordinator/operations/membership.h"
#include "services/coordinator/operations/user_operations.h"
#include "services/coordinator/planning/scheduler.h"
#include "services/coordinator/records/coordinator_metrics.h"
#include "services/coordinator/records/metric_series.h"
#include "services/coordinator/registry/job_registry.h"
#include "services/coordinator/store/state_folder.h"
#include "services/coordinator/store/store.h"

namespace muster {

// Owns the parts, connects them, and drives them as time passes. Calls go to the parts: users() and
// checkpoints() change jobs for users, members() for members, and the Scheduler starts jobs. All of
// them change the JobRegistry, which stores a change before any process learns of it.
// Thread-safe. docs/architecture.md, section 4, describes locks, queues and deadlines.
class Coordinator {
 public:
  struct Options {
    std::string state_dir;      // created if missing
    bool data_visible = false;  // CreateJob also opens the data sets
    bool insecure = false;      // shown by ListMembers
    PathRules paths = {};       // the files of this host that a job may name
    absl::Duration lease = absl::Seconds(5);
    EndedJobs::Retention retention;
    Metrics* metrics = nullptr;  // must outlive the coordinator
    // Null: a SqliteStore in the state folder.
    std::unique_ptr<Store> store = nullptr;
    // The store's file on this disk, for the metric of its size; "": in the state folder.
    std::string store_file = "";
    // Shown in ServerInfo.
    std::string store_kind = "sqlite";
    // Must not jump or run backwards.
    std::function<absl::Time()> clock = [clock = std::make_shared<FleetClock>()] {
      return clock->Now();
    };
    // Called from any thread when the next tick would have a job to place. Call Dispatch() then,
    // without waiting for the tick.
    std::function<void()> dispatch_soon = [] {};
    // Called after each job that Open() loads, and once after all.
    std::function<void()> opened_one = [] {};
  };
  // Opens the store, and loads its jobs and the checkpoints on disk. SqliteStore::Open lists the
  // error codes.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Open(Options options);

  uint64_t term() const { return store_->term(); }
  Store& store() { return *store_; }

  // Handles the passing of time: leases, grace periods, scheduling, progress of watches. Must be
  // called every kTickInterval, from one thread.
  static constexpr absl::Duration kTickInterval = absl::Milliseconds(200);
  void Tick();
  // Only schedules. Called from the same thread as Tick(), soon after Options::dispatch_soon was
  // called.
  void Dispatch();
  // Blocks until everything begun so far is planned, stored and published, or deleted.
  void Settle();

  // ---- The parts that calls reach. Each one documents its calls.
  UserOperations& users() { return users_; }
  JobQueries& queries() { return queries_; }
  Checkpointer& checkpoints() { return checkpoints_; }
  Membership& members() { return members_; }
  JobTraces& traces() { return traces_; }

  // Reads a job's metrics.jsonl, also of an ended job; see MetricSeries.
  absl::StatusOr<JobSeries> ReadSeries(const std::string& job, const SeriesRequest& request);
  // Asks a member for the end of its log; see MemberLogs.
  void ReadMemberLog(const v1::ReadMemberLogRequest& request, MemberLogs::Answer answer) {
    logs_.Ask(request, registry_.Now(), std::move(answer));
  }
  // Returns the members, and where this coordinator serves metrics.
  v1::ListMembersResponse ListMembers() const;
  // Returns everything except the access rules, which are not part of the core.
  v1::ServerInfo Describe() const;

 private:
  Coordinator(Options options, StateFolder folder, std::unique_ptr<CoordinatorMetrics> metrics,
              std::unique_ptr<Store> store, LeaseTable::Ordinals ordinals);

  void TickJobs();
  void WakeWatches();
  void ExportMetrics();

  const Options options_;
  const absl::Time start_;
  const std::unique_ptr<CoordinatorMetrics> metrics_;
  const std::unique_ptr<Store> store_;
  Fleet fleet_;
  WatchHub watches_;
  JobRegistry registry_;
  MetricSeries series_;
  Checkpointer checkpoints_;
  UserOperations users_;
  JobQueries queries_;
  MemberLogs logs_;
  JobTraces traces_;
  Membership members_;
  Scheduler scheduler_;
  EndedJobs ended_jobs_;
  StateDisk disk_;
  absl::Time last_tick_ = absl::InfinitePast();  // used by the ticking thread
  // True if the jobs' deadlines did not advance at the last tick. Used by the ticking thread.
  bool stood_still_ = true;
  absl::Time last_progress_ = absl::InfinitePast();  // used by the ticking thread
  absl::Time last_sweep_ = absl::InfinitePast();     // used by the ticking thread
};

}  // namespace muster
