// Stores changes of jobs one after the other, then publishes each.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "services/coordinator/store/store.h"

namespace muster {

// Decouples changes of jobs from the disk. A caller changes a job in memory, under a lock that
// reports wait for, and pushes the change here. The queue's own thread stores it, then publishes
// it. So no process learns of a change that a crash could take back, and no report waits for an
// fsync.
//
// If the disk is full (RESOURCE_EXHAUSTED) the queue retries the change every second, and later
// changes wait behind it. Any other error is fatal: members keep training, and a restarted
// coordinator continues from the store.
//
// Thread-safe.
class CommitQueue {
 public:
  struct Change {
    std::shared_ptr<const v1::Job> record;  // null: no job record to store
    std::vector<v1::JobEvent> events;
    std::shared_ptr<const v1::JobPlan> plan;   // a new generation, or null
    std::optional<v1::Checkpoint> checkpoint;  // newly committed
    std::vector<int64_t> checkpoints_removed;  // steps
    std::optional<Store::Seat> seat;           // does not need a record
    // Called with the change after it is stored, on the queue's thread and without any lock.
    absl::AnyInvocable<void(const Change&)&&> publish = {};
  };
  // The number of a change. 0 precedes all changes.
  using Ticket = uint64_t;

  // `commit` stores one change. In production it is Store::Commit.
  explicit CommitQueue(std::function<absl::Status(const Store::Change&)> commit);
  // Stores and publishes all pushed changes, unless the disk is full.
  ~CommitQueue();

  // Never blocks. May be called under the caller's lock, which then defines the order of changes.
  Ticket Push(Change change) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns true if limits::kChangesQueuedMax changes wait. Push() accepts more: the caller decides
  // whether it can drop the change (a report comes again) or cannot (a member was lost).
  bool full() const ABSL_LOCKS_EXCLUDED(mu_);

  // Returns why the store does not accept the oldest change, or OK.
  absl::Status trouble() const ABSL_LOCKS_EXCLUDED(mu_);

  // Blocks for up to `timeout` until the change is stored and published. After that returns
  // RESOURCE_EXHAUSTED (reason "STORE_FULL") if the disk is full, or else DEADLINE_EXCEEDED
  // ("STORE_SLOW"); the change stays in the queue. Must not be called from a `publish` callback:
  // the queue would wait for itself.
  absl::Status Await(Ticket ticket, absl::Duration timeout) const ABSL_LOCKS_EXCLUDED(mu_);
  // Blocks until everything pushed so far is stored and published. Has no timeout.
  void AwaitAll() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  // Retries while the disk is full. Returns false if the queue is destroyed meanwhile.
  bool StoreWhenThereIsRoom(const Change& change) ABSL_LOCKS_EXCLUDED(mu_);

  const std::function<absl::Status(const Store::Change&)> commit_;
  mutable absl::Mutex mu_;
  std::deque<Change> waiting_ ABSL_GUARDED_BY(mu_);
  Ticket pushed_ ABSL_GUARDED_BY(mu_) = 0;
  Ticket settled_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status trouble_ ABSL_GUARDED_BY(mu_);  // why the store does not accept the oldest change
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last, because it uses the other members
};

}  // namespace muster
