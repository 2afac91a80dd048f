#include "lib/collective/barrier.h"

#include <atomic>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace muster::barrier_test {
namespace {

TEST(BarrierTest, BlocksUntilAllHaveArrived) {
  constexpr int kThreads = 4;
  constexpr int kPhases = 200;
  Barrier barrier(kThreads);
  std::atomic<int> arrived = 0;
  std::atomic<bool> early = false;
  std::vector<std::jthread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int phase = 1; phase <= kPhases; ++phase) {
        ++arrived;
        if (!barrier.Await().ok() || arrived < phase * kThreads) early = true;
        if (!barrier.Await().ok()) early = true;
      }
    });
  }
  threads.clear();
  EXPECT_FALSE(early);
  EXPECT_EQ(arrived, kThreads * kPhases);
}

TEST(BarrierTest, AbortReleasesPresentAndLaterWaitersWithTheFirstReason) {
  Barrier barrier(2);
  absl::Status seen;
  std::jthread waiter([&] { seen = barrier.Await(); });
  barrier.Abort(absl::InternalError("device 1 failed"));
  barrier.Abort(absl::CancelledError("later"));
  waiter.join();

  EXPECT_EQ(seen, absl::InternalError("device 1 failed"));
  EXPECT_EQ(barrier.Await(), absl::InternalError("device 1 failed"));
}

}  // namespace
}  // namespace muster::barrier_test
