// Repeats work on a thread of its own.
#pragma once

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace muster {

// Calls a function one interval after the previous call has returned, and after each Soon().
// Thread-safe.
class Repeater {
 public:
  // The first call comes after one interval. absl::InfiniteDuration(): only after Soon().
  Repeater(absl::Duration interval, std::function<void()> work);
  // Finishes a call that is in progress. Calls nothing afterwards.
  ~Repeater();

  // Requests a call. Returns at once. A request during a call causes another one.
  void Soon() ABSL_LOCKS_EXCLUDED(mu_);
  // Blocks until all requested calls have returned.
  void AwaitIdle() const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns true once the destructor runs. Long work checks this and returns early.
  bool stopping() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  bool IsAsked() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return asked_ || stopping_; }

  const absl::Duration interval_;
  const std::function<void()> work_;
  mutable absl::Mutex mu_;
  bool asked_ ABSL_GUARDED_BY(mu_) = false;
  bool working_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last, because it uses the other members
};

}  // namespace muster
