#include "services/coordinator/job/checkpoint_policy.h"

#include <gtest/gtest.h>

#include <functional>

#include "lib/status/status.h"

namespace muster::checkpoint_policy_test {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);
constexpr CheckpointPolicy::Pace kPace{
    .newest_step = 10, .steps_per_second = 2, .total_steps = 100};

const absl::Status kFault = absl::UnavailableError("disk");

class CheckpointPolicyTest : public ::testing::Test {
 protected:
  CheckpointPolicyTest() { policy_.Begin(Plan(), kStart); }

  static v1::JobPlan Plan() {
    v1::JobPlan plan;
    plan.set_first_step(4);
    plan.mutable_spec()->mutable_checkpoint()->set_every_steps(25);
    return plan;
  }
  std::string Admit(int64_t step, uint64_t snapshot) const {
    v1::WriteShardHeader header;
    header.set_step(step);
    header.set_snapshot(snapshot);
    return ReasonOf(policy_.Admit(header, kPace.total_steps, "jobs/line-1"));
  }

  CheckpointPolicy policy_{/*first_snapshot=*/7, /*committed_step=*/4};
};

TEST_F(CheckpointPolicyTest, AdmitsPeriodicAndFinalCheckpointsWithoutARequest) {
  EXPECT_EQ(Admit(25, 0), "");
  EXPECT_EQ(Admit(100, 0), "");
  EXPECT_EQ(Admit(26, 0), "CHECKPOINT_NOT_DUE");
  EXPECT_EQ(Admit(125, 0), "CHECKPOINT_NOT_DUE") << "after the last step";
  EXPECT_EQ(Admit(25, 7), "STALE_SNAPSHOT") << "it was not requested";
}

TEST_F(CheckpointPolicyTest, RequestsACheckpointOfHaltedShardsAgainAfterAWhile) {
  constexpr absl::Duration kPatience = CheckpointPolicy::kPatience;
  ASSERT_TRUE(policy_.AskHalted(9, kStart));
  EXPECT_EQ(policy_.asked_step(), 9);
  EXPECT_EQ(Admit(9, 7), "");
  EXPECT_FALSE(policy_.AskHalted(9, kStart)) << "one at a time";
  policy_.TickHalted(/*writing=*/true, kStart + kPatience);
  policy_.TickHalted(/*writing=*/false, kStart + 2 * kPatience - absl::Milliseconds(1));
  EXPECT_TRUE(policy_.asking());
  policy_.TickHalted(/*writing=*/false, kStart + 2 * kPatience);
  EXPECT_FALSE(policy_.asking());
  EXPECT_FALSE(policy_.AskHalted(9, kStart + 3 * kPatience - absl::Milliseconds(1)));
  EXPECT_TRUE(policy_.AskHalted(9, kStart + 3 * kPatience));
  EXPECT_TRUE(policy_.Wants(8)) << "another attempt";
}

TEST_F(CheckpointPolicyTest, GivesUpOnHaltedShardsAfterAFewAttempts) {
  absl::Time now = kStart;
  const auto try_once = [&](const std::function<void()>& fail) {
    EXPECT_TRUE(policy_.HaltedOutcome().ok());
    ASSERT_TRUE(policy_.AskHalted(9, now));
    EXPECT_TRUE(policy_.HaltedOutcome().ok()) << "the attempt may succeed";
    fail();
    now += CheckpointPolicy::kPatience;
  };
  static_assert(CheckpointPolicy::kHaltedAttempts == 3);
  try_once([&] { policy_.GiveUpHalted(kFault, now); });
  try_once([&] {
    now += CheckpointPolicy::kPatience;
    policy_.TickHalted(/*writing=*/false, now);
  });
  policy_.ForgetMisses();
  try_once([&] { policy_.GiveUpHalted(kFault, now); });
  try_once([&] { policy_.Failed(9, policy_.request(), kPace.total_steps, kFault, now); });
  try_once([&] {
    now += CheckpointPolicy::kPatience;
    policy_.TickHalted(/*writing=*/false, now);
  });
  EXPECT_EQ(policy_.HaltedOutcome().message(), "no shard was written for 10s");
  policy_.Begin(Plan(), kStart);
  EXPECT_TRUE(policy_.HaltedOutcome().ok()) << "another generation";
}

