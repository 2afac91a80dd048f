#include "services/ps/shard_loop.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "lib/shard/chunks/memory_budget.h"
#include "lib/shard/core/parameter_shard.h"
#include "lib/shard/testing/test_plan.h"
#include "lib/telemetry/metrics.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/session/session.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/ps/fake_peers.h"
#include "services/ps/ps_metrics.h"

namespace muster::shard_loop_test {
namespace {

// A transport without peers. The test sets how many events it has.
class BusyTransport : public Transport {
 public:
  void SetReceiver(MessageReceiver*) override {}
  std::string address() const override { return "busy"; }
  std::string name() const override { return "busy"; }
  void OpenSession(uint64_t, uint32_t, const SessionToken&) override {}
  void CloseSession(uint64_t, uint32_t) override {}
  absl::StatusOr<PeerId> Connect(absl::string_view, const LinkCredentials&) override {
    return absl::UnimplementedError("nobody is connected to");
  }
  void Disconnect(PeerId) override {}
  void Send(PeerId, const WireHeader&, absl::Span<const std::byte>, SendDone) override {}
  absl::StatusOr<std::unique_ptr<MemoryRegistration>> RegisterMemory(
      absl::Span<std::byte>) override {
    return std::make_unique<MemoryRegistration>();
  }
  int Progress() override { return events; }
  void Wait(absl::Duration timeout) override {
    EXPECT_EQ(timeout, absl::ZeroDuration()) << "it must poll and not sleep";
    ++looks;
  }
  void Wake() override {}

  int events = 0;
  int looks = 0;
};

class ShardLoopTest : public testing::Test {
 protected:
  ShardLoopTest() {
    auto transport = std::make_unique<BusyTransport>();
    transport_ = transport.get();
    loop_ = std::make_unique<ShardLoop>(std::move(transport), &ps_metrics_, &counts_,
                                        absl::ZeroDuration());
  }

  // Installs a job that is resumed at its end, so that its final snapshot is due.
  void InstallEnded(uint64_t job) {
    const v1::JobPlan plan = MakeTestPlan({.parameters = {3, 4, 5}, .job_number = job});
    Install(plan, plan.first_step());
  }
  ParameterShard& Install(const v1::JobPlan& plan, int64_t total_steps) {
    auto shard = *ParameterShard::Create(
        std::make_shared<v1::JobPlan>(plan), kFirstShard,
        *budget_.Reserve(ParameterShard::BytesNeeded(plan, kFirstShard), absl::ZeroDuration()));
    for (const LocalChunk chunk : shard->chunks()) shard->Initialize(chunk);
    ParameterShard& installed = *shard;
    loop_->Install(std::move(shard), &listener_, &progress_);
    loop_->StartJob(plan.job_number(), plan.generation(), total_steps);
    return installed;
  }
  void Turn(int times) {
    for (int i = 0; i < times; ++i) loop_->Turn(ShardLoop::Clock::now);
  }

  Metrics metrics_;
  PsMetrics ps_metrics_{metrics_};
  ShardCounts& counts_ = ps_metrics_.AddShardThread();
  MemoryBudget budget_{1 << 24};
  FakeListener listener_;
  ShardProgress progress_;
  BusyTransport* transport_;
  std::unique_ptr<ShardLoop> loop_;
};

TEST_F(ShardLoopTest, SnapshotIsCopiedWhileTheThreadIsIdle) {
  InstallEnded(7);
  Turn(2);
  EXPECT_EQ(listener_.snapshots(), 0);
  Turn(1);
  EXPECT_EQ(listener_.snapshots(), 1);
  EXPECT_EQ(transport_->looks, 3) << "messages wait for the copy of at most one chunk";
  Turn(1);
  EXPECT_EQ(transport_->looks, 3);
}

TEST_F(ShardLoopTest, TurnNoticesThatAWriteDelaysAnUpdateForTooLong) {
  const v1::JobPlan plan = MakeTestPlan({.workers = 1});
  ParameterShard& shard = Install(plan, /*total_steps=*/10);
  ShardLoop::Clock::time_point now;
  const auto clock = [&] { return now; };
  for (const uint64_t id : {1, 2}) {
    loop_->TakeSnapshot(plan.job_number(), plan.generation(), id, 0);
    loop_->Turn(clock);
  }
  const WireHeader push = PushHeader(plan, /*step=*/0, /*chunk=*/0, /*rank=*/0);
  const absl::Span<const std::byte> gradient = shard.PlacePush(push).memory;
  ASSERT_EQ(shard.PushArrived(push, gradient, {}), RefusalReason::kNone);
  loop_->Turn(clock);
  EXPECT_EQ(shard.lowest_version(), 0);
  now += ParameterShard::kWriteHoldsUpMax;
  loop_->Turn(clock);
  EXPECT_EQ(shard.lowest_version(), 1);
}

TEST_F(ShardLoopTest, SnapshotIsCopiedNowAndThenWhileTheThreadIsBusy) {
  transport_->events = 1;
  InstallEnded(7);
  InstallEnded(8);
  Turn(16 * 6 - 1);
  EXPECT_EQ(listener_.snapshots(), 1) << "the shards take turns";
  Turn(1);
  EXPECT_EQ(listener_.snapshots(), 2);
}

}  // namespace
}  // namespace muster::shard_loop_test
