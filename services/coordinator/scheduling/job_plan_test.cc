#include "services/coordinator/scheduling/job_plan.h"

#include <gtest/gtest.h>

#include <map>

namespace muster::job_plan_test {
namespace {

v1::Hello MemberOn(const std::string& name, const std::string& host, int threads = 0) {
  v1::Hello hello;
  hello.set_member(name);
  hello.set_host(host);
  for (int thread = 0; thread < threads; ++thread) {
    hello.add_addresses(name + "/" + std::to_string(thread));
  }
  return hello;
}

// Returns a request with one parameter of 64 KiB, batches of 10, and chunks of at most 1 KiB.
PlanRequest Request(v1::SyncMode mode = v1::BSP) {
  PlanRequest request;
  request.job.set_name("jobs/net-1");
  request.job.set_generation(2);
  v1::JobSpec& spec = *request.job.mutable_spec();
  spec.mutable_data()->set_batch_size(10);
  spec.mutable_training()->mutable_optimizer()->mutable_adam()->set_learning_rate(0.1);
  spec.mutable_sync()->set_mode(mode);
  spec.set_chunk_bytes(1024);
  v1::Parameter& parameter = *request.graph.add_parameters();
  parameter.set_name("weight");
  parameter.add_shape(16 << 10);
  return request;
}

// Returns the part of all elements that each shard has, by shard.
std::map<int, double> PartsOf(const v1::JobPlan& plan) {
  std::map<int, double> parts;
  for (const v1::PlanChunk& chunk : plan.chunks()) {
    parts[chunk.shard()] += chunk.elements() / double{16 << 10};
  }
  return parts;
}

TEST(JobPlanTest, SharesTheBatchEvenlyAndTheFirstWorkersTakeTheRemainder) {
  PlanRequest request = Request();
  for (const char* name : {"w-0", "w-1", "w-2"}) request.workers.push_back(MemberOn(name, "here"));
  request.ps = {MemberOn("p-0", "here", 1)};

  const auto plan = MakePlan(request);

  EXPECT_EQ(plan->generation(), 3);
  ASSERT_EQ(plan->workers_size(), 3);
  EXPECT_EQ(plan->workers(0).samples(), 4);
  EXPECT_EQ(plan->workers(1).first_position(), 4);
  EXPECT_EQ(plan->workers(2).samples(), 3);
  EXPECT_EQ(plan->workers(2).host(), "here");
  EXPECT_EQ(plan->session_token().size(), 16);
}

TEST(JobPlanTest, EveryThreadOfAPsIsAShardWithItsAddressAndHost) {
  PlanRequest request = Request();
  request.workers = {MemberOn("w-0", "here")};
  request.ps = {MemberOn("p-0", "here", 2), MemberOn("p-1", "here", 1)};

  const auto plan = MakePlan(request);

  ASSERT_EQ(plan->shards_size(), 3);
  EXPECT_EQ(plan->shards(1).member(), "p-0");
  EXPECT_EQ(plan->shards(1).thread(), 1);
  EXPECT_EQ(plan->shards(1).address(), "p-0/1");
  EXPECT_EQ(plan->shards(2).host(), "here");
  for (const auto& [shard, part] : PartsOf(*plan)) EXPECT_NEAR(part, 1.0 / 3, 0.02) << shard;
}

TEST(JobPlanTest, HostsDecideSharesAndTheLargestSharesComeFirst) {
  PlanRequest request = Request();
  request.workers = {MemberOn("w-0", "gpu-0"), MemberOn("w-1", "gpu-1")};
  request.ps = {MemberOn("p-0", "gpu-0", 1), MemberOn("p-1", "gpu-1", 1),
                MemberOn("p-2", "cpu-0", 1)};

  const auto plan = MakePlan(request);

  // A ps on the host of a worker gets 1/4 of the elements, and the ps on a host of its own 1/2.
  EXPECT_EQ(plan->shards(0).member(), "p-2");
  EXPECT_EQ(plan->shards(1).member(), "p-0");
  std::map<int, double> parts = PartsOf(*plan);
  EXPECT_NEAR(parts[0], 0.5, 0.025);
  EXPECT_NEAR(parts[1], 0.25, 0.0125);
  EXPECT_NEAR(parts[2], 0.25, 0.0125);
}

TEST(JobPlanTest, WithAllreduceWorkersOwnTheShards) {
  PlanRequest request = Request(v1::ALLREDUCE);
  request.workers = {MemberOn("w-0", "gpu-0"), MemberOn("w-1", "gpu-0"), MemberOn("w-2", "gpu-1")};

  const auto plan = MakePlan(request);

  ASSERT_EQ(plan->shards_size(), 3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(plan->shards(rank).member(), plan->workers(rank).member());
    EXPECT_EQ(plan->shards(rank).host(), plan->workers(rank).host());
    EXPECT_EQ(plan->shards(rank).address(), "");
  }
  for (const auto& [shard, part] : PartsOf(*plan)) EXPECT_NEAR(part, 1.0 / 3, 0.02) << shard;
}

TEST(JobPlanTest, WithLocalSgdEverySlotHasTheChunksOfTheValues) {
  PlanRequest request = Request(v1::LOCAL_SGD);
  request.workers = {MemberOn("w-0", "here")};
  request.ps = {MemberOn("p-0", "here", 2)};

  const auto plan = MakePlan(request);

  ASSERT_EQ(plan->chunks_size(), 3 * 64);
  for (int c = 0; c < 64; ++c) {
    for (int slot = 0; slot < 3; ++slot) {
      v1::PlanChunk of_slot = plan->chunks(slot * 64 + c);
      EXPECT_EQ(of_slot.slot(), slot);
      of_slot.set_slot(0);
      EXPECT_EQ(of_slot.SerializeAsString(), plan->chunks(c).SerializeAsString());
    }
  }
}

TEST(JobPlanTest, FrozenAndTrainedParametersAreSpreadSeparately) {
  PlanRequest request = Request();
  request.workers = {MemberOn("w-0", "here")};
  request.ps = {MemberOn("p-0", "here", 2)};
  v1::Parameter& frozen = *request.graph.add_parameters();
  frozen.set_name("embedding");
  frozen.add_shape(100 << 10);
  v1::ParameterGroup& group =
      *request.job.mutable_spec()->mutable_training()->add_parameter_groups();
  group.add_match("embedding");
  group.set_frozen(true);

  const auto plan = MakePlan(request);

  std::map<int, int64_t> trained;
  for (const v1::PlanChunk& chunk : plan->chunks()) {
    if (chunk.parameter() == 0) trained[chunk.shard()] += chunk.elements();
  }
  EXPECT_EQ(trained, (std::map<int, int64_t>{{0, 8 << 10}, {1, 8 << 10}}));
}

TEST(JobPlanTest, WithReplicationEveryShardHasAReplicaOnAnotherPs) {
  PlanRequest request = Request();
  request.job.mutable_spec()->mutable_resources()->set_ps_replication(2);
  request.workers = {MemberOn("w-0", "gpu-0")};
  request.ps = {MemberOn("p-0", "cpu-0", 2), MemberOn("p-1", "cpu-1", 2)};

  const auto plan = MakePlan(request);

  ASSERT_EQ(plan->shards_size(), 4);
  std::map<std::string, int> replicas;  // by thread
  for (const v1::PlanShard& shard : plan->shards()) {
    EXPECT_NE(shard.backup().member(), shard.member());
    EXPECT_FALSE(shard.backup().carries());
    ++replicas[shard.backup().address()];
  }
  EXPECT_EQ(replicas.size(), 4) << "one on each thread";

  request.carried = plan;
  request.shards = {plan->shards().begin(), plan->shards().end()};
  request.shards[0].clear_backup();
  request.without_new_replicas = true;
  EXPECT_FALSE(MakePlan(request)->shards(0).has_backup());
  request.without_new_replicas = false;
  EXPECT_EQ(MakePlan(request)->shards(0).backup().address(), plan->shards(0).backup().address());
}

}  // namespace
}  // namespace muster::job_plan_test
