// Wakes a gRPC stream for the core, even if the stream may already be gone.
#pragma once

#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace muster {

// `wake` must not block. After Disarm() has returned, `wake` is not running and is not called
// again.
// Thread-safe.
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
