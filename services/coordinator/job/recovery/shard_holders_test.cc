#include "services/coordinator/job/recovery/shard_holders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace muster::shard_holders_test {
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

class ShardsHeldTest : public testing::Test {
 protected:
  ShardsHeldTest() { Begin(3); }

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

  v1::JobPlan plan_;
  JobMembers members_;
};

TEST_F(ShardsHeldTest, ReplicaTakesThePlaceOfALostShardAndTheOthersStay) {
  members_.SetLost("p-1");
  Halt(0, {6, 7}, Held{6, 7});
  Halt(2, {7, 8}, Held{6, 7});
  const auto carried = ShardsHeld(plan_, members_);
  ASSERT_TRUE(carried.has_value());
  EXPECT_EQ(carried->first_step, 7);
  EXPECT_FALSE(carried->shards[0].has_backup()) << "its replica was on p-1";
  EXPECT_EQ(carried->shards[1].member(), "p-2");
  EXPECT_EQ(carried->shards[1].address(), "at p-2");
  EXPECT_FALSE(carried->shards[1].has_backup());
  EXPECT_EQ(carried->shards[2].backup().member(), "p-0");
  EXPECT_TRUE(carried->shards[2].backup().carries());
}

TEST_F(ShardsHeldTest, PrefersAVersionThatAllReplicasHold) {
  Halt(0, {7, 8}, Held{6, 7});
  Halt(1, {7, 8}, Held{7, 8});
  Halt(2, {7, 8}, std::nullopt);
  auto carried = ShardsHeld(plan_, members_);
  EXPECT_EQ(carried->first_step, 7);
  EXPECT_TRUE(carried->shards[0].backup().carries());
  EXPECT_FALSE(carried->shards[1].backup().carries()) << "p-2 holds no version of it";
  EXPECT_TRUE(carried->shards[2].backup().carries());

  Halt(0, {8, 8}, Held{6, 7});
  carried = ShardsHeld(plan_, members_);
  EXPECT_EQ(carried->first_step, 8);
  EXPECT_FALSE(carried->shards[2].backup().carries());
}

TEST_F(ShardsHeldTest, LostShardsAndShardsWithoutACommonVersionDoNotContinueInPlace) {
  members_.SetLost("p-1");
  Halt(0, {6, 7}, Held{6, 7});
  Halt(2, {7, 8}, std::nullopt);
  EXPECT_FALSE(ShardsHeld(plan_, members_).has_value());
  Halt(2, {9, 10}, Held{6, 7});
  EXPECT_FALSE(ShardsHeld(plan_, members_).has_value());
}

TEST_F(ShardsHeldTest, ShardsMayBeHeldWhileAShardOrItsReplicaIsLeft) {
  EXPECT_TRUE(ShardsMayBeHeld(plan_, members_, /*filled_only=*/false));
  members_.SetLost("p-1");
  EXPECT_TRUE(ShardsMayBeHeld(plan_, members_, /*filled_only=*/false));
  EXPECT_FALSE(ShardsMayBeHeld(plan_, members_, /*filled_only=*/true));
  members_.SetLost("p-2");
  EXPECT_FALSE(ShardsMayBeHeld(plan_, members_, /*filled_only=*/false));
}

TEST_F(ShardsHeldTest, LeavingPsHandsItsShardsOverToTheirReplicas) {
  members_.SetLeaving("p-1");
  Halt(0, {6, 7}, Held{6, 7});
  Halt(1, {7, 8}, Held{7, 8});
  Halt(2, {7, 8}, Held{6, 7});
  const auto carried = ShardsHeld(plan_, members_);
  ASSERT_TRUE(carried.has_value());
  EXPECT_EQ(carried->first_step, 7);
  EXPECT_FALSE(carried->shards[0].has_backup()) << "its replica was on p-1";
  EXPECT_EQ(carried->shards[1].member(), "p-2");
  EXPECT_FALSE(carried->shards[1].has_backup());
  EXPECT_EQ(carried->shards[2].backup().member(), "p-0");
  EXPECT_TRUE(carried->shards[2].backup().carries());
}

