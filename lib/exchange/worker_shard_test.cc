#include "lib/exchange/worker_shard.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "lib/limits/limits.h"
#include "lib/shard/chunks/memory_budget.h"
#include "lib/shard/core/parameter_shard.h"
#include "lib/shard/snapshot/checkpoint_client.h"
#include "lib/shard/testing/test_plan.h"

namespace muster::worker_shard_test {
namespace {

class FakeOutput : public ShardOutput {
 public:
  void SendTo(Rank, const WireHeader&, absl::Span<const std::byte>,
              Transport::SendDone done) override {
    done(absl::OkStatus());
  }
  void SendToShard(ShardIndex, const WireHeader&, absl::Span<const std::byte>,
                   Transport::SendDone done) override {
    done(absl::OkStatus());
  }
  void StepJudged(const StepVerdict&) override {}
  kernels::OutgoingStores UpdateBegins(int64_t) override {
    return kernels::OutgoingStores::kDirect;
  }
  void UpdateEnds(double) override {}
  void SnapshotTaken(std::shared_ptr<const ShardSnapshot> snapshot) override {
    taken.push_back(snapshot->id);
  }
  void SnapshotDeclined(uint64_t id, int64_t, v1::SnapshotOutcome, const std::string&) override {
    declined.push_back(id);
  }

  std::vector<uint64_t> taken;
  std::vector<uint64_t> declined;
};

constexpr auto kClock = ParameterShard::Clock::now;

v1::JobPlan RingPlan() { return MakeTestPlan({.workers = 1, .sync = SyncOf(v1::ALLREDUCE)}); }

TEST(WorkerShardTest, WrittenSnapshotIsHandledHoweverManyOrdersWait) {
  MemoryBudget budget(1 << 20);
  CheckpointClient unused("127.0.0.1:1");  // empty snapshots are not written
  auto made = WorkerShard::Create({.plan = std::make_shared<const v1::JobPlan>(RingPlan()),
                                   .budget = &budget,
                                   .checkpoints = &unused},
                                  {});
  ASSERT_TRUE(made.ok()) << made.status();
  WorkerShard& shard = **made;
  FakeOutput output;
  shard.parameters().set_output(&output);
  shard.parameters().Start(/*total_steps=*/10);
  shard.TakeSnapshot(1, 0);
  shard.Turn(kClock);
  ASSERT_EQ(output.taken, std::vector<uint64_t>{1});

  for (int i = 0; i <= limits::kMailboxMessagesMax; ++i) shard.TakeSnapshot(1, 0);
  auto snapshot = std::make_shared<const ShardSnapshot>(ShardSnapshot{.id = 1});
  const std::weak_ptr<const ShardSnapshot> writing = snapshot;
  shard.Taken(std::move(snapshot));
  while (!writing.expired()) std::this_thread::yield();

  shard.Turn(kClock);
  shard.TakeSnapshot(2, 0);
  shard.Turn(kClock);
  EXPECT_EQ(output.taken, (std::vector<uint64_t>{1, 2}));
}

TEST(WorkerShardTest, SnapshotIsPassedOverIfASlowWriteDelaysUpdates) {
  const v1::JobPlan plan = RingPlan();
  MemoryBudget budget(1 << 20);
  auto made = WorkerShard::Create(
      {.plan = std::make_shared<const v1::JobPlan>(plan), .budget = &budget}, {});
  ASSERT_TRUE(made.ok()) << made.status();
  WorkerShard& shard = **made;
  FakeOutput output;
  shard.parameters().set_output(&output);
  shard.parameters().Start(/*total_steps=*/10);
  ParameterShard::Clock::time_point now;
  const auto clock = [&] { return now; };
  shard.TakeSnapshot(1, 0);
  shard.Turn(clock);
  shard.TakeSnapshot(2, 0);
  shard.Turn(clock);
  const WireHeader push = PushHeader(plan, /*step=*/0, /*chunk=*/0, /*rank=*/0);
  const absl::Span<const std::byte> gradient = shard.parameters().PlacePush(push).memory;
  ASSERT_EQ(shard.parameters().PushArrived(push, gradient, {}), RefusalReason::kNone);
  EXPECT_EQ(shard.parameters().lowest_version(), 0);
  now += ParameterShard::kWriteHoldsUpMax;
  shard.Turn(clock);
  EXPECT_EQ(shard.parameters().lowest_version(), 1);
  EXPECT_EQ(output.taken, std::vector<uint64_t>{1});
  EXPECT_EQ(output.declined, std::vector<uint64_t>{2});
}

}  // namespace
}  // namespace muster::worker_shard_test
