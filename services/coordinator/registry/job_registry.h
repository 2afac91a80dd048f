// Every job that the coordinator knows, and the one way to change one: in memory first, then on the
// disk, then in public.
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
#include "services/coordinator/scheduling/scheduler.h"
#include "services/coordinator/store/commit_queue.h"
#include "services/coordinator/store/state_folder.h"
#include "services/coordinator/store/store.h"

namespace muster {

// Thread-safe. Jobs are looked at and changed in a Turn, which holds the registry's mutex: reports
// wait for it, so nothing in a turn waits for a disk, parses or plans. What a change leaves to do
// goes through the commit queue: it is stored first, and only then its directives are sent, its
// steps logged, its watches woken and its rounds resolved.
class JobRegistry {
 public:
  struct Options {
    StateFolder folder;
    Store* store;  // these four outlive the registry
    Fleet* fleet;  // takes directives
    WatchHub* watches;
    CoordinatorMetrics* metrics;
    std::function<absl::Time()> clock;
    // Called outside of turns, from any thread, when a job waits that did not before or somebody
    // has come who may be given to one.
    std::function<void()> dispatch_soon = [] {};
  };
  explicit JobRegistry(Options options);

  // Takes up what the store has and what lies on the disk: jobs, checkpoints, metrics logs. A job
  // of which something is damaged is FAILED from then on (reason "JOB_DAMAGED"). An error: the disk
  // failed, was full or may not be read; no job was touched for that. Call it once, before anything
  // else. What it finds to be stored is waited for no longer than a user waits for a change: a full
  // disk must not keep members from coming back. `loaded_one` is called after every job; may be
  // null.
  absl::Status Load(const std::function<void()>& loaded_one = nullptr);

  // What a job's folder says of its checkpoints, held against the store. A checkpoint exists once
  // its folder is renamed: the store may not have heard of it, or of its removal.
  struct CheckpointsFound {
    std::vector<int64_t> on_disk;              // that can be read
    std::vector<v1::Checkpoint> unknown;       // to the store, by step
    std::optional<v1::Checkpoint> last_known;  // to the store, and still there
  };

  struct Entry {
    Job job;                                   // may be ahead of what is stored
    std::shared_ptr<const v1::Job> published;  // the record as it is stored
    // Events that were stored with the last change that had any; null: none since the start. Who
    // watches, and has those before, need not wait for the store.
    std::shared_ptr<const std::vector<v1::JobEvent>> news = nullptr;
    JobOrigin origin;  // without its graph
    // Until there is a plan with it, or the job has ended; null: to be built.
    std::shared_ptr<const v1::Graph> graph;
    absl::Time queued_since;
    CheckpointRounds rounds;
    CommitQueue::Ticket last_change = 0;
    JobTimeline timeline = {};
    bool is_placeable = false;  // as it was looked at last: it waits for nothing but members
    // Of a QUEUED job: what kept it when the dispatcher looked last. Never stored.
    std::optional<Wait> wait = std::nullopt;

    // By which the metrics know a job that has members; they forget it when it has none.
    std::optional<std::string> ActiveId() const;
  };
  class Turn;

  const StateFolder& folder() const { return options_.folder; }
  Store& store() const { return *options_.store; }
  const CommitQueue& changes() const { return changes_; }
  CoordinatorMetrics& metrics() const { return *options_.metrics; }
  // Waits until what was begun until now is recorded, stored and published, but for what the disk
  // does not take.
  void Settle();
  // The steps of a job whose folder is about to go need not be recorded any more. Waits for a write
  // that is under way: not to be called in a turn.
  void DiscardMetrics(uint64_t job) { metrics_.Discard(job); }
  // Why its steps cannot be recorded now.
  absl::Status MetricsTrouble(uint64_t job) const { return metrics_.Trouble(job); }
  absl::Time Now() const { return options_.clock(); }

 private:
  // What lies on the disk of a job that is not damaged.
  struct Findings {
    CheckpointsFound checkpoints;
    std::unique_ptr<const MetricsLog> metrics_log;  // of one that may go on
  };
  // No job that comes gets the folder of one that the store has never known: what is in it would
  // become its own.
  absl::Status PassOverJobFolders();
  absl::StatusOr<Findings> Look(const StoredJob& job);
  // The ticket of what is to be stored of it for that; 0: nothing.
  CommitQueue::Ticket Enter(StoredJob stored, Findings found) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status EnterDamaged(StoredJob stored, const absl::Status& damage) ABSL_LOCKS_EXCLUDED(mu_);

