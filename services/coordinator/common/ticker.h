// The thread that drives the coordinator's time.
#pragma once

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace muster {

// Ticks at every interval, and dispatches in between on request, so that a job that waits for
// members does not also wait for the next tick. Thread-safe.
class Ticker {
 public:
  // Minimum time between two dispatches, however many are requested.
  static constexpr absl::Duration kDispatchGap = absl::Milliseconds(5);
  // A dispatch that took long is followed by a gap of this many times that long, up to the next
  // tick. So dispatches between two ticks take at most a tenth of the time.
  static constexpr int kGapPerWork = 9;

  Ticker() = default;
  ~Ticker() { Stop(); }
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

  // Calls both functions on the ticker's thread. Call once.
  void Start(absl::Duration interval, std::function<void()> tick, std::function<void()> dispatch);
  // Requests a dispatch. A request before Start() is fulfilled after it.
  void DispatchSoon() ABSL_LOCKS_EXCLUDED(mu_);
  // Nothing is called any more after this returns. Must be called by the thread that called
  // Start().
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run(absl::Duration interval, const std::function<void()>& tick,
           const std::function<void()>& dispatch) ABSL_LOCKS_EXCLUDED(mu_);

  bool IsAsked() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return dispatches_ || stopping_; }

  absl::Mutex mu_;
  bool dispatches_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace muster
