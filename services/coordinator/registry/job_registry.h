// All jobs that the coordinator knows. A change is made in memory, then stored, then published.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/job.pb.h"
#include "services/coordinator/checkpoints/checkpoint_rounds.h"
#include "services/coordinator/job/job.h"
#include "services/coordinator/membership/fleet.h"
#include "services/coordinator/membership/watch_hub.h"
#include "services/coordinator/records/coordinator_metrics.h"
#include "services/coordinator/records/job_timeline.h"
#include "services/coordinator/records/metrics_log.h"
#include "services/coordinator/records/metrics_writer.h"
#include "services/coordinator/scheduling/queue_placement.h"
#include "services/coordinator/store/commit_queue.h"
#include "services/coordinator/store/state_folder.h"
#include "services/coordinator/store/store.h"

namespace muster {

// Jobs are read and changed in a transaction (Transaction), which holds the registry's mutex.
// Reports wait for that mutex, so a transaction must not wait for a disk, parse or plan. The
// effects of a change go through the commit queue: the change is stored, and only then its
// directives are sent, its watches woken and its rounds resolved. Records of steps do not pass the
// queue: the metrics writer logs them on its own thread. Thread-safe.
class JobRegistry {
 public:
  struct Options {
    StateFolder folder;
    Store* store;  // these four must outlive the registry
    Fleet* fleet;  // takes directives
    WatchHub* watches;
    CoordinatorMetrics* metrics;
    std::function<absl::Time()> clock;
    // Called outside of transactions, from any thread, when a job starts to wait for members, or
    // when a member has attached.
    std::function<void()> dispatch_soon = [] {};
  };
  explicit JobRegistry(Options options);

  // Loads jobs, checkpoints and metrics logs from the store and the disk. A job with damaged data
  // becomes FAILED (reason "JOB_DAMAGED"). Returns an error if the disk failed, was full or could
  // not be read; the job with the affected file is not changed then. Waits until the checkpoints
  // that it found are stored, but not longer than limits::kChangeWaitMax, because a slow disk must
  // not keep members from reattaching. Calls `loaded_one` after each job; it may be null. Call
  // once, before any other method.
  absl::Status Load(const std::function<void()>& loaded_one = nullptr);

  // The checkpoints in a job's folder, compared with the store. A checkpoint is committed or
  // removed on disk first. So the store may lack one that is there, or know one that is gone.
  struct CheckpointsFound {
    std::vector<int64_t> on_disk;         // steps; unknown ones only if they are readable
    std::vector<v1::Checkpoint> unknown;  // not known to the store, by step
    // The newest one that the store knows, that is still on disk, and that is not after the job's
    // last checkpoint.
    std::optional<v1::Checkpoint> last_known;
  };

  // The place of a job in the queue: higher priority first, then submission order.
  using QueueKey = std::pair<int64_t, uint64_t>;

  struct Entry {
    Job job;                                   // may be ahead of the store
    std::shared_ptr<const v1::Job> published;  // the record as it is stored
    // The events of the last stored change that had events; null if there was none since the start.
    // A watch that has the earlier events need not read the store.
    std::shared_ptr<const std::vector<v1::JobEvent>> news = nullptr;
    JobOrigin origin;  // without its graph
    // Kept until there is a plan with it, or the job has ended. Null: it is in the plan, or must be
    // built.
    std::shared_ptr<const v1::Graph> graph;
    std::optional<QueueKey> in_queue = std::nullopt;  // set while the job is QUEUED
    absl::Time queued_since = absl::InfinitePast();   // when it entered the queue
    CheckpointRounds rounds;
    CommitQueue::Ticket last_change = 0;
    JobTimeline timeline = {};
    bool is_placeable = false;  // at the last look, it waited only for members
    // The obstacle that the scheduler found at its last look, if the job is QUEUED. Never stored.
    std::optional<Wait> wait = std::nullopt;

    // Returns the id under which the metrics know the job, or nullopt if it has no members.
    std::optional<std::string> ActiveId() const;
  };
  class Transaction;
  using Queue = absl::btree_map<QueueKey, Entry*>;

  const StateFolder& folder() const { return options_.folder; }
  Store& store() const { return *options_.store; }
  const CommitQueue& changes() const { return changes_; }
  CoordinatorMetrics& metrics() const { return *options_.metrics; }
  // Blocks until everything begun so far is recorded, stored and published, except what the disk
  // does not accept.
  void Settle();
  // Drops the unrecorded steps of a job before its folder is removed. Waits for a write in
  // progress, so it must not be called in a transaction.
  void DiscardMetrics(uint64_t job) { metrics_.Discard(job); }
  // Returns why the job's steps cannot be recorded now, or OK.
  absl::Status MetricsTrouble(uint64_t job) const { return metrics_.Trouble(job); }
  absl::Time Now() const { return options_.clock(); }

 private:
  // The data on disk of an undamaged job.
  struct Findings {
    CheckpointsFound checkpoints;
    std::unique_ptr<const MetricsLog> metrics_log;  // only of a job that may continue
  };
  // Raises the job counter above the numbers of all job folders. Otherwise a new job could get the
  // folder of an unknown job and take its content for its own.
  absl::Status PassOverJobFolders();
  absl::StatusOr<Findings> Look(const StoredJob& job);
  // Adds a loaded job. Returns the ticket of a change that must be stored for it; 0: none.
  CommitQueue::Ticket Enter(StoredJob stored, Findings found) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status EnterDamaged(StoredJob stored, const absl::Status& damage) ABSL_LOCKS_EXCLUDED(mu_);

