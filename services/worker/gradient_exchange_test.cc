#include "services/worker/gradient_exchange.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/status/status.h"
#include "lib/telemetry/metrics.h"
#include "lib/transport/inprocess_transport.h"
#include "services/worker/fake_ps.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Fate = InProcessNetwork::Fate;

// Three layers "a", "b", "c" in a row, each of one parameter of 512 elements: two chunks of 1 KiB.
v1::Graph ThreeLayers() {
  v1::Graph graph;
  for (const char* name : {"c", "a", "b"}) {  // not the order in which forward reads them
    v1::Parameter* parameter = graph.add_parameters();
    parameter->set_name(name);
    parameter->add_shape(512);
    parameter->mutable_initializer()->set_normal(1);
  }
  for (const char* name : {"a", "b", "c"}) {
    v1::Node* node = graph.add_nodes();
    node->set_name(name);
    node->add_inputs("x");
    node->add_inputs(name);
  }
  return graph;
}
constexpr int kC = 0, kA = 1, kB = 2;  // parameters
constexpr int kChunksOfShard = 3;      // every other one of six

FakePs::Options Job(int workers = 1, int shards = 2) {
  FakePs::Options options{.graph = ThreeLayers(), .workers = workers, .shards = shards};
  options.spec.mutable_data()->set_batch_size(4);
  options.spec.mutable_training()->mutable_optimizer()->mutable_sgd()->set_learning_rate(0.5);
  return options;
}

// A worker's memory and exchange.
struct Member {
  Member(InProcessNetwork& network, const FakePs& ps,
         absl::FunctionRef<void(GradientExchange::Options&)> adjust, int rank = 0)
      : worker_metrics(metrics) {
    const int count = ps.plan()->graph().parameters_size();
    parameters.assign(count, std::vector<float>(512));
    gradients.assign(count, std::vector<float>(512));
    GradientExchange::Options options{.plan = ps.plan(),
                                      .rank = rank,
                                      .transport = [&network] { return network.MakeTransport(); },
                                      .answer_timeout = absl::Seconds(30),
                                      .metrics = &worker_metrics};
    for (auto& parameter : parameters) options.parameters.push_back(absl::MakeSpan(parameter));
    for (auto& gradient : gradients) options.gradients.push_back(absl::MakeSpan(gradient));
    adjust(options);
    exchange = GradientExchange::Create(std::move(options)).value();
  }
  Member(InProcessNetwork& network, const FakePs& ps, int rank = 0)
      : Member(
            network, ps, [](GradientExchange::Options&) {}, rank) {}

  Metrics metrics;
  WorkerMetrics worker_metrics;
  std::vector<std::vector<float>> parameters, gradients;
  std::unique_ptr<GradientExchange> exchange;
};

TEST(GradientExchangeTest, FetchesThenTurnsEveryPushIntoTheNextVersion) {
  InProcessNetwork network;
  FakePs ps(network, Job());
  Member worker(network, ps);
  EXPECT_EQ(worker.exchange->version(), -1);
  ASSERT_TRUE(worker.exchange->Connect().ok());
  ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
  EXPECT_EQ(worker.parameters[kA], ps.parameter(kA));

  const std::vector<float> initial = worker.parameters[kA];
  for (int64_t step = 0; step < 3; ++step) {
    for (int p : {kC, kB, kA}) {
      ASSERT_TRUE(worker.exchange->AwaitParameter(p, step).ok());
      std::ranges::fill(worker.gradients[p], step + 1.0f);
      ASSERT_TRUE(worker.exchange->Push(p, step).ok());
    }
    ASSERT_TRUE(worker.exchange->AwaitAnswers().ok());
    EXPECT_EQ(worker.exchange->version(), step + 1);
    EXPECT_NEAR(worker.exchange->GradientNorm(step + 1), (step + 1) * std::sqrt(3 * 512.0), 1e-6);
  }
  EXPECT_FLOAT_EQ(worker.parameters[kA][100], initial[100] - 0.5f - 1.0f - 1.5f);
  EXPECT_EQ(worker.parameters[kB], ps.parameter(kB));
}

