// The thread on which time passes for a coordinator.
#pragma once

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace muster {

// Ticks at every interval, and dispatches in between when it was asked to: who waits for members
// need not wait for the next tick as well. Thread-safe.
class Ticker {
 public:
  // However many ask for a dispatch, there is at most one in this time.
  static constexpr absl::Duration kDispatchGap = absl::Milliseconds(5);

  Ticker() = default;
  ~Ticker() { Stop(); }
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

  // Once. Both are called from the ticker's thread.
  void Start(absl::Duration interval, std::function<void()> tick, std::function<void()> dispatch);
  // At any time; what is asked for before Start() is done then.
  void DispatchSoon() ABSL_LOCKS_EXCLUDED(mu_);
  // Nothing is called any more once it returns. For the thread that started it.
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
