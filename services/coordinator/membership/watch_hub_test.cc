#include "services/coordinator/membership/watch_hub.h"

#include <gtest/gtest.h>

namespace muster::watch_hub_test {
namespace {

TEST(WatchHubTest, AWatchIsDueAtOnceAndAgainAfterEachChangeOfItsJob) {
  WatchHub hub;
  int wakes = 0;
  const auto watch =
      hub.Add(3, "jobs/line-3", /*revision=*/5, std::make_shared<StreamWaker>([&] { ++wakes; }));
  EXPECT_EQ(watch->revision, 5);
  EXPECT_TRUE(hub.TakeDue(*watch));
  EXPECT_FALSE(hub.TakeDue(*watch));

  hub.Wake({4});
  EXPECT_FALSE(hub.TakeDue(*watch)) << "another job";
  hub.Wake({2, 3});

  EXPECT_EQ(wakes, 1);
  EXPECT_TRUE(hub.TakeDue(*watch));
}

// A woken stream looks for changes and so calls the hub.
TEST(WatchHubTest, AWokenStreamMayCallTheHub) {
  WatchHub hub;
  std::shared_ptr<JobWatch> watch;
  bool due = false;
  watch = hub.Add(1, "jobs/line-1", 0,
                  std::make_shared<StreamWaker>([&] { due = hub.TakeDue(*watch); }));
  ASSERT_TRUE(hub.TakeDue(*watch));

  hub.Wake({1});

  EXPECT_TRUE(due);
}

TEST(WatchHubTest, AWatchIsForgottenWithItsStream) {
  WatchHub hub;
  int wakes = 0;
  hub.Add(1, "jobs/line-1", 0, std::make_shared<StreamWaker>([&] { ++wakes; }));

  hub.Wake({1});

  EXPECT_EQ(wakes, 0);
}

TEST(WatchHubTest, WatchesOfUnchangedJobsDoNotAccumulate) {
  WatchHub hub;
  auto waker = std::make_shared<StreamWaker>(std::function<void()>());
  const auto held = hub.Add(1, "jobs/line-1", 0, waker);

  for (uint64_t number = 2; number < 5 * WatchHub::kForgottenMax; ++number) {
    hub.Add(number, "ended", 0, waker);
    ASSERT_LE(hub.jobs_held(), WatchHub::kForgottenMax + 2);
  }

  hub.TakeDue(*held);
  hub.Wake({1});
  EXPECT_TRUE(hub.TakeDue(*held)) << "one whose stream is there is not forgotten";
}

}  // namespace
}  // namespace muster::watch_hub_test
