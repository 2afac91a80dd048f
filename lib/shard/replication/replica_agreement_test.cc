#include "lib/shard/replication/replica_agreement.h"

#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "lib/shard/testing/test_plan.h"

namespace muster::replica_agreement_test {
namespace {

using Told = std::vector<std::pair<ShardIndex, int64_t>>;

constexpr ShardIndex kSecondShard{1}, kThirdShard{2};

// A plan of three shards; the last one has no replica.
v1::JobPlan Plan() {
  v1::JobPlan plan = MakeTestPlan(
      {.parameters = {64, 64, 64}, .shards = 3, .has_replicas = true, .first_step = 5});
  plan.mutable_shards(2)->clear_backup();
  return plan;
}

class ReplicaAgreementTest : public testing::Test {
 protected:
  ReplicaAgreement Of(ShardIndex shard) {
    return ReplicaAgreement(Plan(), shard, [this](ShardIndex to, const WireHeader& header) {
      EXPECT_EQ(header.kind, MessageKind::kHeld);
      told_.emplace_back(to, header.step);
    });
  }

  static WireHeader Held(ShardIndex from, int64_t version) {
    return {
        .kind = MessageKind::kHeld, .step = version, .rank = static_cast<uint32_t>(ToInt(from))};
  }

  Told told_;
};

TEST_F(ReplicaAgreementTest, FirstStepIsFreeAndTheNextWaitsForAllReplicas) {
  ReplicaAgreement first = Of(kFirstShard);
  EXPECT_TRUE(first.Admits(5));
  EXPECT_FALSE(first.Admits(6));
  EXPECT_FALSE(first.OwnHeld(6));
  EXPECT_FALSE(first.Admits(6)) << "the other replica may be behind";
  EXPECT_TRUE(first.Arrived(Held(kSecondShard, 6)));
  EXPECT_TRUE(first.Admits(6));
  EXPECT_FALSE(first.Admits(7));
  EXPECT_EQ(told_, (Told{{kSecondShard, 6}, {kThirdShard, 6}}));
}

TEST_F(ReplicaAgreementTest, OtherShardsReportToShardZeroAndFollowIt) {
  ReplicaAgreement second = Of(kSecondShard);
  EXPECT_FALSE(second.OwnHeld(6));
  EXPECT_EQ(told_, (Told{{kFirstShard, 6}}));
  EXPECT_FALSE(second.Admits(6));
  EXPECT_TRUE(second.Arrived(Held(kFirstShard, 6)));
  EXPECT_TRUE(second.Admits(6));
  EXPECT_FALSE(second.Arrived(Held(kFirstShard, 5))) << "overtaken";
  EXPECT_TRUE(second.Admits(6));
}

TEST_F(ReplicaAgreementTest, OldReportsAndUnknownShardsChangeNothing) {
  ReplicaAgreement first = Of(kFirstShard);
  EXPECT_FALSE(first.OwnHeld(6));
  EXPECT_FALSE(first.Arrived(Held(kThirdShard, 9)));
  EXPECT_FALSE(first.Arrived(Held(ShardIndex(17), 9)));
  EXPECT_FALSE(first.Arrived(Held(kSecondShard, 5)));
  EXPECT_FALSE(first.Admits(6));
  EXPECT_TRUE(told_.empty());
}

TEST(ReplicaAgreementWithoutReportsTest, NothingIsHeldUp) {
  v1::JobPlan plan = MakeTestPlan({.parameters = {64}, .shards = 2});
  plan.mutable_shards(1)->mutable_backup()->set_member("ps-1");  // this shard has no chunks
  EXPECT_TRUE(ReplicaAgreement(plan, kFirstShard, nullptr).Admits(1'000'000));
}

}  // namespace
}  // namespace muster::replica_agreement_test
