// Tests pushes without a payload, over each kind of transport: they say that a rank has no
// gradient.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "lib/shard/chunks/memory_budget.h"
#include "lib/shard/core/parameter_shard.h"
#include "lib/shard/testing/test_plan.h"
#include "lib/telemetry/metrics.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/routing/routing_transport.h"
#include "lib/transport/tcp/data_port.h"
#include "lib/transport/testing/inprocess_transport.h"
#include "services/ps/fake_peers.h"
#include "services/ps/ps_metrics.h"
#include "services/ps/shard_thread.h"

namespace muster::missing_gradients_test {
namespace {

enum class Kind { kInProcess, kTcp, kSharedMemory };

// A shard of a job with a program, on a thread of its own. The test's thread plays two workers.
class MissingGradientsTest : public testing::TestWithParam<Kind> {
 protected:
  MissingGradientsTest()
      : plan_(MakeTestPlan({.parameters = {300, 5}, .chunk_bytes = 4096, .has_program = true})) {
    thread_ = *ShardThread::Start([this] { return MakeTransport(); }, &ps_metrics_);
    auto shard = *ParameterShard::Create(
        std::make_shared<v1::JobPlan>(plan_), kFirstShard,
        *budget_.Reserve(ParameterShard::BytesNeeded(plan_, kFirstShard), absl::ZeroDuration()));
    for (const LocalChunk chunk : shard->chunks()) shard->Initialize(chunk);
    thread_->Install(std::move(shard), &listener_, &progress_);
    listener_.AwaitInstalled(1);
    thread_->StartJob(plan_.job_number(), plan_.generation(), /*total_steps=*/10);
    for (const int rank : {0, 1}) {
      workers_.push_back(std::make_unique<FakeWorker>(*MakeTransport(), plan_, rank));
      workers_.back()->Greet(thread_->address());
    }
  }

  absl::StatusOr<std::unique_ptr<Transport>> MakeTransport() {
    if (GetParam() == Kind::kInProcess) return network_.MakeTransport();
    RoutingTransportOptions options{.links = GetParam() == Kind::kTcp ? LinkKind::kTcp
                                                                      : LinkKind::kSharedMemory};
    // A port per transport, as if each were in a process of its own.
    if (GetParam() == Kind::kTcp) options.port = *DataPort::Open({.bind_host = "127.0.0.1"});
    return RoutingTransport::Create(std::move(options));
  }

  WireHeader HeaderOf(int64_t step, int chunk, int rank) const {
    WireHeader header = PushHeader(plan_, step, chunk, rank);
    header.loss_scale = rank == 0 ? 1 : 3;
    return header;
  }
  void Push(int64_t step, int chunk, int rank, float gradient) {
    const Values values(plan_.chunks(chunk).elements(), gradient);
    workers_[rank]->Send(HeaderOf(step, chunk, rank), {reinterpret_cast<const char*>(values.data()),
                                                       values.size() * sizeof(float)});
  }
  void PushNone(int64_t step, int chunk, int rank) {
    WireHeader header = HeaderOf(step, chunk, rank);
    header.dtype = WireDType::kNone;
    workers_[rank]->Send(header);
  }

  // The other worker's messages are sent only while its transport makes progress.
  FakeWorker::Message Receive(int rank) {
    EXPECT_TRUE(workers_[1 - rank]->lost().ok());
    return workers_[rank]->Receive();
  }

  // Fetches the values at version 0.
  Values Fetch(int chunk) {
    workers_[0]->Send(FetchHeader(plan_, 0, chunk, 0));
    return workers_[0]->Receive().payload;
  }

  const v1::JobPlan plan_;
  Metrics metrics_;
  PsMetrics ps_metrics_{metrics_};
  MemoryBudget budget_{1 << 24};
  InProcessNetwork network_;
  FakeListener listener_;
  ShardProgress progress_;
  std::unique_ptr<ShardThread> thread_;
  std::vector<std::unique_ptr<FakeWorker>> workers_;
};

TEST_P(MissingGradientsTest, StepsGoOnWithTheGradientsThatAreThere) {
  std::vector<Values> expected = {Fetch(0), Fetch(1)};
  for (int64_t step = 0; step < 10; ++step) {
    // Only rank 0 has a gradient of chunk 0, and only in some steps one of chunk 1.
    const bool second = step % 3 == 0;
    for (const int chunk : {0, 1}) {
      PushNone(step, chunk, 1);
      if (chunk == 1 && !second) {
        PushNone(step, chunk, 0);
        continue;
      }
      Push(step, chunk, 0, 8.0f);
      for (float& value : expected[chunk]) value -= 0.5f * 2;  // the mean: 8 / (1 + 3)
    }
    for (const int rank : {0, 1}) {
      for (int answers = 0; answers < 2; ++answers) {
        const FakeWorker::Message answer = Receive(rank);
        ASSERT_EQ(answer.header.kind, MessageKind::kParams)
            << RefusalReasonName(answer.header.reason);
        EXPECT_EQ(answer.header.step, step + 1);
        EXPECT_EQ(answer.payload, expected[answer.header.chunk]) << step;
        const bool moves = answer.header.chunk == 0 || second;
        EXPECT_EQ(answer.header.scalar, moves ? 4.0 * answer.payload.size() : 0);
      }
    }
  }
  EXPECT_EQ(progress_.lowest_version, 10);
  EXPECT_EQ(ps_metrics_.pushes(), 40);
}

TEST_P(MissingGradientsTest, RepeatIsAnsweredAndAnotherLearningRateIsRefused) {
  PushNone(0, 0, 1);
  PushNone(0, 0, 0);
  for (const int rank : {0, 1}) EXPECT_EQ(Receive(rank).header.step, 1);
  PushNone(0, 0, 1);
  const FakeWorker::Message again = Receive(1);
  EXPECT_EQ(again.header.kind, MessageKind::kParams);
  EXPECT_EQ(again.header.step, 1);
  EXPECT_EQ(ps_metrics_.duplicate_pushes.Value(), 1);

  PushNone(1, 0, 1);
  PushNone(1, 0, 1);  // comes after the first, and its answer is still to come
  PushNone(7, 0, 1);
  EXPECT_EQ(Receive(1).header.reason, RefusalReason::kWrongStep);
  EXPECT_EQ(ps_metrics_.duplicate_pushes.Value(), 2);
  WireHeader other = HeaderOf(1, 0, 0);
  other.dtype = WireDType::kNone;
  other.scalar = 0.25;
  workers_[0]->Send(other);
  const WireHeader refusal = Receive(0).header;
  EXPECT_EQ(refusal.kind, MessageKind::kRefused);
  EXPECT_EQ(refusal.reason, RefusalReason::kOtherLearningRate);
  EXPECT_EQ(refusal.step, 1);
  PushNone(1, 0, 0);
  for (const int rank : {0, 1}) EXPECT_EQ(Receive(rank).header.step, 2);
}

INSTANTIATE_TEST_SUITE_P(Transports, MissingGradientsTest,
                         testing::Values(Kind::kInProcess, Kind::kTcp, Kind::kSharedMemory),
                         [](const testing::TestParamInfo<Kind>& info) -> std::string {
                           switch (info.param) {
                             case Kind::kInProcess:
                               return "InProcess";
                             case Kind::kTcp:
                               return "Tcp";
                             case Kind::kSharedMemory:
                               return "SharedMemory";
                           }
                           return "";
                         });

}  // namespace
}  // namespace muster::missing_gradients_test
