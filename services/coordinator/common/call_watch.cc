#include "services/coordinator/common/call_watch.h"

#include <glog/logging.h>

#include <utility>

#include "lib/concurrency/steady_wait.h"

namespace muster {

CallWatch::CallWatch(const Options& options)
    : options_(options), repeater_(options.interval, [this] { CancelSilent(); }) {}

CallWatch::~CallWatch() {
  absl::MutexLock lock(&mu_);
  CHECK(guards_.empty()) << "a call outlives its watch";
}

void CallWatch::CancelSilent() {
  absl::MutexLock lock(&mu_);
  const int64_t now = absl::ToInt64Nanoseconds(SteadyNow());
  for (Guard* guard : guards_) {
    if (guard->cancelled() || now - guard->advanced_nanos_ <= guard->patience_nanos_) continue;
    guard->cancelled_.store(true, std::memory_order_release);
    // The lock keeps the guard from being destroyed meanwhile.
    guard->cancel_();
  }
}

CallWatch::Guard::Guard(CallWatch* watch, absl::Duration patience, std::function<void()> cancel)
    : watch_(watch),
      cancel_(std::move(cancel)),
      patience_nanos_(absl::ToInt64Nanoseconds(patience)),
      advanced_nanos_(absl::ToInt64Nanoseconds(SteadyNow())) {
  absl::MutexLock lock(&watch_->mu_);
  place_ = watch_->guards_.insert(watch_->guards_.end(), this);
}

CallWatch::Guard::~Guard() {
  absl::MutexLock lock(&watch_->mu_);
  watch_->guards_.erase(place_);
}

void CallWatch::Guard::Advance() {
  advanced_nanos_.store(absl::ToInt64Nanoseconds(SteadyNow()), std::memory_order_relaxed);
}

void CallWatch::Guard::Advance(absl::Duration patience) {
  Advance();
  patience_nanos_.store(absl::ToInt64Nanoseconds(patience), std::memory_order_relaxed);
}

}  // namespace muster
