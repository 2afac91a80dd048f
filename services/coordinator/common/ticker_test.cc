#include "services/coordinator/common/ticker.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "lib/concurrency/steady_wait.h"

namespace muster::ticker_test {
namespace {

TEST(TickerTest, TicksAtEveryInterval) {
  std::atomic<int> ticks = 0;
  absl::Notification third;
  Ticker ticker;
  ticker.Start(
      absl::Milliseconds(1),
      [&] {
        if (++ticks == 3) third.Notify();
      },
      [] { ADD_FAILURE() << "no dispatch was requested"; });
  EXPECT_TRUE(third.WaitForNotificationWithTimeout(absl::Seconds(30)));
}

TEST(TickerTest, ADispatchDoesNotWaitForATick) {
  std::atomic<int> dispatches = 0;
  absl::Notification first, second;
  Ticker ticker;
  ticker.DispatchSoon();  // before Start()
  ticker.Start(
      absl::Hours(1), [] { ADD_FAILURE() << "an hour has not passed"; },
      [&] { (++dispatches == 1 ? first : second).Notify(); });
  ASSERT_TRUE(first.WaitForNotificationWithTimeout(absl::Seconds(30)));
  ticker.DispatchSoon();
  EXPECT_TRUE(second.WaitForNotificationWithTimeout(absl::Seconds(30)));
  ticker.Stop();
  ticker.DispatchSoon();  // has no effect
  EXPECT_EQ(dispatches, 2);
}

TEST(TickerTest, ALongDispatchIsFollowedByALongGap) {
  std::vector<absl::Duration> begins, ends;
  absl::Notification third;
  Ticker ticker;
  ticker.DispatchSoon();
  ticker.Start(
      absl::Hours(1), [] {},
      [&] {
        begins.push_back(SteadyNow());
        while (SteadyNow() - begins.back() < absl::Milliseconds(3)) {
        }
        ends.push_back(SteadyNow());
        begins.size() < 3 ? ticker.DispatchSoon() : third.Notify();
      });
  ASSERT_TRUE(third.WaitForNotificationWithTimeout(absl::Seconds(30)));
  ticker.Stop();
  for (size_t i = 1; i < begins.size(); ++i) {
    EXPECT_GE(begins[i] - ends[i - 1], Ticker::kGapPerWork * absl::Milliseconds(3));
  }
}

}  // namespace
}  // namespace muster::ticker_test