TEST(GradientExchangeTest, SendsFirstWhatTheNextForwardReadsFirst) {
  InProcessNetwork network;
  FakePs ps(network, Job(/*workers=*/1, /*shards=*/1));
  Member worker(network, ps, [](auto& options) { options.inflight_bytes_max = 1 << 10; });
  ASSERT_TRUE(worker.exchange->Connect().ok());
  ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());

  // The first chunk takes all of the credit, the others queue behind it.
  ps.shard(0).Stall(true);
  for (int p : {kC, kB, kA}) ASSERT_TRUE(worker.exchange->Push(p, 0).ok());
  ps.shard(0).Stall(false);
  ASSERT_TRUE(worker.exchange->AwaitVersion(1).ok());

  std::vector<int> order = ps.shard(0).pushed_chunks();
  ASSERT_EQ(order.size(), 6);
  // Which chunk went first depends on what the thread saw first; the rest is by priority.
  order.erase(order.begin());
  std::vector<int> parameters;
  for (int chunk : order) parameters.push_back(ps.plan()->chunks(chunk).parameter());
  EXPECT_TRUE(std::ranges::is_sorted(parameters, {}, [](int p) { return (p + 2) % 3; }))
      << testing::PrintToString(parameters);
}

TEST(GradientExchangeTest, NeverHasMoreBytesInFlightThanItsCredit) {
  InProcessNetwork network;
  FakePs ps(network, Job(/*workers=*/1, /*shards=*/3));
  constexpr int64_t kCredit = 2 << 10;
  std::atomic<int64_t> sent = 0, most = 0;
  network.SetFault([&](const WireHeader& header) {
    if (header.kind != MessageKind::kPush) return Fate::kDeliver;
    int64_t received = 0;
    for (int s = 0; s < 3; ++s) received += ps.shard(s).pushes_placed() << 10;
    sent += static_cast<int64_t>(header.length);
    most = std::max<int64_t>(most, sent - received);
    return Fate::kDeliver;
  });
  Member worker(network, ps, [](auto& options) { options.inflight_bytes_max = kCredit; });
  ASSERT_TRUE(worker.exchange->Connect().ok());
  for (int64_t step = 0; step < 20; ++step) {
    ASSERT_TRUE(worker.exchange->AwaitVersion(step).ok());
    for (int p : {kC, kB, kA}) ASSERT_TRUE(worker.exchange->Push(p, step).ok());
  }
  ASSERT_TRUE(worker.exchange->AwaitVersion(20).ok());
  EXPECT_EQ(sent, 20 * 6 << 10);
  EXPECT_LE(most, kCredit);
  network.SetFault(nullptr);
}

TEST(GradientExchangeTest, ACreditSmallerThanAChunkSendsOneAtATime) {
  InProcessNetwork network;
  FakePs ps(network, Job());
  Member worker(network, ps, [](auto& options) { options.inflight_bytes_max = 1; });
  ASSERT_TRUE(worker.exchange->Connect().ok());
  ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
  for (int p : {kC, kB, kA}) ASSERT_TRUE(worker.exchange->Push(p, 0).ok());
  EXPECT_TRUE(worker.exchange->AwaitVersion(1).ok());
}

