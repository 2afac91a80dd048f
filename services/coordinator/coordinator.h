// The coordinator without its ports: jobs, fleet, store and checkpoints tied together.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "lib/telemetry/metrics.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "services/coordinator/checkpoint_round.h"
#include "services/coordinator/coordinator_metrics.h"
#include "services/coordinator/fleet.h"
#include "services/coordinator/fleet_clock.h"
#include "services/coordinator/job.h"
#include "services/coordinator/lease_table.h"
#include "services/coordinator/metrics_log.h"
#include "services/coordinator/store.h"
#include "services/coordinator/submission.h"

namespace muster {

// A user's WatchJob stream. Owned by the stream; its state belongs to the Coordinator.
class JobWatch {
 private:
  friend class Coordinator;
  JobWatch(const v1::Job& job, uint64_t revision, std::shared_ptr<StreamWaker> waker)
      : number_(job.number()), name_(job.name()), revision_(revision), waker_(std::move(waker)) {}

  const uint64_t number_;
  const std::string name_;
  uint64_t revision_;  // of the last event sent
  bool due_ = true;    // something is to be sent
  const std::shared_ptr<StreamWaker> waker_;
};

// Thread-safe. One mutex serialises everything: a change is stored before anybody hears of it, so
// small store commits happen under it; data sets, models and checkpoint bytes are handled outside.
// Streams are woken after it is released. A store that fails in the middle of a job's life is
// fatal: the members keep training, a restart goes on from the store.
class Coordinator {
 public:
  struct Options {
    std::string state_dir;      // made if missing
    bool data_visible = false;  // CreateJob opens the data sets
    absl::Duration lease = absl::Seconds(5);
    Metrics* metrics = nullptr;  // outlives the coordinator
    // Neither jumps nor runs backwards.
    std::function<absl::Time()> clock = [clock = std::make_shared<FleetClock>()] {
      return clock->Now();
    };
  };
  // Opens the store (see Store::Open for the codes) and takes up its jobs and the checkpoints found
  // on disk.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Open(Options options);

  uint64_t term() const { return store_->term(); }

  // Lets time pass: leases, grace periods, scheduling, progress of watches. Call several times a
  // second.
  void Tick() ABSL_LOCKS_EXCLUDED(mu_);

  // ---- users; see JobService and CheckpointService for what each does.
  absl::StatusOr<v1::Job> CreateJob(const v1::CreateJobRequest& request) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<v1::Job> GetJob(const std::string& name) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<v1::ListJobsResponse> ListJobs(const v1::ListJobsRequest& request)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<v1::Job> CancelJob(const std::string& name) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status DeleteJob(const std::string& name) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<v1::Job> SuspendJob(const std::string& name) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<v1::Job> ResumeJob(const v1::ResumeJobRequest& request) ABSL_LOCKS_EXCLUDED(mu_);

  absl::StatusOr<std::shared_ptr<JobWatch>> WatchJob(const v1::WatchJobRequest& request,
                                                     std::shared_ptr<StreamWaker> waker)
      ABSL_LOCKS_EXCLUDED(mu_);
  struct WatchAnswer {
    v1::WatchJobResponse response;
    bool last = false;
  };
  // What is to be sent now; nullopt: nothing, the waker will tell. NOT_FOUND: the job was deleted.
  absl::StatusOr<std::optional<WatchAnswer>> NextOf(JobWatch& watch) ABSL_LOCKS_EXCLUDED(mu_);

  absl::StatusOr<std::vector<v1::Checkpoint>> ListCheckpoints(const std::string& parent)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<v1::Checkpoint> GetCheckpoint(const std::string& name) ABSL_LOCKS_EXCLUDED(mu_);
  // Asks a running job for a checkpoint; AwaitCheckpoint() with the answer waits for it.
  absl::StatusOr<int64_t> RequestCheckpoint(const std::string& job) ABSL_LOCKS_EXCLUDED(mu_);
  // The first checkpoint of at least `step`; nullopt when `timeout` passed; ABORTED when the job
  // stopped running before.
  absl::StatusOr<std::optional<v1::Checkpoint>> AwaitCheckpoint(const std::string& job,
                                                                int64_t step,
                                                                absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mu_);

  // ---- members
  // The first report of a stream, with hello.
  absl::StatusOr<std::shared_ptr<Attachment>> Attach(const v1::MemberReport& report,
                                                     std::shared_ptr<StreamWaker> waker)
      ABSL_LOCKS_EXCLUDED(mu_);
  // A later one; the error ends the stream.
  absl::Status Report(Attachment& attachment, const v1::MemberReport& report)
      ABSL_LOCKS_EXCLUDED(mu_);
  enum class Departure {
    kOrderly,  // the member said good-bye: it is gone at once
    kBroken,   // it has its lease to come back
  };
  void Detach(const Attachment& attachment, Departure departure) ABSL_LOCKS_EXCLUDED(mu_);
  v1::ListMembersResponse ListMembers() ABSL_LOCKS_EXCLUDED(mu_);

