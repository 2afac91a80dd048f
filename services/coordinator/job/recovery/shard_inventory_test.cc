#include "services/coordinator/job/recovery/shard_inventory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace muster::shard_inventory_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Shard i is on p-i, and its replica on the next ps.
v1::JobPlan Ring(int count) {
  v1::JobPlan plan;
  plan.mutable_spec()->mutable_resources()->set_ps_replication(2);
  for (int i = 0; i < count; ++i) {
    v1::PlanShard& shard = *plan.add_shards();
    shard.set_member(absl::StrCat("p-", i));
    shard.set_address(absl::StrCat("at p-", i));
    shard.mutable_backup()->set_member(absl::StrCat("p-", (i + 1) % count));
    shard.mutable_backup()->set_address(absl::StrCat("at p-", (i + 1) % count));
    plan.add_chunks()->set_shard(i);
    plan.mutable_chunks(i)->set_elements(100);
  }
  return plan;
}

class ShardInventoryTest : public testing::Test {
 protected:
  ShardInventoryTest() { Begin(3); }

  void Begin(int count) {
    plan_ = Ring(count);
    members_.Enlist(plan_, absl::UnixEpoch());
  }

  struct Held {
    int64_t oldest, newest;
  };
  // Halts p-i, which holds these versions of its own shard and of its replica.
  void Halt(int i, Held own, std::optional<Held> replica) {
    v1::JobReport report;
    report.set_state(v1::MEMBER_HALTED);
    report.set_oldest_version(own.oldest);
    report.set_next_step(own.newest);
    if (replica) {
      v1::HeldBackup& held = *report.add_backups();
      held.set_shard((i + plan_.shards_size() - 1) % plan_.shards_size());
      held.set_oldest_version(replica->oldest);
      held.set_newest_version(replica->newest);
    }
    members_.Take(absl::StrCat("p-", i), &report, absl::UnixEpoch());
  }

  ShardInventory Take() const { return {plan_, members_}; }

  v1::JobPlan plan_;
  JobMembers members_;
};

TEST_F(ShardInventoryTest, ReplicaTakesThePlaceOfALostShardAndTheOthersStay) {
  members_.SetLost("p-1");
  Halt(0, {6, 7}, Held{6, 7});
  Halt(2, {7, 8}, Held{6, 7});
  const auto carried = Take().Carried();
  ASSERT_TRUE(carried.has_value());
  EXPECT_EQ(carried->first_step, 7);
  EXPECT_FALSE(carried->shards[0].has_backup()) << "its replica was on p-1";
  EXPECT_EQ(carried->shards[1].member(), "p-2");
  EXPECT_EQ(carried->shards[1].address(), "at p-2");
  EXPECT_FALSE(carried->shards[1].has_backup());
  EXPECT_EQ(carried->shards[2].backup().member(), "p-0");
  EXPECT_TRUE(carried->shards[2].backup().carries());
}

TEST_F(ShardInventoryTest, PrefersAVersionThatAllReplicasHold) {
  Halt(0, {7, 8}, Held{6, 7});
  Halt(1, {7, 8}, Held{7, 8});
  Halt(2, {7, 8}, std::nullopt);
  auto carried = Take().Carried();
  EXPECT_EQ(carried->first_step, 7);
  EXPECT_TRUE(carried->shards[0].backup().carries());
  EXPECT_FALSE(carried->shards[1].backup().carries()) << "p-2 holds no version of it";
  EXPECT_TRUE(carried->shards[2].backup().carries());

  Halt(0, {8, 8}, Held{6, 7});
  carried = Take().Carried();
  EXPECT_EQ(carried->first_step, 8);
  EXPECT_FALSE(carried->shards[2].backup().carries());
}

TEST_F(ShardInventoryTest, LostShardsAndShardsWithoutACommonVersionDoNotContinueInPlace) {
  members_.SetLost("p-1");
  Halt(0, {6, 7}, Held{6, 7});
  Halt(2, {7, 8}, std::nullopt);
  EXPECT_FALSE(Take().Carried().has_value());
  Halt(2, {9, 10}, Held{6, 7});
  EXPECT_FALSE(Take().Carried().has_value());
}

TEST_F(ShardInventoryTest, ShardsMayBeHeldWhileAShardOrItsReplicaIsLeft) {
  EXPECT_TRUE(Take().MayBeComplete(/*filled_only=*/false));
  members_.SetLost("p-1");
  EXPECT_TRUE(Take().MayBeComplete(/*filled_only=*/false));
  EXPECT_FALSE(Take().MayBeComplete(/*filled_only=*/true));
  members_.SetLost("p-2");
  EXPECT_FALSE(Take().MayBeComplete(/*filled_only=*/false));
}

TEST_F(ShardInventoryTest, LeavingPsHandsItsShardsOverToTheirReplicas) {
  members_.SetLeaving("p-1");
  Halt(0, {6, 7}, Held{6, 7});
  Halt(1, {7, 8}, Held{7, 8});
  Halt(2, {7, 8}, Held{6, 7});
  const auto carried = Take().Carried();
  ASSERT_TRUE(carried.has_value());
  EXPECT_EQ(carried->first_step, 7);
  EXPECT_FALSE(carried->shards[0].has_backup()) << "its replica was on p-1";
  EXPECT_EQ(carried->shards[1].member(), "p-2");
  EXPECT_FALSE(carried->shards[1].has_backup());
  EXPECT_EQ(carried->shards[2].backup().member(), "p-0");
  EXPECT_TRUE(carried->shards[2].backup().carries());
}

