#include "services/coordinator/store/commit_queue.h"

#include <glog/logging.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr absl::Duration kFullDiskRetry = absl::Seconds(1);

}  // namespace

CommitQueue::CommitQueue(std::function<absl::Status(const Store::Change&)> commit)
    : commit_(std::move(commit)), thread_([this] { Run(); }) {}

CommitQueue::~CommitQueue() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  thread_.join();
}

CommitQueue::Ticket CommitQueue::Push(Change change) {
  absl::MutexLock lock(&mu_);
  waiting_.push_back(std::move(change));
  return ++pushed_;
}

bool CommitQueue::full() const {
  absl::MutexLock lock(&mu_);
  return std::ssize(waiting_) >= limits::kChangesQueuedMax;
}

absl::Status CommitQueue::trouble() const {
  absl::MutexLock lock(&mu_);
  return trouble_;
}

absl::Status CommitQueue::Await(Ticket ticket, absl::Duration timeout) const {
  CHECK(std::this_thread::get_id() != thread_.get_id()) << "the queue would wait for itself";
  absl::MutexLock lock(&mu_);
  auto settled = [this, ticket]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return settled_ >= ticket; };
  if (AwaitFor(&mu_, absl::Condition(&settled), timeout)) return absl::OkStatus();
  constexpr char kLater[] = "the change takes effect once the store accepts it";
  if (!trouble_.ok()) return Annotate(trouble_, kLater);
  return WithReason(absl::DeadlineExceededError(absl::StrCat(
                        kLater, ": its disk has not answered for ", absl::FormatDuration(timeout))),
                    "STORE_SLOW");
}

void CommitQueue::AwaitAll() const {
  Ticket last;
  {
    absl::MutexLock lock(&mu_);
    last = pushed_;
  }
  CHECK_EQ(Await(last, absl::InfiniteDuration()), absl::OkStatus());
}

bool CommitQueue::StoreWhenThereIsRoom(const Change& change) {
  if (change.record == nullptr && !change.seat) return true;
  const std::string& what = change.record != nullptr ? change.record->name() : change.seat->member;
  while (true) {
    const absl::Status stored =
        commit_({.record = change.record.get(),
                 .events = change.events,
                 .plan = change.plan.get(),
                 .checkpoint = change.checkpoint ? &*change.checkpoint : nullptr,
                 .checkpoints_removed = change.checkpoints_removed,
                 .seat = change.seat ? &*change.seat : nullptr});
    absl::MutexLock lock(&mu_);
    trouble_ = stored;
    if (stored.ok()) return true;
    if (!absl::IsResourceExhausted(stored)) {
      LOG(FATAL) << what << " cannot be stored: " << stored;
    }
    LOG_EVERY_N(ERROR, 60)
        << what << " cannot be stored yet: " << stored
        << ". Free disk space; nothing is lost, but no change is stored until then";
    if (AwaitFor(&mu_, absl::Condition(&stopping_), kFullDiskRetry)) return false;
  }
}

void CommitQueue::Run() {
  auto something = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !waiting_.empty() || stopping_;
  };
  while (true) {
    Change change;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&something));
      if (waiting_.empty()) return;
      change = std::move(waiting_.front());
      waiting_.pop_front();
    }
    if (!StoreWhenThereIsRoom(change)) return;
    if (auto publish = std::move(change.publish)) std::move(publish)(change);
    absl::MutexLock lock(&mu_);
    // Counted only after the publication, so that Await() returns after both.
    ++settled_;
  }
}

}  // namespace muster
