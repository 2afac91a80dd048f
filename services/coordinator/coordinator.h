// The coordinator without its ports: creates its parts and connects them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/job/path_rules.h"
#include "lib/telemetry/metrics.h"
#include "proto/muster/v1/checkpoint.pb.h"
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

// Jobs are in the JobRegistry. UserOperations, Checkpointer and Membership change them for
// callers, the Scheduler starts them, and Tick() handles the passing of time. A change is stored
// before any process learns of it. Thread-safe. docs/architecture.md, section 4, describes locks,
// queues and deadlines.
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

  // ---- Calls of users; see UserOperations, JobQueries and Checkpointer.
  absl::StatusOr<v1::Job> CreateJob(
      const v1::CreateJobRequest& request,
      const UserOperations::CallerGone& caller_gone = [] { return false; }) {
    return users_.CreateJob(request, caller_gone);
  }
  absl::StatusOr<v1::Job> GetJob(const std::string& name) { return users_.GetJob(name); }
  absl::StatusOr<v1::ListJobsResponse> ListJobs(const v1::ListJobsRequest& request) {
    return users_.ListJobs(request);
  }
  absl::StatusOr<v1::Job> CancelJob(const std::string& name) { return users_.CancelJob(name); }
  absl::Status DeleteJob(const std::string& name) { return users_.DeleteJob(name); }
  absl::StatusOr<v1::Job> SuspendJob(const std::string& name) { return users_.SuspendJob(name); }
  absl::StatusOr<v1::Job> ResumeJob(const v1::ResumeJobRequest& request) {
    return users_.ResumeJob(request);
  }
  absl::StatusOr<v1::Job> UpdateJob(const v1::UpdateJobRequest& request) {
    return users_.UpdateJob(request);
  }
  absl::StatusOr<std::shared_ptr<JobWatch>> WatchJob(const v1::WatchJobRequest& request,
                                                     std::shared_ptr<StreamWaker> waker) {
    return users_.WatchJob(request, std::move(waker));
  }
  absl::StatusOr<std::optional<UserOperations::WatchAnswer>> NextOf(JobWatch& watch) {
    return users_.NextOf(watch);
  }

  JobQueries& queries() { return queries_; }
  const ModelUploads& uploads() const { return users_.uploads(); }
  JobTraces& traces() { return traces_; }
  // Reads a job's metrics.jsonl, also of an ended job; see MetricSeries.
  absl::StatusOr<JobSeries> ReadSeries(const std::string& job, const SeriesRequest& request);
  // Returns everything except the access rules, which are not part of the core.
  v1::ServerInfo Describe() const;

  absl::Status DeleteCheckpoint(const std::string& name) { return checkpoints_.Delete(name); }
  absl::StatusOr<std::vector<v1::Checkpoint>> ListCheckpoints(const std::string& parent) {
    return checkpoints_.List(parent);
  }
  absl::StatusOr<v1::Checkpoint> GetCheckpoint(const std::string& name) {
    return checkpoints_.Get(name);
  }
  absl::StatusOr<Job::CheckpointRequest> RequestCheckpoint(const std::string& job) {
    return checkpoints_.Request(job);
  }
  void SaveRunningJobs(absl::Duration timeout) { checkpoints_.SaveRunningJobs(timeout); }
  absl::StatusOr<std::optional<v1::Checkpoint>> AwaitCheckpoint(
      const std::string& job, const Job::CheckpointRequest& request, absl::Duration timeout) {
    return checkpoints_.Await(job, request, timeout);
  }

  // ---- Calls of members; see Membership and Checkpointer.
  using Departure = Fleet::Departure;
  absl::StatusOr<std::shared_ptr<Attachment>> Attach(const v1::MemberReport& report,
                                                     std::shared_ptr<StreamWaker> waker) {
    return members_.Attach(report, std::move(waker));
  }
  absl::Status Report(const Attachment& attachment, const v1::MemberReport& report) {
    return members_.Report(attachment, report);
  }
  void Detach(const Attachment& attachment, Departure departure) {
    members_.Detach(attachment, departure);
  }
  absl::Status DrainMember(const std::string& member) { return members_.Drain(member); }
  v1::ListMembersResponse ListMembers() const;
  void ReadMemberLog(const v1::ReadMemberLogRequest& request, MemberLogs::Answer answer) {
    logs_.Ask(request, registry_.Now(), std::move(answer));
  }

  absl::StatusOr<std::optional<ShardUpload>> BeginShard(
      const v1::WriteShardHeader& header, const std::optional<Identity>& certificate = std::nullopt,
      Checkpointer::Delivery delivery = Checkpointer::Delivery::kStream) {
    return checkpoints_.BeginShard(header, certificate, delivery);
  }
  std::vector<v1::WriteShardDirectResponse> LayoutFor(const ShardUpload& upload) const {
    return checkpoints_.LayoutFor(upload);
  }
  absl::Status EndShard(const ShardUpload& upload, absl::Status stream) {
    return checkpoints_.EndShard(upload, std::move(stream));
  }
  absl::StatusOr<Checkpointer::RestoreSource> FindRestore(
      const v1::ReadShardRequest& request,
      const std::optional<Identity>& certificate = std::nullopt) {
    return checkpoints_.FindRestore(request, certificate);
  }
  void NoteRead(const absl::Status& read) { checkpoints_.NoteRead(read); }

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
