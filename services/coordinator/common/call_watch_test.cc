#include "services/coordinator/common/call_watch.h"

#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"

namespace muster::call_watch_test {
namespace {

TEST(CallWatchTest, CancelsAHangingCallOnce) {
  CallWatch watch({.interval = absl::Milliseconds(1)});
  absl::Notification cancelled, looked_again;
  int calls = 0;  // used by the watch's thread
  CallWatch::Guard stuck(&watch, absl::ZeroDuration(), [&] {
    ++calls;
    cancelled.Notify();  // a second call would be fatal
  });
  cancelled.WaitForNotification();
  CallWatch::Guard later(&watch, absl::ZeroDuration(), [&] { looked_again.Notify(); });
  looked_again.WaitForNotification();
  EXPECT_TRUE(stuck.cancelled());
  EXPECT_EQ(calls, 1);
}

TEST(CallWatchTest, DoesNotCancelACallWithinItsTimeLimit) {
  CallWatch watch({.interval = absl::Milliseconds(1)});
  absl::Notification looked;
  CallWatch::Guard patient(&watch, absl::Hours(1), [] { FAIL() << "was not stuck"; });
  CallWatch::Guard stuck(&watch, absl::ZeroDuration(), [&] { looked.Notify(); });
  looked.WaitForNotification();
  EXPECT_FALSE(patient.cancelled());
}

TEST(CallWatchTest, TheTimeLimitMayBecomeShorterOrLonger) {
  CallWatch watch({.interval = absl::Milliseconds(1)});
  absl::Notification cancelled;
  CallWatch::Guard call(&watch, absl::Hours(1), [&] { cancelled.Notify(); });
  call.Advance(absl::ZeroDuration());
  cancelled.WaitForNotification();
}

}  // namespace
}  // namespace muster::call_watch_test
