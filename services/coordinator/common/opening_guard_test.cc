#include "services/coordinator/common/opening_guard.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>

#include "lib/concurrency/steady_wait.h"

namespace muster::opening_guard_test {
namespace {

using ::testing::ExitedWithCode;

TEST(OpeningGuardDeathTest, EndsAProcessWithoutProgress) {
  const auto hang = [] {
    const StopSignal stop;
    const OpeningGuard guard(stop, absl::Milliseconds(100));
    for (;;) pause();
  };
  EXPECT_EXIT(hang(), ExitedWithCode(kExitUnavailable), "--state_dir");
}

TEST(OpeningGuardDeathTest, DoesNotEndAProcessThatMakesProgress) {
  const auto open = [] {
    const StopSignal stop;
    {
      OpeningGuard guard(stop, absl::Seconds(1));
      for (const absl::Duration end = SteadyNow() + absl::Seconds(3); SteadyNow() < end;) {
        guard.Advanced();
      }
    }
    std::exit(0);
  };
  EXPECT_EXIT(open(), ExitedWithCode(0), "");
}

TEST(OpeningGuardDeathTest, EndsOnAStopSignal) {
  const auto hang = [] {
    const StopSignal stop;
    const OpeningGuard guard(stop);
    kill(getpid(), SIGTERM);
    for (;;) pause();
  };
  EXPECT_EXIT(hang(), ExitedWithCode(kExitOk), "stopped before it served anything");
}

}  // namespace
}  // namespace muster::opening_guard_test
