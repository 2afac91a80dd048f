// A member's open Attach stream as the core sees it: an outbox of directives.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "lib/concurrency/mailbox.h"
#include "lib/limits/limits.h"
#include "services/coordinator/membership/member_directive.h"
#include "services/coordinator/membership/stream_waker.h"

namespace muster {

// The core fills the outbox in order, then wakes the stream, which takes the directives.
// Thread-safe.
class Attachment {
 public:
  Attachment(std::string member, std::shared_ptr<StreamWaker> waker)
      : member_(std::move(member)),
        waker_(std::move(waker)),
        outbox_(limits::kMailboxMessagesMax) {}

  const std::string& member() const { return member_; }
  const std::shared_ptr<StreamWaker>& waker() const { return waker_; }

  // Adds a directive. Drops it if the outbox is full: the coordinator resends a directive as long
  // as it is desired.
  void Send(MemberDirective told) { outbox_.TryPost(std::move(told)); }
  std::deque<MemberDirective> TakeDirectives() { return outbox_.TakeAll(); }

  // Marks the stream as closed. It ends with `status`, because the member has another stream or is
  // not a member any more.
  void Close(absl::Status status) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    closed_ = std::move(status);
  }
  // Returns OK while the stream is open, then the status of Close().
  absl::Status closed() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return closed_;
  }

 private:
  const std::string member_;
  const std::shared_ptr<StreamWaker> waker_;
  Mailbox<MemberDirective> outbox_;
  mutable absl::Mutex mu_;
  absl::Status closed_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