TEST_F(ShardsHeldTest, LeavingPsStaysIfItsReplicasAreEmptyOrTooFarApart) {
  members_.SetLeaving("p-1");
  Halt(0, {7, 8}, Held{7, 8});
  Halt(1, {7, 8}, Held{7, 8});
  for (const std::optional<Held> replica : {std::optional<Held>(), std::optional(Held{5, 6})}) {
    Halt(2, {7, 8}, replica);
    const auto carried = ShardsHeld(plan_, members_);
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

TEST_F(ShardsHeldTest, LeavingPsGoesAtOnceIfOthersHoldItsShards) {
  for (int i = 0; i < 3; ++i) Halt(i, {7, 8}, Held{7, 8});
  EXPECT_THAT(DeparturesOf(plan_, members_).at_once, IsEmpty()) << "no ps is leaving";
  EXPECT_FALSE(DeparturesOf(plan_, members_).checkpoint_at.has_value());
  members_.SetLeaving("p-1");
  EXPECT_THAT(DeparturesOf(plan_, members_).at_once, ElementsAre("p-1"));
  EXPECT_FALSE(DeparturesOf(plan_, members_).checkpoint_at.has_value());
  members_.SetLost("p-1");
  EXPECT_THAT(DeparturesOf(plan_, members_).at_once, IsEmpty()) << "p-1 is lost";
}

// The checkpoint lets all ps go, including those that could go without it.
TEST_F(ShardsHeldTest, NeededPsGoesAfterACheckpoint) {
  for (int i = 0; i < 3; ++i) Halt(i, {7, 8}, Held{7, 8});
  members_.SetLeaving("p-1");
  members_.SetLeaving("p-2");
  EXPECT_EQ(DeparturesOf(plan_, members_).checkpoint_at, 8);
  EXPECT_THAT(DeparturesOf(plan_, members_).at_once, IsEmpty());

  members_.SetLost("p-0");  // p-1 has its shard now
  EXPECT_EQ(DeparturesOf(plan_, members_).checkpoint_at, 8);
  EXPECT_THAT(DeparturesOf(plan_, members_).at_once, IsEmpty());
}

TEST_F(ShardsHeldTest, ShardsInPlaceAreOnTheirOwnPsOrOnTheirReplicas) {
  Halt(0, {7, 8}, Held{7, 8});
  Halt(1, {8, 9}, Held{7, 8});
  Halt(2, {7, 8}, std::nullopt);
  members_.SetLeaving("p-0");
  auto in_place = ShardsInPlace(plan_, members_);
  ASSERT_TRUE(in_place.has_value());
  EXPECT_EQ(in_place->first_step, 8);
  EXPECT_EQ(in_place->shards[0].member(), "p-0");
  members_.SetLost("p-2");
  in_place = ShardsInPlace(plan_, members_);
  ASSERT_TRUE(in_place.has_value());
  EXPECT_EQ(in_place->first_step, 8);
  EXPECT_EQ(in_place->shards[2].member(), "p-0");
  members_.SetLost("p-0");
  EXPECT_FALSE(ShardsInPlace(plan_, members_).has_value());
}

TEST_F(ShardsHeldTest, PsThatIsNotNeededGoesIfNoCheckpointIsPossible) {
  Begin(4);
  for (int i = 0; i < 4; ++i) Halt(i, {7, 8}, Held{7, 8});
  Halt(2, {4, 5}, Held{7, 8});  // its replica is nearer to the others
  members_.SetLeaving("p-1");
  members_.SetLeaving("p-2");
  EXPECT_THAT(DeparturesOf(plan_, members_).at_once, ElementsAre("p-2"));
  EXPECT_FALSE(DeparturesOf(plan_, members_).checkpoint_at.has_value());
}

TEST_F(ShardsHeldTest, LeavingPsDoNotTakeShardsOverFromEachOther) {
  members_.SetLeaving("p-1");
  members_.SetLeaving("p-2");
  for (int i = 0; i < 3; ++i) Halt(i, {7, 8}, Held{7, 8});
  EXPECT_FALSE(CanHandOver(plan_, members_, "p-1", /*filled_only=*/false)) << "p-2 leaves too";
  EXPECT_TRUE(CanHandOver(plan_, members_, "p-2", /*filled_only=*/false));
  EXPECT_FALSE(CanHandOver(plan_, members_, "p-2", /*filled_only=*/true));
  const auto carried = ShardsHeld(plan_, members_);
  ASSERT_TRUE(carried.has_value());
  EXPECT_EQ(carried->shards[1].member(), "p-1");
  EXPECT_FALSE(carried->shards[1].has_backup()) << "its replica was on p-2";
  EXPECT_EQ(carried->shards[2].member(), "p-0");
  EXPECT_EQ(carried->shards[0].backup().member(), "p-1");
}

v1::Hello Ps(int i, const std::string& host, int threads = 1) {
  v1::Hello hello;
  hello.set_member(absl::StrCat("p-", i));
  hello.set_host(host);
  for (int thread = 0; thread < threads; ++thread) hello.add_addresses("address");
  return hello;
}

v1::JobPlan Bare(const std::vector<v1::Hello>& ps) {
  v1::JobPlan plan;
  plan.mutable_spec()->mutable_resources()->set_ps_replication(2);
  for (const v1::Hello& hello : ps) {
    for (int thread = 0; thread < hello.addresses_size(); ++thread) {
      v1::PlanShard& shard = *plan.add_shards();
      shard.set_member(hello.member());
      shard.set_thread(thread);
      shard.set_host(hello.host());
      plan.add_chunks()->set_shard(plan.shards_size() - 1);
      plan.mutable_chunks(plan.chunks_size() - 1)->set_elements(100);
    }
  }
  return plan;
}

TEST(PlaceReplicasTest, SpreadsReplicasEvenlyOverThePs) {
  for (int count = 2; count <= 7; ++count) {
    std::vector<v1::Hello> ps;
    for (int i = 0; i < count; ++i) ps.push_back(Ps(i, absl::StrCat("host-", i), 3));
    v1::JobPlan plan = Bare(ps);
    EXPECT_EQ(ShardsWithoutReplica(plan), 3 * count);
    PlaceReplicas(ps, plan);
    EXPECT_EQ(ShardsWithoutReplica(plan), 0);
    std::map<std::pair<std::string, int>, int> replicas;
    for (const v1::PlanShard& shard : plan.shards()) {
      EXPECT_NE(shard.backup().member(), shard.member());
      ++replicas[{shard.backup().member(), shard.backup().thread()}];
    }
    for (const auto& [thread, number] : replicas) {
      EXPECT_EQ(number, 1) << count << " ps, " << thread.first;
    }
  }
}

TEST(PlaceReplicasTest, PrefersAnotherHost) {
  const std::vector<v1::Hello> ps = {Ps(0, "a"), Ps(1, "a"), Ps(2, "b"), Ps(3, "b")};
  v1::JobPlan plan = Bare(ps);
  PlaceReplicas(ps, plan);
  for (const v1::PlanShard& shard : plan.shards()) EXPECT_NE(shard.backup().host(), shard.host());
  const std::vector<v1::Hello> one_host = {Ps(0, "a"), Ps(1, "a")};
  v1::JobPlan close = Bare(one_host);
  PlaceReplicas(one_host, close);
  EXPECT_EQ(ShardsWithoutReplica(close), 0);
}

TEST(PlaceReplicasTest, PlacesNoReplicaWithASinglePs) {
  v1::JobPlan plan = Bare({Ps(0, "a")});
  PlaceReplicas({Ps(0, "a")}, plan);
  EXPECT_EQ(ShardsWithoutReplica(plan), 1);
  plan.mutable_spec()->mutable_resources()->set_ps_replication(1);
  EXPECT_EQ(ShardsWithoutReplica(plan), 0) << "the job wants no replica";
}

}  // namespace
}  // namespace muster::shard_holders_test
