// Who watches which job, and when they are to look again.
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

// A user's WatchJob stream. Owned by the stream, which asks for what is new one call at a time.
class JobWatch {
 public:
  uint64_t number() const { return number_; }
  const std::string& name() const { return name_; }

  // Of the last event sent, and whether the next message need not wait for a change, because more
  // events are stored than the last one could hold; both are the stream's own.
  uint64_t revision = 0;
  bool has_more = false;

 private:
  friend class WatchHub;
  JobWatch(uint64_t number, std::string name, std::shared_ptr<StreamWaker> waker)
      : number_(number), name_(std::move(name)), waker_(std::move(waker)) {}

  const uint64_t number_;
  const std::string name_;
  const std::shared_ptr<StreamWaker> waker_;
  bool due_ = true;  // something is to be sent; guarded by the hub's mutex
};

// A user's WatchJobs stream: of all jobs. Owned by the stream, which asks for what is new one call
// at a time.
class JobsWatch {
 private:
  friend class WatchHub;
  explicit JobsWatch(std::shared_ptr<StreamWaker> waker) : waker_(std::move(waker)) {}

  const std::shared_ptr<StreamWaker> waker_;
  absl::btree_set<uint64_t> changed_;  // jobs, by number; guarded by the hub's mutex
};

// Thread-safe. A watch is forgotten with its stream. Watches are woken outside of the lock; call
// Wake() without any other.
class WatchHub {
 public:
  // A watch of a job, due at once. `revision`: events up to it are known already.
  std::shared_ptr<JobWatch> Add(uint64_t number, std::string name, uint64_t revision,
                                std::shared_ptr<StreamWaker> waker) ABSL_LOCKS_EXCLUDED(mu_);

  // A watch of all jobs: of those that change from now on.
  std::shared_ptr<JobsWatch> AddForAll(std::shared_ptr<StreamWaker> waker) ABSL_LOCKS_EXCLUDED(mu_);

  // Something about these jobs has changed, or they are new, or gone.
  void Wake(absl::Span<const uint64_t> numbers) ABSL_LOCKS_EXCLUDED(mu_);

  // Whether something is to be sent. What changes after this call makes the watch due again.
  bool TakeDue(JobWatch& watch) ABSL_LOCKS_EXCLUDED(mu_);

  // The next of the jobs that have changed, by number, at most so many.
  std::vector<uint64_t> TakeChanged(JobsWatch& watch, int max) ABSL_LOCKS_EXCLUDED(mu_);

  // Jobs of which something is held: of all that were ever watched no more than kForgottenMax
  // beyond those that are watched now.
  static constexpr int kForgottenMax = 1024;
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
