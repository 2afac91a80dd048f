#include "lib/data/pipeline/decode_pool.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/synchronization/barrier.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace muster::decode_pool_test {
namespace {

TEST(DecodePoolTest, RunsEveryPartOnce) {
  DecodePool pool(/*threads=*/3);
  std::vector<std::atomic<int>> runs(1000);
  std::atomic<int> left = 1000;
  absl::Notification done;
  DecodePool::Queue queue(pool);
  for (int64_t first = 0; first < 1000; first += 100) {
    queue.Add(100, [&, first](int64_t part) {
      ++runs[first + part];
      if (--left == 0) done.Notify();
    });
  }
  done.WaitForNotification();
  for (const std::atomic<int>& count : runs) EXPECT_EQ(count, 1);
}

// The last part of the first call ends only after a part of the second call has begun.
TEST(DecodePoolTest, AFreeThreadBeginsTheNextWorkWhileThePartsBeforeRun) {
  DecodePool pool(/*threads=*/2);
  absl::Notification second_began, first_ended;
  DecodePool::Queue queue(pool);
  queue.Add(1, [&](int64_t) {
    second_began.WaitForNotification();
    first_ended.Notify();
  });
  queue.Add(1, [&](int64_t) { second_began.Notify(); });
  first_ended.WaitForNotification();
}

TEST(DecodePoolTest, PartsBeginInTheOrderInWhichTheyWereAdded) {
  DecodePool pool(/*threads=*/1);
  absl::Notification all_added, done;
  std::vector<int64_t> begun;
  DecodePool::Queue one(pool), other(pool);
  one.Add(2, [&](int64_t part) {
    all_added.WaitForNotification();
    begun.push_back(part);
  });
  other.Add(2, [&](int64_t part) { begun.push_back(10 + part); });
  one.Add(1, [&](int64_t) {
    begun.push_back(20);
    done.Notify();
  });
  all_added.Notify();
  done.WaitForNotification();
  EXPECT_EQ(begun, (std::vector<int64_t>{0, 1, 10, 11, 20}));
}

TEST(DecodePoolTest, AQueueThatEndsDropsItsPartsAndWaitsForTheRunningOne) {
  DecodePool pool(/*threads=*/1);
  absl::Notification began, other_done;
  std::atomic<bool> may_end = false, ended = false;
  std::atomic<int> dropped_ran = 0;
  DecodePool::Queue other(pool);
  auto queue = std::make_unique<DecodePool::Queue>(pool);
  queue->Add(1, [&](int64_t) {
    began.Notify();
    while (!may_end) std::this_thread::yield();
    ended = true;
  });
  queue->Add(5, [&](int64_t) { ++dropped_ran; });
  other.Add(1, [&](int64_t) { other_done.Notify(); });
  began.WaitForNotification();
  std::jthread allows([&] { may_end = true; });
  queue.reset();
  EXPECT_TRUE(ended);
  other_done.WaitForNotification();
  EXPECT_EQ(dropped_ran, 0);
}

TEST(DecodePoolTest, ThreadsHaveTheirNiceValue) {
  DecodePool pool(/*threads=*/1, /*nice=*/5);
  absl::Notification done;
  int nice = 0;
  DecodePool::Queue queue(pool);
  queue.Add(1, [&](int64_t) {
    nice = getpriority(PRIO_PROCESS, static_cast<id_t>(gettid()));
    done.Notify();
  });
  done.WaitForNotification();
  EXPECT_EQ(nice, std::min(19, getpriority(PRIO_PROCESS, 0) + 5));
}

TEST(DecodePoolTest, AddsUpWhatItsThreadsMeasure) {
  DecodePool pool(/*threads=*/2);
  absl::Barrier* const both = new absl::Barrier(2);  // the last one to leave deletes it
  {
    DecodePool::Queue queue(pool);
    std::atomic<int> left = 2;
    absl::Notification done;
    queue.Add(
        2,
        [&](int64_t) {
          CountReadBytes(100);
          CountReadSamples(3);
          if (both->Block()) delete both;
        },
        [&] {
          if (--left == 0) done.Notify();
        });
    done.WaitForNotification();
    EXPECT_EQ(pool.usage().times.samples, 6) << "before the parts have ended";
  }
  const DecodePool::Usage usage = pool.usage();
  EXPECT_EQ(usage.times.read_bytes, 200);
  EXPECT_EQ(usage.times.samples, 6);
  EXPECT_GT(usage.times.nanoseconds[static_cast<int>(InputStage::kCopy)], 0);
  // The threads wait now, so the idle time grows.
  while (pool.usage().idle <= usage.idle) std::this_thread::yield();
}

}  // namespace
}  // namespace muster::decode_pool_test
