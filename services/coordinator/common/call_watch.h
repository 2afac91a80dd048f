// Ends calls that hang: a stream without progress holds a thread, or an admitted place.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lib/concurrency/repeater.h"
#include "lib/limits/limits.h"

namespace muster {

// One thread checks all calls. Must outlive its guards. Thread-safe.
class CallWatch {
 public:
  struct Options {
    absl::Duration interval = absl::Seconds(1);
    absl::Duration first_message_max = limits::kFirstMessageMax;
    absl::Duration stall_max = limits::kStreamStallMax;
  };
  explicit CallWatch(const Options& options);
  ~CallWatch();

  // Time limits for a stream before its first message, and after it.
  absl::Duration first_message_max() const { return options_.first_message_max; }
  absl::Duration stall_max() const { return options_.stall_max; }

  // Watches a call as long as it exists.
  class Guard {
   public:
    // Calls `cancel` once, on the watch's thread, if Advance() was not called for `patience`, plus
    // up to the watch's interval. `cancel` must not block or destroy the guard.
    Guard(CallWatch* watch, absl::Duration patience, std::function<void()> cancel);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

    // Records progress of the call. Any thread may call it.
    void Advance();
    // Records progress, and changes the time limit.
    void Advance(absl::Duration patience);
    bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }

   private:
    friend class CallWatch;
    CallWatch* const watch_;
    const std::function<void()> cancel_;
    std::atomic<int64_t> patience_nanos_;
    std::atomic<int64_t> advanced_nanos_;  // SteadyNow() of the last Advance()
    std::atomic<bool> cancelled_ = false;
    std::list<Guard*>::iterator place_;
  };

 private:
  void CancelSilent() ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  absl::Mutex mu_;
  std::list<Guard*> guards_ ABSL_GUARDED_BY(mu_);
  Repeater repeater_;  // last, because it uses the other members
};

}  // namespace muster
