// Ends calls that stand still: a stream that its client neither feeds nor reads holds a thread, or
// a place among those that are admitted.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lib/limits/limits.h"

namespace muster {

// One thread looks at all calls. Thread-safe; outlives what it watches.
class CallWatch {
 public:
  struct Options {
    absl::Duration interval = absl::Seconds(1);
    absl::Duration first_message_max = limits::kFirstMessageMax;
    absl::Duration stall_max = limits::kStreamStallMax;
  };
  explicit CallWatch(const Options& options);
  ~CallWatch();

  // The patience with a stream that has not said what it is about, and with one that has.
  absl::Duration first_message_max() const { return options_.first_message_max; }
  absl::Duration stall_max() const { return options_.stall_max; }

  // A call that is watched while this exists.
  class Guard {
   public:
    // `cancel` is called once, on the watch's thread, when Advance() was not called for `patience`
    // (and up to the watch's interval more). It must not block, nor destroy the guard.
    Guard(CallWatch* watch, absl::Duration patience, std::function<void()> cancel);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

    // The call has come on. Any thread.
    void Advance();
    // From here on with another patience.
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
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  absl::Mutex mu_;
  std::list<Guard*> guards_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace muster