TEST(GradientExchangeTest, RepeatedAnswersNeverTakeAVersionBack) {
  InProcessNetwork network;
  FakePs ps(network, Job());
  Member worker(network, ps);
  ASSERT_TRUE(worker.exchange->Connect().ok());
  ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
  network.SetFault([](const WireHeader& header) {
    return header.kind == MessageKind::kParams ? Fate::kDuplicate : Fate::kDeliver;
  });
  for (int64_t step = 0; step < 5; ++step) {
    for (int p : {kC, kB, kA}) {
      std::ranges::fill(worker.gradients[p], 1.0f);
      ASSERT_TRUE(worker.exchange->Push(p, step).ok());
    }
    ASSERT_TRUE(worker.exchange->AwaitVersion(step + 1).ok());
    EXPECT_EQ(worker.exchange->version(), step + 1);
    for (int p : {kC, kB, kA}) EXPECT_EQ(worker.parameters[p], ps.parameter(p));
  }
}

TEST(GradientExchangeTest, TwoWorkersWithLittleCreditDoNotWaitForEachOther) {
  InProcessNetwork network;
  FakePs ps(network, Job(/*workers=*/2));
  Member first(
      network, ps, [](auto& options) { options.inflight_bytes_max = 1; }, 0);
  Member second(
      network, ps, [](auto& options) { options.inflight_bytes_max = 1; }, 1);
  auto train = [](GradientExchange& exchange, std::vector<int> order) {
    ASSERT_TRUE(exchange.Connect().ok());
    for (int64_t step = 0; step < 50; ++step) {
      ASSERT_TRUE(exchange.AwaitVersion(step).ok());
      for (int p : order) ASSERT_TRUE(exchange.Push(p, step).ok());
    }
    ASSERT_TRUE(exchange.AwaitVersion(50).ok());
  };
  std::jthread one([&] { train(*first.exchange, {kC, kB, kA}); });
  std::jthread two([&] { train(*second.exchange, {kA, kB, kC}); });
}

TEST(GradientExchangeTest, ALostShardIsNamedWithChunkMemberAndStep) {
  InProcessNetwork network;
  FakePs ps(network, Job());
  Member worker(network, ps);
  ASSERT_TRUE(worker.exchange->Connect().ok());
  ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
  for (int p : {kC, kB, kA}) ASSERT_TRUE(worker.exchange->Push(p, 0).ok());
  ASSERT_TRUE(worker.exchange->AwaitVersion(1).ok());

  ps.shard(1).Stall(true);
  for (int p : {kC, kB, kA}) ASSERT_TRUE(worker.exchange->Push(p, 1).ok());
  ps.shard(1).Stop();
  const absl::Status status = worker.exchange->AwaitVersion(2);

  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(ReasonOf(status), "PS_UNREACHABLE");
  EXPECT_THAT(std::string(status.message()), HasSubstr("shard 1 of ps-1"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("chunk "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("step 1"));
  EXPECT_EQ(worker.exchange->culprit(), "ps-1");
  EXPECT_EQ(worker.exchange->AwaitParameter(kA, 1), status) << "the first failure is final";
}

TEST(GradientExchangeTest, AnUnansweredHelloIsNamed) {
  InProcessNetwork network;
  FakePs ps(network, Job());
  int greetings = 0;  // HELLO to shard 0, its answer, HELLO to shard 1
  network.SetFault([&greetings](const WireHeader& header) {
    return header.kind == MessageKind::kHello && ++greetings == 3 ? Fate::kDrop : Fate::kDeliver;
  });
  Member worker(network, ps,
                [](auto& options) { options.hello_timeout = absl::Milliseconds(200); });
  const absl::Status status = worker.exchange->Connect();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("shard 1 of ps-1 has not answered HELLO"));
  EXPECT_EQ(worker.exchange->culprit(), "ps-1");
}

TEST(GradientExchangeTest, ARefusalIsNamed) {
  InProcessNetwork network;
  FakePs ps(network, Job());
  ps.shard(0).RefuseChunk(ps.plan()->chunks(0).shard() == 0 ? 0 : 1, RefusalReason::kWrongStep);
  Member worker(network, ps);
  ASSERT_TRUE(worker.exchange->Connect().ok());
  ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
  for (int p : {kC, kB, kA}) worker.exchange->Push(p, 0).IgnoreError();
  const absl::Status status = worker.exchange->AwaitVersion(1);
  EXPECT_EQ(ReasonOf(status), "PS_REFUSED") << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(RefusalReasonName(RefusalReason::kWrongStep)));
  EXPECT_EQ(worker.exchange->culprit(), "ps-0");
}