  // What is told once a change is stored.
  struct News {
    uint64_t number = 0;
    Job::Effects effects;  // directives alone: the change has the events
    std::vector<CheckpointRounds::Ended> ended_rounds;
  };
  void RecordsDurable(uint64_t number, const RecordsBefore& durable) ABSL_LOCKS_EXCLUDED(mu_);
  void Publish(News news, const CommitQueue::Change& change) ABSL_LOCKS_EXCLUDED(mu_);
  // What has just become of a job.
  struct Turned {
    bool recovered = false;
    bool placeable = false;  // it waits for nothing but members now
  };
  // Has the job's waits measured.
  Turned LookAt(Entry& entry);
  void CountTransitions(const v1::Job& before, const CommitQueue::Change& change);

  const Options options_;
  absl::Mutex mu_;
  absl::btree_map<uint64_t, std::unique_ptr<Entry>> jobs_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, uint64_t> number_by_id_ ABSL_GUARDED_BY(mu_);
  absl::btree_set<uint64_t> active_ ABSL_GUARDED_BY(mu_);
  CommitQueue changes_;    // its thread uses the others
  MetricsWriter metrics_;  // last: its thread uses all of them
};

// One look at the jobs, or one change: holds the registry's mutex from its beginning to its end.
// Entries that it gives out live no longer than it. Not thread-safe, not to be nested.
class ABSL_SCOPED_LOCKABLE JobRegistry::Turn {
 public:
  explicit Turn(JobRegistry* registry)
      ABSL_EXCLUSIVE_LOCK_FUNCTION(registry->mu_) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  ~Turn() ABSL_UNLOCK_FUNCTION() ABSL_NO_THREAD_SAFETY_ANALYSIS;
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  // By "jobs/ID" or "ID". NOT_FOUND (reason "JOB_NOT_FOUND"): where jobs have "ID" as their name,
  // the message has the ids of the newest.
  absl::StatusOr<Entry*> Find(const std::string& name) const;
  Entry* FindNumber(uint64_t number) const;  // or null
  const absl::btree_map<uint64_t, std::unique_ptr<Entry>>& jobs() const;
  std::vector<Entry*> Active() const;  // by number
  // What users may see of a job: nothing that is not stored but its progress, which never is; and
  // what keeps it from being recorded or stored.
  // BASIC: of the spec only name, resources, priority and labels; nothing of the rest is copied.
  v1::Job View(const Entry& entry, v1::JobView view = v1::JOB_VIEW_FULL) const;

  // A job that is stored already.
  Entry& Add(const v1::Job& record, JobOrigin origin, std::shared_ptr<const v1::Graph> graph,
             std::shared_ptr<const v1::JobPlan> plan);
  // The registry forgets the job, until it is put back.
  std::unique_ptr<Entry> Take(Entry& entry);
  void PutBack(std::unique_ptr<Entry> entry);

  // Sends on its way what the entry's job has to say, and what else belongs to that change. The
  // ticket is of this change, or of the job's last one if nothing has changed.
  struct Extra {
    std::shared_ptr<const v1::JobPlan> plan = nullptr;
    std::optional<v1::Checkpoint> checkpoint = std::nullopt;
    std::vector<int64_t> checkpoints_removed = {};
  };
  CommitQueue::Ticket Perform(Entry& entry, Extra extra);
  CommitQueue::Ticket Perform(Entry& entry) { return Perform(entry, Extra()); }

  // A member has come; the store remembers the newest process of each name.
  void Seat(Store::Seat seat);

  // Lets others have their turns until the condition, which may use this turn, is true or `timeout`
  // has passed.
  void AwaitFor(const absl::Condition& condition, absl::Duration timeout);

  // When the turn is over: see Options; a stream that was closed, and a directive that is no job's.
  void DispatchLater() { dispatches_ = true; }
  void WakeLater(std::shared_ptr<StreamWaker> waker) { to_wake_.push_back(std::move(waker)); }
  void SendLater(std::string member, v1::Directive directive) {
    to_send_.push_back({std::move(member), std::move(directive), nullptr});
  }

 private:
  // "; jobs of this name: line-7, line-6 and 2 older", or "".
  std::string JobsNamed(const std::string& name) const;

  JobRegistry* const registry_;
  std::vector<std::shared_ptr<StreamWaker>> to_wake_;
  std::vector<Job::Outgoing> to_send_;
  std::vector<uint64_t> recovered_;  // jobs, whose watches need not wait for the next second
  bool dispatches_ = false;
};

}  // namespace muster
