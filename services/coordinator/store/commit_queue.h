// Changes of jobs on their way to the disk: each is stored, then published, in the order in which
// they were made.
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

// Thread-safe. Whoever changes a job does so in memory, under a lock that reports wait for, and
// leaves here what must become of it; one thread of the queue's own waits for the disk. So nobody
// hears of a change that a crash could take back, and nobody who reports waits for an fsync.
//
// A disk that is full (RESOURCE_EXHAUSTED) is waited for: the change is tried again every second,
// what comes after it waits behind it. Any other error is fatal: the members keep training, a
// restart goes on from the store.
class CommitQueue {
 public:
  struct Change {
    std::shared_ptr<const v1::Job> record;  // null: nothing of a job is to be stored
    std::vector<v1::JobEvent> events;
    std::shared_ptr<const v1::JobPlan> plan;   // a new generation; or null
    std::optional<v1::Checkpoint> checkpoint;  // committed now
    std::vector<int64_t> checkpoints_removed;  // steps
    std::optional<Store::Seat> seat;           // of a member; needs no record
    // Is told the change itself, on the queue's thread, without any lock.
    absl::AnyInvocable<void(const Change&)&&> publish = {};
  };
  // The number of a change; 0 is before all.
  using Ticket = uint64_t;

  // `commit` stores one change; Store::Commit in life.
  explicit CommitQueue(std::function<absl::Status(const Store::Change&)> commit);
  // Stores and publishes what is inside, unless the disk is full.
  ~CommitQueue();

  // Never waits; may be called under the caller's lock, which makes the order.
  Ticket Push(Change change) ABSL_LOCKS_EXCLUDED(mu_);

  // Whether limits::kChangesQueuedMax wait already. Push() takes more all the same: it is the
  // caller who can do without (a report comes again) or must not (a member was lost).
  bool full() const ABSL_LOCKS_EXCLUDED(mu_);

  // Why the disk does not take the oldest change; OK: it does.
  absl::Status trouble() const ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until the change is stored and published. RESOURCE_EXHAUSTED (reason "STORE_FULL") or
  // DEADLINE_EXCEEDED (reason "STORE_SLOW") after `timeout`: it will be, once the disk lets it.
  // Never to be called by what a change publishes.
  absl::Status Await(Ticket ticket, absl::Duration timeout) const ABSL_LOCKS_EXCLUDED(mu_);
  // The same for all that has been pushed until now, however long it takes.
  void AwaitAll() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  // False: the queue is being destroyed while the disk is full.
  bool StoreWhenThereIsRoom(const Change& change) ABSL_LOCKS_EXCLUDED(mu_);

  const std::function<absl::Status(const Store::Change&)> commit_;
  mutable absl::Mutex mu_;
  std::deque<Change> waiting_ ABSL_GUARDED_BY(mu_);
  Ticket pushed_ ABSL_GUARDED_BY(mu_) = 0;
  Ticket settled_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status trouble_ ABSL_GUARDED_BY(mu_);  // why the disk does not take the oldest change
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace muster