TEST(GradientExchangeTest, AWaitHasADeadlineThatNamesWhatIsMissing) {
  InProcessNetwork network;
  FakePs ps(network, Job(/*workers=*/2));
  Member worker(network, ps,
                [](auto& options) { options.answer_timeout = absl::Milliseconds(200); });
  ASSERT_TRUE(worker.exchange->Connect().ok());
  ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
  for (int p : {kC, kB, kA}) ASSERT_TRUE(worker.exchange->Push(p, 0).ok());
  const absl::Status status = worker.exchange->AwaitParameter(kB, 1);  // rank 1 never pushes
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("chunk "));
  EXPECT_THAT(std::string(status.message()), HasSubstr(" of ps-"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("step 1"));
}

TEST(GradientExchangeTest, InterruptEndsWaitsForOthersButNotForAnswers) {
  InProcessNetwork network;
  FakePs ps(network, Job());
  Member worker(network, ps);
  ASSERT_TRUE(worker.exchange->Connect().ok());
  ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
  network.SetFault([](const WireHeader& header) {
    return header.kind == MessageKind::kParams ? Fate::kHold : Fate::kDeliver;
  });
  for (int p : {kC, kB, kA}) ASSERT_TRUE(worker.exchange->Push(p, 0).ok());
  absl::Status interrupted, answered;
  {
    std::jthread forward([&] { interrupted = worker.exchange->AwaitParameter(kA, 1); });
    std::jthread paused([&] { answered = worker.exchange->AwaitAnswers(); });
    worker.exchange->Interrupt();
    forward.join();
    for (int s = 0; s < 2; ++s) ps.shard(s).AwaitPushes(kChunksOfShard);
    network.SetFault(nullptr);
    // Shards hold a push for a moment before they answer it: the last answers may not be held yet.
    while (worker.exchange->version() < 1) {
      network.ReleaseHeld();
      std::this_thread::yield();
    }
  }
  EXPECT_TRUE(absl::IsAborted(interrupted)) << interrupted;
  EXPECT_TRUE(answered.ok()) << answered;
  EXPECT_TRUE(worker.exchange->AwaitParameter(kA, 1).ok()) << "nothing to wait for";
}

TEST(GradientExchangeTest, CancellingFreesConnectAndEveryWait) {
  InProcessNetwork network;
  FakePs ps(network, Job());
  network.SetFault([](const WireHeader&) { return Fate::kDrop; });
  Member worker(network, ps);
  absl::Status connected;
  std::jthread job([&] { connected = worker.exchange->Connect(); });
  worker.exchange->Fail(absl::CancelledError("released"));
  job.join();
  EXPECT_EQ(connected, absl::CancelledError("released"));
  EXPECT_EQ(worker.exchange->AwaitAnswers(), absl::CancelledError("released"));
  EXPECT_EQ(worker.exchange->culprit(), "");
}

TEST(GradientExchangeTest, RefusesAPlanWhoseChunksDoNotCutItsParameters) {
  InProcessNetwork network;
  FakePs ps(network, Job());
  auto plan = std::make_shared<v1::JobPlan>(*ps.plan());
  plan->mutable_chunks(1)->set_elements(1);
  std::vector<float> memory(512);
  GradientExchange::Options options{.plan = plan};
  EXPECT_TRUE(absl::IsInvalidArgument(GradientExchange::Create(options).status()));
  plan->mutable_chunks(1)->set_elements(256);
  plan->mutable_chunks(1)->set_shard(9);
  EXPECT_TRUE(absl::IsInvalidArgument(GradientExchange::Create(options).status()));
}

}  // namespace
}  // namespace muster
