#include "services/coordinator/store/commit_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"

namespace muster::commit_queue_test {
namespace {

using ::testing::ElementsAre;

// A disk that records its changes and may be full or slow.
class FakeDisk {
 public:
  absl::Status Commit(const Store::Change& change) {
    absl::MutexLock lock(&mu_);
    ++attempts_;
    mu_.Await(absl::Condition(this, &FakeDisk::quick));
    if (full_) return WithReason(absl::ResourceExhaustedError("store: disk full"), "STORE_FULL");
    log_.push_back(absl::StrCat("stored ", change.record->name()));
    return absl::OkStatus();
  }
  void Note(const std::string& what) {
    absl::MutexLock lock(&mu_);
    log_.push_back(what);
  }
  std::vector<std::string> log() {
    absl::MutexLock lock(&mu_);
    return log_;
  }
  void set_full(bool full) {
    absl::MutexLock lock(&mu_);
    full_ = full;
  }
  void set_slow(bool slow) {
    absl::MutexLock lock(&mu_);
    slow_ = slow;
  }
  void AwaitAttempt() {
    absl::MutexLock lock(&mu_);
    auto tried = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return attempts_ > 0; };
    mu_.Await(absl::Condition(&tried));
  }

 private:
  bool quick() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !slow_; }

  absl::Mutex mu_;
  std::vector<std::string> log_ ABSL_GUARDED_BY(mu_);
  bool full_ ABSL_GUARDED_BY(mu_) = false;
  bool slow_ ABSL_GUARDED_BY(mu_) = false;
  int attempts_ ABSL_GUARDED_BY(mu_) = 0;
};

class CommitQueueTest : public ::testing::Test {
 protected:
  CommitQueue::Change Change(const std::string& name) {
    auto record = std::make_shared<v1::Job>();
    record->set_name(name);
    return {.record = std::move(record), .publish = [this, name](const CommitQueue::Change&) {
              disk_.Note(absl::StrCat("published ", name));
            }};
  }

  FakeDisk disk_;
  CommitQueue queue_{[this](const Store::Change& change) { return disk_.Commit(change); }};
};

TEST_F(CommitQueueTest, StoresEachChangeBeforePublishingItInOrder) {
  queue_.Push(Change("a"));
  CommitQueue::Change unstored{
      .publish = [this](const CommitQueue::Change&) { disk_.Note("published only"); }};
  queue_.Push(std::move(unstored));
  const CommitQueue::Ticket last = queue_.Push(Change("b"));

  ASSERT_TRUE(queue_.Await(last, absl::InfiniteDuration()).ok());

  EXPECT_THAT(disk_.log(),
              ElementsAre("stored a", "published a", "published only", "stored b", "published b"));
}

TEST_F(CommitQueueTest, PushDoesNotWaitForASlowDiskButAwaitTimesOut) {
  disk_.set_slow(true);
  const CommitQueue::Ticket ticket = queue_.Push(Change("a"));
  disk_.AwaitAttempt();
  queue_.Push(Change("b"));

  EXPECT_EQ(ReasonOf(queue_.Await(ticket, absl::ZeroDuration())), "STORE_SLOW");
  EXPECT_THAT(disk_.log(), ElementsAre());

  disk_.set_slow(false);
  queue_.AwaitAll();
  EXPECT_EQ(disk_.log().size(), 4);
}

TEST_F(CommitQueueTest, AFullDiskDelaysAllChangesUntilThereIsSpace) {
  disk_.set_full(true);
  const CommitQueue::Ticket ticket = queue_.Push(Change("a"));
  absl::Status status;
  do {  // the first attempt may still be running
    status = queue_.Await(ticket, absl::Milliseconds(1));
  } while (ReasonOf(status) == "STORE_SLOW");
  EXPECT_EQ(ReasonOf(status), "STORE_FULL") << status;
  EXPECT_THAT(disk_.log(), ElementsAre());

  disk_.set_full(false);
  queue_.AwaitAll();

  EXPECT_THAT(disk_.log(), ElementsAre("stored a", "published a"));
}

TEST_F(CommitQueueTest, AcceptsChangesBeyondItsLimit) {
  disk_.set_slow(true);
  queue_.Push(Change("first"));
  disk_.AwaitAttempt();  // the change has left the queue
  for (int i = 0; i < limits::kChangesQueuedMax; ++i) {
    EXPECT_FALSE(queue_.full());
    queue_.Push({});
  }
  EXPECT_TRUE(queue_.full());

  queue_.Push(Change("last"));
  disk_.set_slow(false);
  queue_.AwaitAll();

  EXPECT_FALSE(queue_.full());
  EXPECT_EQ(disk_.log().back(), "published last");
}

TEST(CommitQueueEndTest, TheDestructorStoresAndPublishesQueuedChanges) {
  std::atomic<int> stored = 0, published = 0;
  {
    CommitQueue queue([&](const Store::Change&) {
      ++stored;
      return absl::OkStatus();
    });
    for (int i = 0; i < 10; ++i) {
      queue.Push({.record = std::make_shared<v1::Job>(),
                  .publish = [&](const CommitQueue::Change&) { ++published; }});
    }
  }
  EXPECT_EQ(stored, 10);
  EXPECT_EQ(published, 10);
}

TEST(CommitQueueEndTest, TheDestructorDoesNotWaitForAFullDisk) {
  absl::Notification tried;
  CommitQueue queue([&](const Store::Change&) {
    if (!tried.HasBeenNotified()) tried.Notify();
    return absl::ResourceExhaustedError("full");
  });
  queue.Push({.record = std::make_shared<v1::Job>(),
              .publish = [](const CommitQueue::Change&) { FAIL() << "not stored"; }});
  tried.WaitForNotification();
}

}  // namespace
}  // namespace muster::commit_queue_test
