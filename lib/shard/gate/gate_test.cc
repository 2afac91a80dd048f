// Tests each gate alone: its decisions about pushes, and the ranks that it answers.
#include "lib/shard/gate/gate.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "lib/shard/gate/backup_gate.h"
#include "lib/shard/gate/bsp_gate.h"
#include "lib/shard/gate/rank_set.h"
#include "lib/shard/gate/staleness_gate.h"

namespace muster::gate_test {
namespace {

constexpr LocalChunk kChunk{0};

void PushArrives(Gate& gate, Rank rank, int64_t step, LocalChunk chunk = kChunk) {
  ASSERT_EQ(gate.Admit(chunk, rank, step), PushFate::kTake) << rank << " at " << step;
  ASSERT_EQ(gate.Arrived(chunk, rank), PushFate::kTake);
}

using Ranks = std::vector<int>;

Ranks Answered(Gate& gate, LocalChunk chunk = kChunk) {
  Ranks ranks;
  gate.TakeAnswers(chunk, [&](Rank rank) { ranks.push_back(ToInt(rank)); });
  return ranks;
}

Ranks RanksOf(const ChunkUpdate& update) {
  Ranks ranks;
  for (const Rank rank : update.ranks) ranks.push_back(ToInt(rank));
  return ranks;
}

// ---------------------------------------------------------------- bsp, local_sgd

TEST(BspGateTest, AnUpdateTakesOnePushOfEveryRank) {
  BspGate gate({.chunks = 1, .ranks = 3});
  gate.Start(10);
  PushArrives(gate, Rank(2), 0);
  PushArrives(gate, Rank(0), 0);
  EXPECT_EQ(gate.Admit(kChunk, Rank(0), 0), PushFate::kRepeat);
  EXPECT_TRUE(gate.NextUpdate(kChunk).ranks.empty());
  PushArrives(gate, Rank(1), 0);
  EXPECT_EQ(RanksOf(gate.NextUpdate(kChunk)), (Ranks{0, 1, 2}));
  EXPECT_EQ(Answered(gate), Ranks{}) << "not made yet";
  gate.Updated(kChunk);
  EXPECT_EQ(gate.version(kChunk), 1);
  EXPECT_EQ(Answered(gate), (Ranks{0, 1, 2}));
  EXPECT_EQ(Answered(gate), Ranks{}) << "once";
  EXPECT_EQ(gate.Admit(kChunk, Rank(1), 0), PushFate::kRepeat);
  EXPECT_TRUE(gate.AnswersAgain(kChunk, Rank(1), 0));
  EXPECT_EQ(gate.Admit(kChunk, Rank(1), 2), PushFate::kWrongStep);
}

TEST(BspGateTest, ALostPushMayComeAgain) {
  BspGate gate({.chunks = 1, .ranks = 1});
  gate.Start(10);
  ASSERT_EQ(gate.Admit(kChunk, Rank(0), 0), PushFate::kTake);
  EXPECT_TRUE(gate.IsPlacing(kChunk, Rank(0)));
  gate.Lost(kChunk, Rank(0));
  PushArrives(gate, Rank(0), 0);
}

TEST(BspGateTest, RoundsOfLocalSgdEndAtMultiplesAndAtTheEnd) {
  BspGate gate({.chunks = 1, .ranks = 1, .rounds = {.first_step = 3, .every = 4}});
  gate.Start(10);
  for (int64_t version : {3, 4, 8}) {
    EXPECT_EQ(gate.version(kChunk), version);
    PushArrives(gate, Rank(0), version);
    EXPECT_EQ(gate.NextUpdate(kChunk).step, version);
    gate.Updated(kChunk);
    EXPECT_EQ(gate.Fetch(kChunk, Rank(0), version), FetchFate::kPrevious);
  }
  EXPECT_EQ(gate.version(kChunk), 10);
  EXPECT_EQ(gate.Admit(kChunk, Rank(0), 10), PushFate::kWrongStep) << "after the last";
  for (int64_t step : {3, 4, 8, 10}) EXPECT_TRUE(gate.IsVersion(step));
  for (int64_t step : {5, 7, 9}) EXPECT_FALSE(gate.IsVersion(step));
}

// ---------------------------------------------------------------- ssp, asp

StalenessGate Stale(int64_t staleness, bool aware = false) {
  StalenessGate gate({.chunks = 1, .shares = {0.25, 0.75}, .staleness = staleness, .aware = aware});
  gate.Start(100);
  return gate;
}

TEST(StalenessGateTest, EachPushIsAnUpdateWeightedByItsShareOfTheBatch) {
  StalenessGate gate = Stale(StalenessGate::kUnbounded);
  PushArrives(gate, Rank(0), 0);
  const ChunkUpdate update = gate.NextUpdate(kChunk);
  EXPECT_EQ(RanksOf(update), (Ranks{0}));
  EXPECT_EQ(update.gradient_factor, 4);
  EXPECT_EQ(update.share, 0.25);
  EXPECT_EQ(update.rate_factor, 1);
  gate.Updated(kChunk);
  EXPECT_EQ(Answered(gate), (Ranks{0})) << "no rank waits for another";
  EXPECT_EQ(gate.AnswerStep(kChunk, Rank(0)), 1);
  EXPECT_EQ(gate.AnswerStep(kChunk, Rank(1)), 0);
  EXPECT_EQ(gate.version(kChunk), 0) << "the version of the slowest rank";
  EXPECT_EQ(gate.furthest(kChunk), 1);
  EXPECT_EQ(gate.updates(kChunk), 1);
}

TEST(StalenessGateTest, AnswerWaitsUntilTheSlowestRankIsCloseEnough) {
  StalenessGate gate = Stale(/*staleness=*/1);
  PushArrives(gate, Rank(0), 0);
  gate.Updated(kChunk);
  EXPECT_EQ(Answered(gate), (Ranks{0})) << "one step ahead";
  PushArrives(gate, Rank(0), 1);
  gate.Updated(kChunk);
  EXPECT_EQ(Answered(gate), Ranks{}) << "two would be too many";
  EXPECT_EQ(gate.Admit(kChunk, Rank(0), 2), PushFate::kWrongStep) << "no rank can have computed it";
  EXPECT_EQ(gate.Admit(kChunk, Rank(0), 1), PushFate::kRepeat);
  EXPECT_FALSE(gate.AnswersAgain(kChunk, Rank(0), 1)) << "its answer will come";
  EXPECT_EQ(gate.Fetch(kChunk, Rank(0), 2), FetchFate::kLater);
  PushArrives(gate, Rank(1), 0);
  gate.Updated(kChunk);
  EXPECT_EQ(Answered(gate), (Ranks{0, 1}));
  EXPECT_EQ(gate.AnswerStep(kChunk, Rank(0)), 2);
  EXPECT_EQ(gate.AnswerStep(kChunk, Rank(1)), 1);
}

TEST(StalenessGateTest, StalenessZeroWaitsForAllRanks) {
  StalenessGate gate = Stale(/*staleness=*/0);
  PushArrives(gate, Rank(1), 0);
  gate.Updated(kChunk);
  EXPECT_EQ(Answered(gate), Ranks{});
  PushArrives(gate, Rank(0), 0);
  gate.Updated(kChunk);
  EXPECT_EQ(Answered(gate), (Ranks{0, 1}));
}

TEST(StalenessGateTest, TheEarliestStepIsAppliedFirst) {
  StalenessGate gate = Stale(StalenessGate::kUnbounded);
  PushArrives(gate, Rank(0), 0);
  gate.Updated(kChunk);
  Answered(gate);
  PushArrives(gate, Rank(0), 1);
  PushArrives(gate, Rank(1), 0);
  EXPECT_EQ(RanksOf(gate.NextUpdate(kChunk)), (Ranks{1}));
}

TEST(StalenessGateTest, StalenessCountsTheUpdatesSinceTheValueWasSent) {
  StalenessGate gate = Stale(StalenessGate::kUnbounded, /*aware=*/true);
  for (int64_t step = 0; step < 5; ++step) {
    PushArrives(gate, Rank(0), step);
    EXPECT_EQ(gate.NextUpdate(kChunk).staleness, 0) << "no other rank has updated the chunk";
    EXPECT_EQ(gate.NextUpdate(kChunk).rate_factor, 1);
    gate.Updated(kChunk);
    Answered(gate);
  }
  PushArrives(gate, Rank(1), 0);
  EXPECT_EQ(gate.NextUpdate(kChunk).staleness, 2) << "five updates of two ranks";
  EXPECT_DOUBLE_EQ(gate.NextUpdate(kChunk).rate_factor, 1 / 3.0);
}

// ---------------------------------------------------------------- backup workers

BackupGate Backup(int chunks, NumberedVector<Rank, int64_t> samples) {
  BackupGate gate({.chunks = chunks, .trained_chunks = chunks, .samples = std::move(samples)});
  gate.Start(100);
  return gate;
}

uint64_t Bits(const Ranks& ranks) {
  uint64_t word = 0;
  for (const int rank : ranks) RankSet::Add(absl::MakeSpan(&word, 1), Rank(rank));
  return word;
}

bool Close(BackupGate& gate, int64_t step, const Ranks& ranks) {
  const uint64_t word = Bits(ranks);
  return gate.Close(step, {&word, 1});
}

TEST(BackupGateTest, RankArrivesWithItsLastChunk) {
  BackupGate gate = Backup(/*chunks=*/2, {1, 1, 1});
  PushArrives(gate, Rank(2), 0, LocalChunk(1));
  EXPECT_EQ(gate.arrived()[0], 0);
  EXPECT_FALSE(Close(gate, 0, {2})) << "a push of rank 2 is missing";
  PushArrives(gate, Rank(2), 0, LocalChunk(0));
  EXPECT_EQ(gate.arrived()[0], Bits({2}));
}

TEST(BackupGateTest, UpdateTakesExactlyTheRanksOfTheClosedStep) {
  BackupGate gate = Backup(/*chunks=*/1, {1, 2, 3});
  for (int rank : {0, 2, 1}) PushArrives(gate, Rank(rank), 0);
  EXPECT_TRUE(gate.NextUpdate(kChunk).ranks.empty()) << "the step is not closed";
  EXPECT_FALSE(Close(gate, 1, {0, 2})) << "another step";
  EXPECT_FALSE(Close(gate, 0, {})) << "an empty set";
  EXPECT_TRUE(Close(gate, 0, {0, 2}));
  EXPECT_FALSE(Close(gate, 0, {0, 1})) << "twice";
  EXPECT_EQ(RanksOf(gate.NextUpdate(kChunk)), (Ranks{0, 2}));
  EXPECT_DOUBLE_EQ(gate.NextUpdate(kChunk).gradient_factor, 6.0 / 4);
  gate.Updated(kChunk);
  EXPECT_EQ(gate.late_pushes(), 1) << "that of rank 1";
  EXPECT_EQ(Answered(gate), (Ranks{0, 1, 2}));
  EXPECT_EQ(gate.open_step(), 1);
  EXPECT_EQ(gate.arrived()[0], 0);
}

TEST(BackupGateTest, LatePushIsCountedOnceAndAnsweredWithTheCurrentVersion) {
  BackupGate gate = Backup(/*chunks=*/1, {1, 1});
  for (int64_t step : {0, 1, 2}) {
    PushArrives(gate, Rank(0), step);
    ASSERT_TRUE(Close(gate, step, {0}));
    gate.Updated(kChunk);
    EXPECT_EQ(Answered(gate), (Ranks{0})) << "rank 1 has not pushed";
  }
  EXPECT_EQ(gate.Admit(kChunk, Rank(1), 0), PushFate::kLate);
  EXPECT_TRUE(gate.AnswersAgain(kChunk, Rank(1), 0));
  EXPECT_EQ(gate.AnswerStep(kChunk, Rank(1)), 3);
  EXPECT_EQ(gate.Admit(kChunk, Rank(1), 0), PushFate::kRepeat);
  EXPECT_EQ(gate.late_pushes(), 1);
  EXPECT_EQ(gate.Admit(kChunk, Rank(0), 2), PushFate::kRepeat) << "that one was taken";
  PushArrives(gate, Rank(1), 3);
}

TEST(BackupGateTest, StepMayCloseWhileAPushIsUnderWay) {
  BackupGate gate = Backup(/*chunks=*/1, {1, 1});
  ASSERT_EQ(gate.Admit(kChunk, Rank(1), 0), PushFate::kTake);
  PushArrives(gate, Rank(0), 0);
  ASSERT_TRUE(Close(gate, 0, {0}));
  gate.Updated(kChunk);
  EXPECT_EQ(gate.Arrived(kChunk, Rank(1)), PushFate::kLate);
  EXPECT_EQ(gate.late_pushes(), 1);
  EXPECT_EQ(gate.arrived()[0], 0) << "no part of the next step";
}

TEST(BackupGateTest, FetchOfAFutureVersionIsAnsweredWhenItExists) {
  BackupGate gate = Backup(/*chunks=*/1, {1, 1});
  EXPECT_EQ(gate.Fetch(kChunk, Rank(1), 1), FetchFate::kLater);
  PushArrives(gate, Rank(0), 0);
  ASSERT_TRUE(Close(gate, 0, {0}));
  gate.Updated(kChunk);
  EXPECT_EQ(Answered(gate), (Ranks{0, 1}));
  EXPECT_EQ(gate.Fetch(kChunk, Rank(1), 1), FetchFate::kCurrent);
  EXPECT_EQ(gate.Fetch(kChunk, Rank(1), 0), FetchFate::kPrevious);
  EXPECT_EQ(gate.Fetch(kChunk, Rank(1), -1), FetchFate::kWrongStep);
  EXPECT_EQ(gate.Fetch(kChunk, Rank(1), 101), FetchFate::kWrongStep) << "after the end";
}

}  // namespace
}  // namespace muster::gate_test