  // Everything to publish after a change is stored.
  struct News {
    uint64_t number = 0;
    Job::Effects effects;  // directives only: the change has the events
    std::vector<CheckpointRounds::Ended> ended_rounds;
  };
  void RecordsDurable(uint64_t number, const RecordsBefore& durable) ABSL_LOCKS_EXCLUDED(mu_);
  void Publish(News news, const CommitQueue::Change& change) ABSL_LOCKS_EXCLUDED(mu_);
  // The result of a change.
  struct Turned {
    bool recovered = false;
    bool placeable = false;  // it now waits only for members
  };
  // Updates the job's timeline and metrics.
  Turned LookAt(Entry& entry);
  // Puts the job into the queue, moves it there or removes it, as its state and priority say.
  void UpdateQueue(Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CountTransitions(const v1::Job& before, const CommitQueue::Change& change);

  const Options options_;
  absl::Mutex mu_;
  absl::btree_map<uint64_t, std::unique_ptr<Entry>> jobs_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, uint64_t> number_by_id_ ABSL_GUARDED_BY(mu_);
  absl::btree_set<uint64_t> active_ ABSL_GUARDED_BY(mu_);
  Queue queue_ ABSL_GUARDED_BY(mu_);
  CommitQueue changes_;    // its thread uses the members above
  MetricsWriter metrics_;  // last: its thread uses all other members
};

// A transaction on the jobs: reads or changes them. Holds the registry's mutex during its life.
// Entries must not be used after it. Must not be nested. Not thread-safe.
class ABSL_SCOPED_LOCKABLE JobRegistry::Transaction {
 public:
  explicit Transaction(JobRegistry* registry)
      ABSL_EXCLUSIVE_LOCK_FUNCTION(registry->mu_) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  ~Transaction() ABSL_UNLOCK_FUNCTION() ABSL_NO_THREAD_SAFETY_ANALYSIS;
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  // Finds a job by "jobs/ID" or "ID". Returns NOT_FOUND (reason "JOB_NOT_FOUND") if there is no
  // such job. If jobs have "ID" as their name, the message lists the ids of the newest ones.
  absl::StatusOr<Entry*> Find(const std::string& name) const;
  Entry* FindNumber(uint64_t number) const;  // or null
  const absl::btree_map<uint64_t, std::unique_ptr<Entry>>& jobs() const;
  std::vector<Entry*> Active() const;  // by number
  const Queue& queue() const;          // the QUEUED jobs, as of their last Commit()
  // Returns a job as users may see it: the stored record, its present progress, why it waits, and
  // any obstacle to recording or storing it. JOB_VIEW_BASIC copies only name, resources, priority
  // and labels of the spec.
  v1::Job View(const Entry& entry, v1::JobView view = v1::JOB_VIEW_FULL) const;

  // Adds a job that is already stored.
  Entry& Add(const v1::Job& record, JobOrigin origin, std::shared_ptr<const v1::Graph> graph,
             std::shared_ptr<const v1::JobPlan> plan);
  // Removes the job from the registry, until PutBack().
  std::unique_ptr<Entry> Take(Entry& entry);
  void PutBack(std::unique_ptr<Entry> entry);

  // Further parts of a change.
  struct Extra {
    std::shared_ptr<const v1::JobPlan> plan = nullptr;
    std::optional<v1::Checkpoint> checkpoint = std::nullopt;
    std::vector<int64_t> checkpoints_removed = {};
  };
  // Commits the pending effects of the entry's job, with `extra` as a part of the same change.
  // Returns the ticket of this change, or of the job's last change if there is nothing new.
  CommitQueue::Ticket Commit(Entry& entry, Extra extra);
  CommitQueue::Ticket Commit(Entry& entry) { return Commit(entry, Extra()); }

  // Stores the newest process of a member's name.
  void Seat(Store::Seat seat);

  // Releases the registry to other transactions until the condition, which may use this
  // transaction, is true or `timeout` has passed.
  void AwaitFor(const absl::Condition& condition, absl::Duration timeout);

  // Actions after the end of the transaction: dispatch (see Options), wake a closed stream, or send
  // a directive that belongs to no job.
  void DispatchLater() { dispatches_ = true; }
  void WakeLater(std::shared_ptr<StreamWaker> waker) { to_wake_.push_back(std::move(waker)); }
  void SendLater(std::string member, v1::Directive directive) {
    to_send_.push_back({std::move(member), std::move(directive), nullptr});
  }

 private:
  // Returns "; jobs of this name: line-7, line-6 and 2 older", or "".
  std::string JobsNamed(const std::string& name) const;

  JobRegistry* const registry_;
  std::vector<std::shared_ptr<StreamWaker>> to_wake_;
  std::vector<Job::Outgoing> to_send_;
  // Jobs that have just recovered. Their watches are woken at once, not in the next second.
  std::vector<uint64_t> recovered_;
  bool dispatches_ = false;
};

}  // namespace muster
