#include "lib/shard/agreement/step_closing.h"

#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "lib/shard/gate/rank_set.h"
#include "lib/shard/testing/test_plan.h"

namespace muster::step_closing_test {
namespace {

constexpr int kWorkers = 70;  // more than 64, the bits of a word

class StepClosingTest : public testing::Test {
 protected:
  // Shard 2 has no gradients.
  StepClosingTest() : closing_(Plan(), {true, true, false}) {}

  static v1::JobPlan Plan() {
    TestPlanOptions options{.workers = kWorkers, .shards = 3};
    options.sync.set_backup_workers(kWorkers - 2);
    return MakeTestPlan(options);
  }

  // Returns false if the message is not wanted.
  bool Tell(int64_t step, int shard, const std::vector<int>& ranks) {
    std::vector<uint64_t> message(RankSet::WordsFor(kWorkers));
    for (const int rank : ranks) RankSet::Add(absl::MakeSpan(message), Rank(rank));
    const auto place = closing_.places()[ShardIndex(shard)];
    if (!closing_.Wants(step) || place.size() != message.size() * sizeof(uint64_t)) return false;
    std::memcpy(place.data(), message.data(), place.size());
    closing_.Accept(ShardIndex(shard), step);
    return true;
  }

  std::vector<int> Close() {
    const RankSet set(closing_.Close());
    std::vector<int> ranks;
    for (int rank = 0; rank < kWorkers; ++rank) {
      if (set.Has(Rank(rank))) ranks.push_back(rank);
    }
    return ranks;
  }

  StepClosing closing_;
};

TEST_F(StepClosingTest, StepClosesWithTheFirstRanksThatAllShardsHave) {
  EXPECT_TRUE(Tell(0, 0, {69}));
  EXPECT_TRUE(Tell(0, 0, {3, 69}));
  EXPECT_TRUE(Tell(0, 1, {3, 5}));
  EXPECT_FALSE(closing_.can_close()) << "only rank 3 is complete on all shards";
  EXPECT_TRUE(Tell(0, 0, {3, 5, 69}));
  EXPECT_TRUE(closing_.can_close());
  EXPECT_TRUE(Tell(0, 1, {0, 3, 5, 69}));
  EXPECT_EQ(Close(), (std::vector<int>{3, 5})) << "rank 69 was third";
  EXPECT_EQ(closing_.step(), 1);
  EXPECT_FALSE(closing_.can_close());
}

TEST_F(StepClosingTest, RanksOfOneMessageCountInAscendingOrder) {
  EXPECT_TRUE(Tell(0, 1, {68, 2, 64, 9}));
  EXPECT_TRUE(Tell(0, 0, {68, 64, 9}));
  EXPECT_EQ(Close(), (std::vector<int>{9, 64}));
}

TEST_F(StepClosingTest, MessageAboutAClosedStepChangesNothing) {
  for (int shard : {0, 1}) EXPECT_TRUE(Tell(0, shard, {0, 1}));
  Close();
  EXPECT_TRUE(Tell(0, 0, {0, 1, 2}));
  EXPECT_TRUE(Tell(1, 1, {0, 1, 2}));
  EXPECT_FALSE(closing_.can_close());
  EXPECT_TRUE(Tell(1, 0, {1, 2}));
  EXPECT_EQ(Close(), (std::vector<int>{1, 2}));
}

TEST_F(StepClosingTest, OnlyOpenOrClosedStepsOfShardsWithGradientsAreWanted) {
  ASSERT_EQ(closing_.places().size(), 3u);
  EXPECT_EQ(closing_.places()[ShardIndex(1)].size(), 16u);
  EXPECT_TRUE(closing_.places()[ShardIndex(2)].empty());
  EXPECT_TRUE(closing_.Wants(0));
  EXPECT_FALSE(closing_.Wants(1));
}

}  // namespace
}  // namespace muster::step_closing_test
