// One member's open Attach stream, as the core sees it: an outbox of directives.
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

// Thread-safe. The core fills the outbox in order and wakes the stream afterwards; the stream
// takes.
class Attachment {
 public:
  Attachment(std::string member, std::shared_ptr<StreamWaker> waker)
      : member_(std::move(member)),
        waker_(std::move(waker)),
        outbox_(limits::kMailboxMessagesMax) {}

  const std::string& member() const { return member_; }
  const std::shared_ptr<StreamWaker>& waker() const { return waker_; }

  // A directive that finds the outbox full is dropped: what still is wanted will be sent again.
  void Send(MemberDirective told) { outbox_.TryPost(std::move(told)); }
  std::deque<MemberDirective> TakeDirectives() { return outbox_.TakeAll(); }

  // The stream is to end with `status`: its member has another, or is no member any more.
  void Close(absl::Status status) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    closed_ = std::move(status);
  }
  // OK while open.
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
