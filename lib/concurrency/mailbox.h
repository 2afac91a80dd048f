// A bounded queue to threads that may also wait for something else (a transport, a stream).
#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lib/concurrency/steady_wait.h"

namespace muster {

// Many threads may post and take. Thread-safe. After Close() posts are refused, and the remaining
// messages can still be taken. `wake`, if given, is called after every successful post, outside the
// lock: it interrupts the taker's wait.
template <typename T>
class Mailbox {
 public:
  explicit Mailbox(size_t capacity, absl::AnyInvocable<void()> wake = nullptr)
      : capacity_(capacity), wake_(std::move(wake)) {}

  // Returns false if the mailbox is full or closed; `message` is dropped then.
  bool TryPost(T message) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      if (closed_ || messages_.size() >= capacity_) return false;
      messages_.push_back(std::move(message));
    }
    if (wake_) wake_();
    return true;
  }

  // Blocks until there is room. Returns false if the mailbox is closed.
  bool Post(T message) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      auto room = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return closed_ || messages_.size() < capacity_;
      };
      mu_.Await(absl::Condition(&room));
      if (closed_) return false;
      messages_.push_back(std::move(message));
    }
    if (wake_) wake_();
    return true;
  }

  // Returns all messages, without waiting.
  std::deque<T> TakeAll() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return std::exchange(messages_, {});
  }

  // Blocks for up to `timeout` for a message. Returns false at the deadline, or if the mailbox is
  // closed and empty.
  bool Take(T& message, absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    auto ready = [this]()
                     ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return closed_ || !messages_.empty(); };
    AwaitFor(&mu_, absl::Condition(&ready), timeout);
    if (messages_.empty()) return false;
    message = std::move(messages_.front());
    messages_.pop_front();
    return true;
  }

  void Close() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }

  bool closed() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return closed_;
  }

 private:
  const size_t capacity_;
  absl::AnyInvocable<void()> wake_;
  mutable absl::Mutex mu_;
  std::deque<T> messages_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace muster
