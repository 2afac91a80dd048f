#include "services/coordinator/checkpoints/checkpoint_rounds.h"

#include <gtest/gtest.h>

#include "lib/status/status.h"

namespace muster::checkpoint_rounds_test {
namespace {

// Makes options. A round that is never opened does not touch the disk.
std::function<CheckpointRound::Options()> Make(CheckpointRounds::Key key) {
  return [key] {
    auto plan = std::make_shared<v1::JobPlan>();
    plan->set_job("line-1");
    return CheckpointRound::Options{
        .plan = std::move(plan), .writer = {.step = key.step}, .snapshot = key.snapshot};
  };
}

std::shared_ptr<CheckpointRound> Join(CheckpointRounds& rounds, CheckpointRounds::Key key) {
  auto round = rounds.Join(key, Make(key));
  EXPECT_TRUE(round.ok()) << round.status();
  return *round;
}

constexpr CheckpointRounds::Key kPeriodic{.step = 4}, kOnDemand{.step = 4, .snapshot = 7},
    kLater{.step = 8};

TEST(CheckpointRoundsTest, ShardsOfOneCheckpointShareARound) {
  CheckpointRounds rounds;

  const auto round = Join(rounds, kPeriodic);

  EXPECT_EQ(Join(rounds, kPeriodic), round);
  EXPECT_NE(Join(rounds, kOnDemand), round);
  EXPECT_TRUE(rounds.IsOpen(*round));
}

TEST(CheckpointRoundsTest, ACommitEndsEveryRoundOfItsStepOnly) {
  CheckpointRounds rounds;
  const auto periodic = Join(rounds, kPeriodic), on_demand = Join(rounds, kOnDemand),
             later = Join(rounds, kLater);

  rounds.Commit(4);

  const auto ended = rounds.TakeEnded();
  ASSERT_EQ(ended.size(), 2);
  EXPECT_EQ(ended[0].round, periodic);
  EXPECT_EQ(ended[1].round, on_demand);
  EXPECT_TRUE(ended[0].outcome.ok() && ended[1].outcome.ok());
  EXPECT_FALSE(rounds.IsOpen(*periodic));
  EXPECT_TRUE(rounds.IsOpen(*later));
  EXPECT_TRUE(rounds.HasCommitted(4));
  EXPECT_FALSE(rounds.HasCommitted(8));
  EXPECT_TRUE(rounds.TakeEnded().empty()) << "each once";
}

TEST(CheckpointRoundsTest, AnAbandonedRoundIsRefusedUntilTheNextGeneration) {
  CheckpointRounds rounds;
  Join(rounds, kPeriodic);

  EXPECT_TRUE(rounds.Abandon(kPeriodic, absl::UnavailableError("disk")));
  EXPECT_FALSE(rounds.Abandon(kPeriodic, absl::UnavailableError("again"))) << "it is known";
  EXPECT_TRUE(rounds.Abandon(kLater, absl::UnavailableError("disk"))) << "the round had not begun";
  EXPECT_EQ(ReasonOf(rounds.Join(kLater, Make(kLater)).status()), "CHECKPOINT_ABANDONED");
  rounds.Commit(6);
  EXPECT_FALSE(rounds.Abandon({.step = 6}, absl::UnavailableError("disk"))) << "it is on the disk";

  EXPECT_EQ(ReasonOf(rounds.Join(kPeriodic, Make(kPeriodic)).status()), "CHECKPOINT_ABANDONED");
  const auto ended = rounds.TakeEnded();
  ASSERT_EQ(ended.size(), 1);
  EXPECT_EQ(ended[0].outcome.message(), "disk");

  rounds.Begin();
  EXPECT_TRUE(rounds.Join(kPeriodic, Make(kPeriodic)).ok());
}

TEST(CheckpointRoundsTest, EndsRoundsThatAreNoLongerNeeded) {
  CheckpointRounds rounds;
  const auto periodic = Join(rounds, kPeriodic), on_demand = Join(rounds, kOnDemand);
  rounds.DropUnwanted([](uint64_t snapshot) { return snapshot == 0 || snapshot == 7; });
  EXPECT_TRUE(rounds.TakeEnded().empty());

  rounds.DropUnwanted([](uint64_t snapshot) { return snapshot == 0; });

  EXPECT_TRUE(rounds.IsOpen(*periodic));
  EXPECT_FALSE(rounds.IsOpen(*on_demand));
  EXPECT_EQ(ReasonOf(rounds.TakeEnded().at(0).outcome), "STALE_SNAPSHOT");

  rounds.Clear();
  EXPECT_EQ(rounds.TakeEnded().at(0).outcome.message(),
            "line-1: the checkpoint of step 4 is no longer needed");
}

TEST(CheckpointRoundsTest, ASliceOfAnotherShardIsTheErrorOfItsSender) {
  auto plan = std::make_shared<v1::JobPlan>();
  plan->add_chunks()->set_shard(0);
  plan->add_chunks()->set_shard(1);
  CheckpointRound round(CheckpointRound::Options{.plan = std::move(plan)});
  v1::ShardSlice slice;

  slice.set_chunk(2);
  EXPECT_EQ(round.Write(0, slice).message(),
            "shard 0: chunk 2 is not in the plan, which has the chunks 0 to 1");
  slice.set_chunk(1);
  const absl::Status status = round.Write(0, slice);
  EXPECT_EQ(status.message(), "chunk 1 belongs to shard 1, not to shard 0");
  EXPECT_EQ(ReasonOf(status), "INVALID_SLICE");
}

}  // namespace
}  // namespace muster::checkpoint_rounds_test
