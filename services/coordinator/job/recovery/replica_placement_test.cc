#include "services/coordinator/job/recovery/replica_placement.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster::replica_placement_test {
namespace {

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
}  // namespace muster::replica_placement_test
