#include "services/ps/update_timer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/optimizer/optimizer.h"

namespace muster::update_timer_test {
namespace {

using kernels::OutgoingStores;
using ::testing::AllOf;
using ::testing::Ge;
using ::testing::Le;

constexpr int kUpdates = 3200;

struct Costs {
  float direct;
  float unfetched;
};

// Counts the unfetched updates among `updates` updates.
int Unfetched(StoresChoice& choice, Costs costs, int updates = kUpdates) {
  int unfetched = 0;
  for (int i = 0; i < updates; ++i) {
    const OutgoingStores stores = choice.Try();
    unfetched += stores == OutgoingStores::kUnfetched;
    choice.Took(stores, stores == OutgoingStores::kDirect ? costs.direct : costs.unfetched);
  }
  return unfetched;
}

TEST(StoresChoiceTest, TriesTheSlowerWayNowAndThen) {
  StoresChoice choice;
  EXPECT_THAT(Unfetched(choice, {.direct = 1, .unfetched = 2}),
              AllOf(Ge(kUpdates / 32), Le(kUpdates / 8)));
  EXPECT_EQ(choice.faster(), OutgoingStores::kDirect);
}

TEST(StoresChoiceTest, FollowsProcessorsThatMove) {
  StoresChoice choice;
  for (int i = 0; i < 5; ++i) {
    Unfetched(choice, {.direct = 1, .unfetched = 1.2f});
    EXPECT_EQ(choice.faster(), OutgoingStores::kDirect) << i;
    EXPECT_GE(Unfetched(choice, {.direct = 3, .unfetched = 2}), kUpdates / 2) << i;
    EXPECT_EQ(choice.faster(), OutgoingStores::kUnfetched) << i;
  }
}

TEST(StoresChoiceTest, OneInterruptedUpdateChangesNothing) {
  StoresChoice choice;
  Unfetched(choice, {.direct = 1, .unfetched = 1.2f});
  choice.Took(OutgoingStores::kDirect, 1000);
  EXPECT_EQ(choice.faster(), OutgoingStores::kDirect);
}

TEST(UpdateTimerTest, EveryLongUpdateIsTimed) {
  UpdateTimer timer;
  for (int i = 0; i < 100; ++i) {
    timer.Begin(1 << 20);
    EXPECT_EQ(timer.End().updates, 1);
  }
}

TEST(UpdateTimerTest, SamplesOfShortUpdatesStandForAll) {
  UpdateTimer timer;
  int timed = 0, stands_for = 0;
  for (int i = 0; i < kUpdates; ++i) {
    timer.Begin(64);
    const UpdateTimer::Sample sample = timer.End();
    timed += sample.updates > 0;
    stands_for += sample.updates;
  }
  EXPECT_THAT(timed, AllOf(Ge(kUpdates / 32), Le(kUpdates / 8)));
  EXPECT_THAT(stands_for, AllOf(Ge(kUpdates - 32), Le(kUpdates)));
}

// Counts the unfetched updates among kUpdates updates of one size.
int Unfetched(UpdateTimer& timer, int64_t elements) {
  int unfetched = 0;
  for (int i = 0; i < kUpdates; ++i) {
    unfetched += timer.Begin(elements) == OutgoingStores::kUnfetched;
    timer.End();
  }
  return unfetched;
}

TEST(UpdateTimerTest, StoresAreDirectIfNoWorkerReadsInPlace) {
  UpdateTimer timer;
  EXPECT_EQ(Unfetched(timer, 1 << 20), 0);
  timer.set_values_are_read_in_place();
  EXPECT_GT(Unfetched(timer, 1 << 20), 0);
  EXPECT_EQ(Unfetched(timer, 64), 0);
}

}  // namespace
}  // namespace muster::update_timer_test
