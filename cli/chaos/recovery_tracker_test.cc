#include "cli/chaos/recovery_tracker.h"

#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::cli::recovery_tracker_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsNull;
using ::testing::NotNull;
using ::testing::Pair;

v1::WatchJobResponse Update(uint32_t generation, v1::JobState state, int64_t step) {
  v1::WatchJobResponse update;
  update.mutable_job()->set_generation(generation);
  update.mutable_job()->set_state(state);
  update.mutable_job()->mutable_progress()->set_step(step);
  return update;
}

v1::WatchJobResponse Event(v1::JobState state, const std::string& reason) {
  v1::WatchJobResponse update;
  v1::JobEvent& event = *update.add_events();
  event.set_state(state);
  event.set_reason(reason);
  return update;
}

TEST(ChaosDiceTest, ASeedDrawsTheSameStrikesEachTime) {
  ChaosDice one(17, {ChaosRole::kPs, ChaosRole::kWorker}),
      other(17, {ChaosRole::kPs, ChaosRole::kWorker}),
      another(18, {ChaosRole::kPs, ChaosRole::kWorker});
  bool differs = false;
  for (int i = 0; i < 100; ++i) {
    const ChaosDice::Throw a = one.Next(), b = other.Next(), c = another.Next();
    EXPECT_EQ(a.gap, b.gap);
    EXPECT_EQ(a.role, b.role);
    EXPECT_EQ(a.pick, b.pick);
    differs |= a.pick != c.pick;
  }
  EXPECT_TRUE(differs);
}

TEST(ChaosDiceTest, HalfOfTheStrikesAreAtPsAndAFifthAtTheCoordinator) {
  ChaosDice dice(3, {ChaosRole::kPs, ChaosRole::kWorker, ChaosRole::kCoordinator});
  std::map<ChaosRole, int> count;
  double gaps = 0;
  for (int i = 0; i < 10000; ++i) {
    const ChaosDice::Throw next = dice.Next();
    ++count[next.role];
    gaps += next.gap;
    ASSERT_GE(next.gap, 0.5);
    ASSERT_LT(next.gap, 1.5);
  }
  EXPECT_NEAR(count[ChaosRole::kPs], 5000, 200);
  EXPECT_NEAR(count[ChaosRole::kWorker], 3000, 200);
  EXPECT_NEAR(count[ChaosRole::kCoordinator], 2000, 200);
  EXPECT_NEAR(gaps, 10000, 200);
}

TEST(ChaosRolesTest, ParsesTheNamesOfRoles) {
  EXPECT_THAT(*ParseChaosRoles("worker,ps,worker"),
              ElementsAre(ChaosRole::kWorker, ChaosRole::kPs));
  EXPECT_THAT(*ParseChaosRoles("scale"), ElementsAre(ChaosRole::kScale));
  const absl::Status unknown = ParseChaosRoles("ps,master").status();
  EXPECT_TRUE(absl::IsInvalidArgument(unknown));
  EXPECT_THAT(std::string(unknown.message()),
              HasSubstr("unknown 'master'; the roles are ps, worker, coordinator and scale"));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseChaosRoles("").status()));
}

TEST(RecoveryTrackerTest, AScaledJobHasRecoveredAtANewStepAfterItsSuspension) {
  RecoveryTracker tracker;
  tracker.Take(Update(1, v1::RUNNING, 100), absl::Seconds(1));
  tracker.Struck(ChaosRole::kScale, "scale to 1 worker", RecoveryTracker::Until::kNextGeneration,
                 absl::Seconds(2));
  tracker.Take(Update(1, v1::RUNNING, 110), absl::Seconds(3));  // up to the checkpoint
  tracker.Take(Update(1, v1::SUSPENDED, 110), absl::Seconds(4));
  tracker.Take(Update(1, v1::QUEUED, 110), absl::Seconds(4));
  tracker.Take(Update(2, v1::PREPARING, 110), absl::Seconds(5));
  tracker.Take(Update(2, v1::RUNNING, 110), absl::Seconds(6));
  EXPECT_THAT(tracker.pending(), NotNull());
  tracker.Take(Update(2, v1::RUNNING, 111), absl::Seconds(7));
  EXPECT_THAT(tracker.pending(), IsNull());
  EXPECT_EQ(tracker.strikes()[0].recovery, absl::Seconds(5));
  EXPECT_THAT(tracker.recoveries(), ::testing::IsEmpty()) << "a suspension is no recovery";
  const RecoveryFigures figures = FiguresOf(tracker.strikes(), ChaosRole::kScale);
  EXPECT_EQ(figures.recovered, 1);
}

