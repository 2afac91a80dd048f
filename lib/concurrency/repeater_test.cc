#include "lib/concurrency/repeater.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"

namespace muster::repeater_test {
namespace {

TEST(RepeaterTest, WorksAtEachInterval) {
  absl::BlockingCounter calls(3);
  std::atomic<int> left = 3;
  const Repeater repeater(absl::Milliseconds(1), [&] {
    if (left-- > 0) calls.DecrementCount();
  });
  calls.Wait();
}

TEST(RepeaterTest, WithoutAnIntervalWorksOnlyOnRequest) {
  std::atomic<int> calls = 0;
  Repeater repeater(absl::InfiniteDuration(), [&] { ++calls; });
  repeater.AwaitIdle();
  EXPECT_EQ(calls, 0);

  repeater.Soon();
  repeater.AwaitIdle();
  EXPECT_EQ(calls, 1);
}

TEST(RepeaterTest, ARequestDuringACallCausesAnother) {
  absl::Notification began, asked;
  std::atomic<int> calls = 0;
  Repeater repeater(absl::InfiniteDuration(), [&] {
    if (++calls > 1) return;
    began.Notify();
    asked.WaitForNotification();
  });
  repeater.Soon();
  began.WaitForNotification();
  repeater.Soon();
  asked.Notify();
  repeater.AwaitIdle();
  EXPECT_EQ(calls, 2);
}

TEST(RepeaterTest, TheEndFinishesACallAndMakesNoOther) {
  absl::Notification began;
  std::atomic<int> calls = 0;
  std::atomic<Repeater*> self = nullptr;
  auto repeater = std::make_unique<Repeater>(absl::InfiniteDuration(), [&] {
    Repeater& running = *self;
    running.Soon();
    began.Notify();
    while (!running.stopping()) std::this_thread::yield();
    ++calls;
  });
  self = repeater.get();
  repeater->Soon();
  began.WaitForNotification();
  repeater.reset();
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace muster::repeater_test
