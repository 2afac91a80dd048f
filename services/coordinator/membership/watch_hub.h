// Tracks the watchers of jobs, and wakes them after changes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "services/coordinator/membership/stream_waker.h"

namespace muster {

// A user's WatchJob stream. The stream owns it, and makes one call at a time.
class JobWatch {
 public:
  uint64_t number() const { return number_; }
  const std::string& name() const { return name_; }

  // Used by the stream only: the revision of the last event sent, and whether the last message
  // could not hold all stored events. If so, the next message does not wait for a change.
  uint64_t revision = 0;
  bool has_more = false;

 private:
  friend class WatchHub;
  JobWatch(uint64_t number, std::string name, std::shared_ptr<StreamWaker> waker)
      : number_(number), name_(std::move(name)), waker_(std::move(waker)) {}

  const uint64_t number_;
  const std::string name_;
  const std::shared_ptr<StreamWaker> waker_;
  bool due_ = true;  // something must be sent; guarded by the hub's mutex
};

// A user's WatchJobs stream, which watches all jobs. The stream owns it, and makes one call at a
// time.
class JobsWatch {
 private:
  friend class WatchHub;
  explicit JobsWatch(std::shared_ptr<StreamWaker> waker) : waker_(std::move(waker)) {}

  const std::shared_ptr<StreamWaker> waker_;
  absl::btree_set<uint64_t> changed_;  // jobs by number; guarded by the hub's mutex
};

// One message of a watch.
template <typename Response>
struct WatchUpdate {
  Response response;
  bool last = false;  // no other one follows
};

// The hub forgets a watch when its stream is gone. It wakes watches without holding its lock. Call
// Wake() without any other lock. Thread-safe.
class WatchHub {
 public:
  // Adds a watch of a job, due at once. `revision`: the watcher knows the events up to it.
  std::shared_ptr<JobWatch> Add(uint64_t number, std::string name, uint64_t revision,
                                std::shared_ptr<StreamWaker> waker) ABSL_LOCKS_EXCLUDED(mu_);

  // Adds a watch of all jobs that change from now on.
  std::shared_ptr<JobsWatch> AddForAll(std::shared_ptr<StreamWaker> waker) ABSL_LOCKS_EXCLUDED(mu_);

  // Reports that these jobs changed, are new, or were deleted.
  void Wake(absl::Span<const uint64_t> numbers) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns true if something must be sent. Later changes make the watch due again.
  bool TakeDue(JobWatch& watch) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the next changed jobs by number, at most `max`.
  std::vector<uint64_t> TakeChanged(JobsWatch& watch, int max) ABSL_LOCKS_EXCLUDED(mu_);

  // How many calls of Add() pass until the hub drops watches whose streams are gone.
  static constexpr int kForgottenMax = 1024;
  // Returns the number of jobs in memory: at most kForgottenMax more than the jobs that are watched
  // now.
  int64_t jobs_held() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void ForgetGone() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  absl::flat_hash_map<uint64_t, std::vector<std::weak_ptr<JobWatch>>> watches_
      ABSL_GUARDED_BY(mu_);  // by job number
  std::vector<std::weak_ptr<JobsWatch>> watches_of_all_ ABSL_GUARDED_BY(mu_);
  int added_ ABSL_GUARDED_BY(mu_) = 0;  // since the last ForgetGone()
};

}  // namespace muster