TEST_F(CheckpointPolicyTest, ACheckpointOnDemandAimsAheadOfTheWorkersAndFurtherAfterEachMiss) {
  ASSERT_TRUE(policy_.Ask(kPace));
  EXPECT_EQ(policy_.asked_step(), 10 + 2 + 3) << "a second and a half ahead, and two steps";
  EXPECT_TRUE(policy_.Wants(7));
  EXPECT_EQ(Admit(15, 7), "");

  ASSERT_TRUE(policy_.Missed(kPace, kStart));

  EXPECT_FALSE(policy_.Wants(7));
  EXPECT_TRUE(policy_.Wants(8));
  EXPECT_EQ(policy_.asked_step(), 10 + 2 * 5);
  EXPECT_EQ(Admit(15, 7), "STALE_SNAPSHOT");
  EXPECT_FALSE(
      policy_.Missed({.newest_step = 95, .steps_per_second = 2, .total_steps = 100}, kStart))
      << "the final checkpoint is enough";
}

// A shard skips a snapshot if training would have to wait for its long write. A skip is a miss.
TEST_F(CheckpointPolicyTest, RepeatedMissesDoubleTheDistance) {
  CheckpointPolicy::Pace pace = kPace;
  pace.total_steps = 1'000'000;
  ASSERT_TRUE(policy_.Ask(pace));
  const uint64_t request = policy_.request();
  for (int64_t lead = 5; lead < 5 << 11; lead *= 2) {
    EXPECT_EQ(policy_.asked_step(), pace.newest_step + lead);
    pace.newest_step = policy_.asked_step();
    ASSERT_TRUE(policy_.Missed(pace, kStart));
    EXPECT_EQ(policy_.request(), request);
    EXPECT_TRUE(policy_.Outcome(request).ok()) << "callers continue to wait";
  }
}

TEST_F(CheckpointPolicyTest, WithRoundsItAimsAtTheEndOfARound) {
  v1::JobPlan plan = Plan();
  plan.mutable_spec()->mutable_sync()->set_mode(v1::LOCAL_SGD);
  plan.mutable_spec()->mutable_sync()->set_every(8);
  policy_.Begin(plan, kStart);

  ASSERT_TRUE(policy_.Ask(kPace));

  EXPECT_EQ(policy_.asked_step(), 16);
}

TEST_F(CheckpointPolicyTest, WantsASnapshotOfMembersWithUnansweredShards) {
  ASSERT_TRUE(policy_.Ask(kPace));
  EXPECT_EQ(policy_.DesiredOf({0, 1})->snapshot(), 7);
  policy_.Answered(0);
  EXPECT_FALSE(policy_.DesiredOf({0}).has_value());
  EXPECT_TRUE(policy_.DesiredOf({0, 1}).has_value());
  EXPECT_FALSE(policy_.DesiredOf({}).has_value()) << "a member without shards";

  policy_.Stop();

  EXPECT_FALSE(policy_.DesiredOf({0, 1}).has_value());
}