TEST_F(ShardInventoryTest, LeavingPsStaysIfItsReplicasAreEmptyOrTooFarApart) {
  members_.SetLeaving("p-1");
  Halt(0, {7, 8}, Held{7, 8});
  Halt(1, {7, 8}, Held{7, 8});
  for (const std::optional<Held> replica : {std::optional<Held>(), std::optional(Held{5, 6})}) {
    Halt(2, {7, 8}, replica);
    const auto carried = Take().Carried();
    ASSERT_TRUE(carried.has_value());
    EXPECT_EQ(carried->first_step, 8);
    EXPECT_EQ(carried->shards[1].member(), "p-1");
    EXPECT_EQ(carried->shards[0].backup().member(), "p-1")
        << "p-1 keeps its replica while it stays";
    EXPECT_TRUE(carried->shards[0].backup().carries());
    EXPECT_EQ(carried->shards[1].backup().member(), "p-2");
    EXPECT_FALSE(carried->shards[1].backup().carries());
  }
}

TEST_F(ShardInventoryTest, LeavingPsGoesAtOnceIfOthersHoldItsShards) {
  for (int i = 0; i < 3; ++i) Halt(i, {7, 8}, Held{7, 8});
  EXPECT_THAT(Take().Departures().at_once, IsEmpty()) << "no ps is leaving";
  EXPECT_FALSE(Take().Departures().checkpoint_at.has_value());
  members_.SetLeaving("p-1");
  EXPECT_THAT(Take().Departures().at_once, ElementsAre("p-1"));
  EXPECT_FALSE(Take().Departures().checkpoint_at.has_value());
  members_.SetLost("p-1");
  EXPECT_THAT(Take().Departures().at_once, IsEmpty()) << "p-1 is lost";
}

// The checkpoint lets all ps go, including those that could go without it.
TEST_F(ShardInventoryTest, NeededPsGoesAfterACheckpoint) {
  for (int i = 0; i < 3; ++i) Halt(i, {7, 8}, Held{7, 8});
  members_.SetLeaving("p-1");
  members_.SetLeaving("p-2");
  EXPECT_EQ(Take().Departures().checkpoint_at, 8);
  EXPECT_THAT(Take().Departures().at_once, IsEmpty());

  members_.SetLost("p-0");  // p-1 has its shard now
  EXPECT_EQ(Take().Departures().checkpoint_at, 8);
  EXPECT_THAT(Take().Departures().at_once, IsEmpty());
}

TEST_F(ShardInventoryTest, ShardsInPlaceAreOnTheirOwnPsOrOnTheirReplicas) {
  Halt(0, {7, 8}, Held{7, 8});
  Halt(1, {8, 9}, Held{7, 8});
  Halt(2, {7, 8}, std::nullopt);
  members_.SetLeaving("p-0");
  auto in_place = Take().InPlace();
  ASSERT_TRUE(in_place.has_value());
  EXPECT_EQ(in_place->first_step, 8);
  EXPECT_EQ(in_place->shards[0].member(), "p-0");
  members_.SetLost("p-2");
  in_place = Take().InPlace();
  ASSERT_TRUE(in_place.has_value());
  EXPECT_EQ(in_place->first_step, 8);
  EXPECT_EQ(in_place->shards[2].member(), "p-0");
  members_.SetLost("p-0");
  EXPECT_FALSE(Take().InPlace().has_value());
}

TEST_F(ShardInventoryTest, PsThatIsNotNeededGoesIfNoCheckpointIsPossible) {
  Begin(4);
  for (int i = 0; i < 4; ++i) Halt(i, {7, 8}, Held{7, 8});
  Halt(2, {4, 5}, Held{7, 8});  // its replica is nearer to the others
  members_.SetLeaving("p-1");
  members_.SetLeaving("p-2");
  EXPECT_THAT(Take().Departures().at_once, ElementsAre("p-2"));
  EXPECT_FALSE(Take().Departures().checkpoint_at.has_value());
}

TEST_F(ShardInventoryTest, LeavingPsDoNotTakeShardsOverFromEachOther) {
  members_.SetLeaving("p-1");
  members_.SetLeaving("p-2");
  for (int i = 0; i < 3; ++i) Halt(i, {7, 8}, Held{7, 8});
  EXPECT_FALSE(Take().CanHandOver("p-1", /*filled_only=*/false)) << "p-2 leaves too";
  EXPECT_TRUE(Take().CanHandOver("p-2", /*filled_only=*/false));
  EXPECT_FALSE(Take().CanHandOver("p-2", /*filled_only=*/true));
  const auto carried = Take().Carried();
  ASSERT_TRUE(carried.has_value());
  EXPECT_EQ(carried->shards[1].member(), "p-1");
  EXPECT_FALSE(carried->shards[1].has_backup()) << "its replica was on p-2";
  EXPECT_EQ(carried->shards[2].member(), "p-0");
  EXPECT_EQ(carried->shards[0].backup().member(), "p-1");
}

}  // namespace
}  // namespace muster::shard_inventory_test