TEST(RecoveryTrackerTest, AKilledWorkerHasRecoveredAtANewStepOfTheNextGeneration) {
  RecoveryTracker tracker;
  tracker.Take(Update(1, v1::RUNNING, 100), absl::Seconds(1));
  tracker.Struck(ChaosRole::kWorker, "worker-1", RecoveryTracker::Until::kNextGeneration,
                 absl::Seconds(2));
  tracker.Returned("worker-1");

  tracker.Take(Update(1, v1::RUNNING, 105), absl::Seconds(3));  // computed before the kill
  tracker.Take(Update(2, v1::RUNNING, 105),
               absl::Seconds(4));  // repeats some steps
  ASSERT_THAT(tracker.pending(), NotNull());
  EXPECT_EQ(tracker.pending()->step, 100);
  tracker.Take(Update(2, v1::RUNNING, 106), absl::Milliseconds(4500));

  EXPECT_THAT(tracker.pending(), IsNull());
  EXPECT_EQ(tracker.strikes()[0].recovery, absl::Milliseconds(2500));
}

TEST(RecoveryTrackerTest, AKilledCoordinatorHasRecoveredAtANewStepAfterItsRestart) {
  RecoveryTracker tracker;
  tracker.Take(Update(1, v1::RUNNING, 100), absl::Seconds(1));
  tracker.Struck(ChaosRole::kCoordinator, "coordinator", RecoveryTracker::Until::kNextStep,
                 absl::Seconds(2));

  tracker.Take(Update(1, v1::RUNNING, 101), absl::Seconds(2));  // sent before the kill
  EXPECT_THAT(tracker.pending(), NotNull());
  tracker.Returned("coordinator");
  tracker.Take(Update(1, v1::RUNNING, 101), absl::Seconds(3));
  EXPECT_THAT(tracker.pending(), NotNull());
  tracker.Take(Update(1, v1::RUNNING, 150), absl::Seconds(4));

  EXPECT_THAT(tracker.pending(), IsNull());
  EXPECT_EQ(tracker.strikes()[0].recovery, absl::Seconds(2));
}

TEST(RecoveryTrackerTest, AJobThatSucceedsHasRecoveredAndOneThatFailsHasNot) {
  for (const v1::JobState end : {v1::SUCCEEDED, v1::FAILED}) {
    RecoveryTracker tracker;
    tracker.Take(Update(1, v1::RUNNING, 100), absl::Seconds(1));
    tracker.Struck(ChaosRole::kPs, "ps-0", RecoveryTracker::Until::kNextGeneration,
                   absl::Seconds(2));
    tracker.Take(Update(1, end, 100), absl::Seconds(3));

    EXPECT_EQ(tracker.strikes()[0].recovered(), end == v1::SUCCEEDED);
  }
}

TEST(RecoveryTrackerTest, StepsRepeatedBeforeTheWatchAreNotCounted) {
  RecoveryTracker tracker;
  v1::WatchJobResponse update = Event(v1::RUNNING, "STARTED");
  update.mutable_job()->mutable_recovery()->set_steps_again(70);
  tracker.Take(update, absl::Seconds(1));
  EXPECT_EQ(tracker.steps_again(), 0);
  update.mutable_job()->mutable_recovery()->set_steps_again(200);
  tracker.Take(update, absl::Seconds(2));
  EXPECT_EQ(tracker.steps_again(), 130);
}

TEST(RecoveryTrackerTest, RecoveriesAreCountedByTheReasonThatBeganThem) {
  RecoveryTracker tracker;
  tracker.Take(Event(v1::RUNNING, "STARTED"), absl::Seconds(1));
  for (int i = 0; i < 2; ++i) {
    tracker.Take(Event(v1::RECOVERING, "MEMBER_LOST"), absl::Seconds(2));
    tracker.Take(Event(v1::RECOVERING, "WAITS_FOR_MEMBERS"), absl::Seconds(3));
    tracker.Take(Event(v1::PREPARING, "SCHEDULED"), absl::Seconds(4));
    tracker.Take(Event(v1::RUNNING, "STARTED"), absl::Seconds(5));
  }
  EXPECT_THAT(tracker.recoveries(), ElementsAre(Pair("MEMBER_LOST", 2)));
}

TEST(RecoveryFiguresTest, FiguresAreNearestRanksOfTheRecoveredStrikes) {
  std::vector<Strike> strikes;
  for (int i = 1; i <= 200; ++i) {
    strikes.push_back({.role = ChaosRole::kPs, .recovery = absl::Seconds(i)});
  }
  strikes.push_back({.role = ChaosRole::kWorker});

  const RecoveryFigures all = FiguresOf(strikes);
  EXPECT_EQ(all.strikes, 201);
  EXPECT_EQ(all.recovered, 200);
  EXPECT_EQ(all.median, absl::Seconds(100));
  EXPECT_EQ(all.p99, absl::Seconds(198));
  EXPECT_EQ(all.longest, absl::Seconds(200));
  const RecoveryFigures workers = FiguresOf(strikes, ChaosRole::kWorker);
  EXPECT_EQ(workers.strikes, 1);
  EXPECT_EQ(workers.longest, absl::ZeroDuration());
}

}  // namespace
}  // namespace muster::cli::recovery_tracker_test