TEST_F(CheckpointPolicyTest, AwaitRequestsACheckpointUnlessAPeriodicOneIsDue) {
  EXPECT_TRUE(policy_.Await(12, kPace.total_steps, kStart));
  EXPECT_EQ(policy_.asked_step(), 12);
  EXPECT_FALSE(policy_.Await(12, kPace.total_steps, kStart)) << "already requested";
  EXPECT_FALSE(policy_.Await(25, kPace.total_steps, kStart)) << "a periodic checkpoint";
  EXPECT_FALSE(policy_.asking()) << "no member reaches step 12 any more";

  EXPECT_FALSE(policy_.Tick(/*writing=*/true, /*needs_one=*/false, kPace, kStart));
  const absl::Time later = kStart + CheckpointPolicy::kPatience;
  EXPECT_FALSE(policy_.Tick(/*writing=*/true, false, kPace, later)) << "it is being written";
  EXPECT_TRUE(policy_.Tick(/*writing=*/false, false, kPace, later + CheckpointPolicy::kPatience))
      << "it was lost";
  EXPECT_EQ(policy_.asked_step(), 25);
}

TEST_F(CheckpointPolicyTest, AfterAMissAwaitWaitsForReports) {
  ASSERT_TRUE(policy_.Await(12, kPace.total_steps, kStart));

  EXPECT_FALSE(policy_.Missed(kPace, kStart));

  EXPECT_FALSE(policy_.awaiting());
  EXPECT_FALSE(policy_.Await(13, kPace.total_steps, kStart)) << "too early";
  EXPECT_TRUE(policy_.Await(13, kPace.total_steps, kStart + absl::Seconds(1)));
}

TEST_F(CheckpointPolicyTest, RetriesAFailedCheckpointAfterAWhileAndTheFinalOneThreeTimes) {
  ASSERT_TRUE(policy_.Ask(kPace));
  EXPECT_FALSE(policy_.Failed(15, 7, kPace.total_steps, kFault, kStart));
  EXPECT_FALSE(policy_.asking());
  EXPECT_FALSE(policy_.Tick(false, /*needs_one=*/true, kPace, kStart));
  EXPECT_TRUE(policy_.Tick(false, true, kPace, kStart + CheckpointPolicy::kPatience));

  EXPECT_FALSE(policy_.Failed(100, 0, kPace.total_steps, kFault, kStart));
  EXPECT_FALSE(policy_.Failed(100, 0, kPace.total_steps, kFault, kStart));
  EXPECT_TRUE(policy_.Failed(100, 0, kPace.total_steps, kFault, kStart));
}

TEST_F(CheckpointPolicyTest, AttemptsAtOneCheckpointAreOneRequestWithOneOutcome) {
  ASSERT_TRUE(policy_.Ask(kPace));
  const uint64_t request = policy_.request();
  ASSERT_TRUE(policy_.Missed(kPace, kStart));
  EXPECT_EQ(policy_.request(), request);
  EXPECT_TRUE(policy_.Outcome(request).ok());

  policy_.Failed(policy_.asked_step(), /*snapshot=*/8, kPace.total_steps, kFault, kStart);
  ASSERT_TRUE(policy_.Ask(kPace));

  EXPECT_EQ(policy_.Outcome(request), kFault);
  EXPECT_NE(policy_.request(), request);
  EXPECT_TRUE(policy_.Outcome(policy_.request()).ok());
}

TEST_F(CheckpointPolicyTest, ACommitFulfilsRequestsUpToItsStep) {
  ASSERT_TRUE(policy_.Ask(kPace));
  EXPECT_TRUE(policy_.Committed(14, kStart));
  EXPECT_TRUE(policy_.asking());
  EXPECT_TRUE(policy_.Committed(15, kStart));
  EXPECT_FALSE(policy_.asking());
  EXPECT_FALSE(policy_.Committed(14, kStart)) << "an older checkpoint";
  EXPECT_EQ(policy_.committed_step(), 15);
}

TEST_F(CheckpointPolicyTest, WaitsForAFullDiskButNotForOtherFaultsOfTheFinalCheckpoint) {
  const absl::Status full = WithReason(absl::ResourceExhaustedError("disk"), "STORAGE_FULL");
  for (int attempt = 0; attempt < 10; ++attempt) {
    EXPECT_FALSE(policy_.Failed(100, 0, kPace.total_steps, full, kStart));
  }
  for (int attempt = 1; attempt < CheckpointPolicy::kFinalAttempts; ++attempt) {
    EXPECT_FALSE(policy_.Failed(100, 0, kPace.total_steps, kFault, kStart));
  }
  EXPECT_TRUE(policy_.Failed(100, 0, kPace.total_steps, kFault, kStart));
}