  // A shard's stream into a checkpoint. nullopt: the checkpoint is committed already, nothing need
  // be sent. Otherwise EndShard() must follow, with the status of the stream; its answer is the
  // shard's. For codes see Job::AdmitShard.
  absl::StatusOr<std::optional<ShardUpload>> BeginShard(const v1::WriteShardHeader& header)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status EndShard(const ShardUpload& upload, absl::Status stream) ABSL_LOCKS_EXCLUDED(mu_);

  struct RestoreSource {
    std::shared_ptr<const v1::JobPlan> plan;
    std::string directory;
  };
  // Where a shard of a plan finds the checkpoint that the plan starts from. FAILED_PRECONDITION:
  // not the current generation, or the plan starts anew.
  absl::StatusOr<RestoreSource> FindRestore(const v1::ReadShardRequest& request)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using RoundKey = std::pair<int64_t, uint64_t>;  // step, snapshot
  using Rounds = absl::btree_map<RoundKey, std::shared_ptr<CheckpointRound>>;
  struct Entry {
    Job job;
    JobOrigin origin;
    absl::Time queued_since;
    v1::JobState published = v1::JOB_STATE_UNSPECIFIED;
    std::unique_ptr<MetricsLog> metrics_log;
    std::vector<std::weak_ptr<JobWatch>> watches;
    Rounds rounds;
    absl::btree_set<RoundKey> abandoned;  // rounds of this generation that failed
    absl::btree_set<int64_t> committed;   // steps committed by this generation
    int writing = 0;                      // open WriteShard streams
  };
  class Turn;

  explicit Coordinator(Options options);

  absl::Status Load() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status LoadJob(StoredJob stored) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status TakeUpCheckpoints(Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::StatusOr<Entry*> Find(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<v1::Checkpoint> FindCheckpoint(const CheckpointRef& reference)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<std::optional<v1::Job>> FindRequest(const v1::CreateJobRequest& request,
                                                     const std::string& fingerprint)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<v1::Job> ChangeByUser(const std::string& name,
                                       const std::function<absl::Status(Job&)>& change)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Stores and publishes what the entry's job has to say. What a store failure would do: see above.
  struct Extra {
    const v1::JobPlan* plan = nullptr;
    const v1::Checkpoint* checkpoint = nullptr;
  };
  void Perform(Entry& entry, const Extra& extra) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Perform(Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Publish(Entry& entry, Job::Effects effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Log(Entry& entry, const Job::Effects& effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Send(const std::string& member, v1::Directive directive) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WakeWatches(Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status OpenMetricsLog(Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  std::vector<Entry*> ActiveJobs() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeReport(const std::string& member, const v1::MemberReport& report)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeSnapshotFailures(Entry& entry, const std::string& member, const v1::JobReport& report)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AbandonRound(Entry& entry, RoundKey key, const absl::Status& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasCommitted(const Entry& entry, uint32_t generation, int64_t step) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Every round that leaves the entry leaves it here. Returns the next one.
  Rounds::iterator EndRound(Entry& entry, Rounds::iterator round, absl::Status outcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropUnwantedRounds(Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LoseMember(const std::string& member, const std::string& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CloseAttachment(const std::string& member, absl::Status status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ScheduleJobs() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StartJob(Entry& entry, const std::vector<std::string>& workers,
                const std::vector<std::string>& ps) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ExportMetrics() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::Status CommitRound(CheckpointRound& round) ABSL_LOCKS_EXCLUDED(mu_);
  void PruneAfter(const CheckpointRound& round) ABSL_LOCKS_EXCLUDED(mu_);

  std::string JobFolder(const std::string& job) const;
  std::string CheckpointFolder(const std::string& job) const;
  absl::Time Now() const { return options_.clock(); }

  const Options options_;
  CoordinatorMetrics metrics_;
  std::unique_ptr<Store> store_;

  absl::Mutex mu_;
  absl::btree_map<uint64_t, std::unique_ptr<Entry>> jobs_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, uint64_t> number_by_id_ ABSL_GUARDED_BY(mu_);
  absl::btree_set<uint64_t> active_ ABSL_GUARDED_BY(mu_);
  LeaseTable leases_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, std::shared_ptr<Attachment>> attachments_ ABSL_GUARDED_BY(mu_);
  absl::Time last_progress_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();

  // Dealt with when the turn ends, outside the mutex.
  std::vector<std::shared_ptr<StreamWaker>> to_wake_ ABSL_GUARDED_BY(mu_);
  std::vector<std::pair<std::shared_ptr<CheckpointRound>, absl::Status>> ended_rounds_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
