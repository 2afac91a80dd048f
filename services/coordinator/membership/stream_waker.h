// Lets the core tell a gRPC stream that something is waiting for it, though the stream may be gone
// by then.
#pragma once

#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace muster {

// Thread-safe. `wake` must not block; once Disarm() has returned it is not running and will not be
// called again.
class StreamWaker {
 public:
  explicit StreamWaker(std::function<void()> wake) : wake_(std::move(wake)) {}

  void Wake() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (wake_) wake_();
  }
  void Disarm() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    wake_ = nullptr;
  }

 private:
  absl::Mutex mu_;
  std::function<void()> wake_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