class SavesByTimeTest : public ::testing::Test {
 protected:
  SavesByTimeTest() { Begin(/*every_steps=*/0); }

  void Begin(int64_t every_steps, uint32_t carries = 0) {
    v1::JobPlan plan;
    plan.set_first_step(100);
    plan.set_carries(carries);
    plan.mutable_spec()->mutable_checkpoint()->set_every_steps(every_steps);
    plan.mutable_spec()->mutable_checkpoint()->mutable_every()->set_seconds(300);
    policy_.Begin(plan, kStart);
  }
  bool IsDue(int64_t step, absl::Duration after) const {
    return policy_.IsDue({.newest_step = step, .steps_per_second = 1, .total_steps = 1000},
                         kStart + after);
  }

  CheckpointPolicy policy_{/*first_snapshot=*/7, /*committed_step=*/-1};
};

TEST_F(SavesByTimeTest, IsDueAfterTheTimeAtAnyStep) {
  EXPECT_FALSE(IsDue(101, absl::Seconds(299)));
  EXPECT_TRUE(IsDue(101, absl::Seconds(300)));
  EXPECT_FALSE(IsDue(100, absl::Seconds(300))) << "nothing was trained";
}

TEST_F(SavesByTimeTest, IsDueAfterATenthOfTheStepsButNotTooOften) {
  EXPECT_TRUE(IsDue(200, absl::Seconds(10)));
  EXPECT_FALSE(IsDue(200, absl::Seconds(9)));
  EXPECT_FALSE(IsDue(199, absl::Seconds(10)));
}

TEST_F(SavesByTimeTest, EachSaveRestartsTheTimeAndTheSteps) {
  policy_.Committed(200, kStart + absl::Seconds(20));
  EXPECT_FALSE(IsDue(299, absl::Seconds(310)));
  EXPECT_TRUE(IsDue(300, absl::Seconds(30)));
  EXPECT_TRUE(IsDue(201, absl::Seconds(320)));
}

TEST_F(SavesByTimeTest, AFailedSaveIsNotRepeatedAtOnce) {
  policy_.Failed(200, /*snapshot=*/0, /*total_steps=*/1000, kFault, kStart + absl::Seconds(20));
  EXPECT_FALSE(IsDue(299, absl::Seconds(310)));
  EXPECT_TRUE(IsDue(299, absl::Seconds(320)));
}

TEST_F(SavesByTimeTest, ShardsInPlaceKeepTheirTime) {
  policy_.Committed(200, kStart - absl::Seconds(299));
  Begin(/*every_steps=*/0, /*carries=*/1);
  EXPECT_TRUE(IsDue(201, absl::Seconds(1)));
  Begin(/*every_steps=*/0);
  EXPECT_FALSE(IsDue(101, absl::Seconds(1))) << "the shards come from a checkpoint";
}

TEST_F(SavesByTimeTest, WithEveryStepsSetTheTimeCountsAlone) {
  Begin(/*every_steps=*/500);
  EXPECT_FALSE(IsDue(250, absl::Seconds(20)));
  EXPECT_TRUE(IsDue(250, absl::Seconds(300)));
}

TEST(SavesByTimeOffTest, WithoutATimeNoCheckpointIsDue) {
  CheckpointPolicy policy(/*first_snapshot=*/7, /*committed_step=*/-1);
  policy.Begin(v1::JobPlan(), kStart);
  EXPECT_FALSE(policy.IsDue({.newest_step = 999, .total_steps = 1000}, kStart + absl::Hours(9)));
}

}  // namespace
}  // namespace muster::checkpoint_policy_test
