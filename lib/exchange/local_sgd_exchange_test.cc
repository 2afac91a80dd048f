#include "lib/exchange/local_sgd_exchange.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "lib/exchange/fake_ps.h"
#include "lib/telemetry/metrics.h"
#include "lib/transport/testing/inprocess_transport.h"

namespace muster::local_sgd_exchange_test {
namespace {

// The elements of "w", in three chunks.
constexpr int64_t kElements = 3000;
constexpr int64_t kEvery = 4;
constexpr int64_t kSteps = 10;  // the last round has two steps
constexpr double kLearningRate = 0.25, kMomentum = 0.5;

// One parameter "w" and a statistic "mean". The workers share a batch of 4.
FakePs::Options Job(int workers) {
  FakePs::Options job;
  for (const char* name : {"w", "mean"}) {
    v1::Parameter& parameter = *job.graph.add_parameters();
    parameter.set_name(name);
    parameter.add_shape(name[0] == 'w' ? kElements : 1);
    parameter.mutable_initializer()->set_constant(1);
    v1::Node& node = *job.graph.add_nodes();
    node.set_name(name);
    node.add_inputs(name);
  }
  job.graph.mutable_parameters(1)->set_statistic_momentum(0.5);
  job.spec.mutable_data()->set_batch_size(4);
  v1::Sgd& sgd = *job.spec.mutable_training()->mutable_optimizer()->mutable_sgd();
  sgd.set_learning_rate(kLearningRate);
  sgd.set_momentum(kMomentum);
  job.spec.mutable_sync()->set_mode(v1::LOCAL_SGD);
  job.spec.mutable_sync()->set_every(kEvery);
  job.chunk_bytes = 4096;
  job.workers = workers;
  job.total_steps = kSteps;
  return job;
}

struct Tensors {
  explicit Tensors(const v1::Graph& graph) {
    for (const v1::Parameter& parameter : graph.parameters()) {
      memory.emplace_back(parameter.shape(0));
      spans.push_back(absl::MakeSpan(memory.back()));
    }
  }
  std::vector<std::vector<float>> memory;
  std::vector<absl::Span<float>> spans;
};

struct Member {
  Member(InProcessNetwork& network, const FakePs& ps, int rank = 0)
      : plan(*ps.plan()),
        exchange_metrics(metrics),
        values(plan.graph()),
        momentum(plan.graph()),
        gradients(plan.graph()),
        exchange(LocalSgdExchange::Create(
                     {.exchange = {.plan = ps.plan(),
                                   .rank = Rank(rank),
                                   .transport = [&network] { return network.MakeTransport(); },
                                   .parameters = values.spans,
                                   .slots = {momentum.spans},
                                   .metrics = &exchange_metrics},
                      .gradients = gradients.spans})
                     .value()) {}

  // Runs a step with a mean gradient of `gradient` everywhere, over this worker's samples. It
  // pushes the worker's share of the batch's gradient.
  void Step(int64_t step, float gradient, float share) {
    for (int p = 0; p < 2; ++p) {
      ASSERT_TRUE(exchange->AwaitParameter(p, step).ok());
      std::ranges::fill(gradients.memory[p], gradient * share);
    }
    for (int c = 0; c < plan.chunks_size(); ++c) {
      if (plan.chunks(c).slot() > 0) continue;
      ASSERT_TRUE(exchange->Push(ChunkId(c), step).ok());
    }
  }

  const v1::JobPlan& plan;
  Metrics metrics;
  ExchangeMetrics exchange_metrics;
  Tensors values, momentum, gradients;
  std::unique_ptr<LocalSgdExchange> exchange;
};

// The expected state of one element of each parameter.
struct Expected {
  double value = 1, momentum = 0, mean = 1;

  void Step(double gradient) {
    momentum = kMomentum * momentum + gradient;
    value -= kLearningRate * momentum;
    mean += 0.5 * (gradient - mean);
  }
};

void ExpectEverywhere(const std::vector<float>& values, double expected) {
  for (const float value : values) ASSERT_NEAR(value, expected, 1e-5);
}

TEST(LocalSgdExchangeTest, WorkerTrainsAloneWithinARoundAndSendsNothing) {
  InProcessNetwork network;
  FakePs ps(network, Job(/*workers=*/1));
  Member worker(network, ps);
  ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
  Expected expected;
  for (int64_t step = 0; step < kEvery - 1; ++step) {
    worker.Step(step, step + 1.0f, /*share=*/1);
    expected.Step(step + 1.0);
    ASSERT_TRUE(worker.exchange->AwaitVersion(step + 1).ok());
    EXPECT_EQ(worker.exchange->version(), step + 1);
    ExpectEverywhere(worker.values.memory[0], expected.value);
    ExpectEverywhere(worker.momentum.memory[0], expected.momentum);
    ExpectEverywhere(worker.values.memory[1], expected.mean);
    EXPECT_NEAR(worker.exchange->GradientNorm(step + 1), (step + 1) * std::sqrt(1.0 * kElements),
                1e-3);
  }
  EXPECT_EQ(worker.exchange_metrics.push_bytes.Value(), 0);
}

TEST(LocalSgdExchangeTest, RoundEndsWithTheMeanOfValuesAndSlotsWeightedBySamples) {
  InProcessNetwork network;
  FakePs::Options job = Job(/*workers=*/3);  // samples 1, 1 and 2
  FakePs ps(network, job);
  std::vector<std::unique_ptr<Member>> workers;
  for (int rank = 0; rank < 3; ++rank) {
    workers.push_back(std::make_unique<Member>(network, ps, rank));
  }
  const std::vector<double> shares = {0.25, 0.25, 0.5};
  auto gradient = [](int64_t step, int rank) { return 0.1 * (step + 1) * (rank + 1); };
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        Member& worker = *workers[rank];
        ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
        for (int64_t step = 0; step < kSteps; ++step) {
          worker.Step(step, static_cast<float>(gradient(step, rank)),
                      static_cast<float>(shares[rank]));
        }
        ASSERT_TRUE(worker.exchange->AwaitVersion(kSteps).ok());
      });
    }
  }
  std::vector<Expected> expected(3);
  for (int64_t step = 0; step < kSteps; ++step) {
    for (int rank = 0; rank < 3; ++rank) expected[rank].Step(gradient(step, rank));
    if ((step + 1) % kEvery != 0 && step + 1 != kSteps) continue;
    Expected mean{.value = 0, .momentum = 0, .mean = 0};
    for (int rank = 0; rank < 3; ++rank) {
      mean.value += shares[rank] * expected[rank].value;
      mean.momentum += shares[rank] * expected[rank].momentum;
      mean.mean += shares[rank] * expected[rank].mean;
    }
    std::ranges::fill(expected, mean);
  }
  for (const auto& worker : workers) {
    ExpectEverywhere(worker->values.memory[0], expected[0].value);
    ExpectEverywhere(worker->momentum.memory[0], expected[0].momentum);
    ExpectEverywhere(worker->values.memory[1], expected[0].mean);
    EXPECT_EQ(worker->exchange->version(), kSteps);
    EXPECT_EQ(worker->values.memory, workers[0]->values.memory) << "all workers have the same bits";
    // Three rounds of values and momentum, of both parameters.
    EXPECT_EQ(worker->exchange_metrics.push_bytes.Value(), 3 * 2 * 4 * (kElements + 1));
  }
  ExpectEverywhere(ps.parameter(0), expected[0].value);
}

TEST(LocalSgdExchangeTest, FrozenParametersStayAsTheyAre) {
  InProcessNetwork network;
  FakePs::Options job = Job(/*workers=*/1);
  v1::ParameterGroup& group = *job.spec.mutable_training()->add_parameter_groups();
  group.add_match("mea*");
  group.set_frozen(true);
  FakePs ps(network, job);
  Member worker(network, ps);
  ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
  for (int64_t step = 0; step < kSteps; ++step) worker.Step(step, 1, /*share=*/1);
  ASSERT_TRUE(worker.exchange->AwaitVersion(kSteps).ok());
  ExpectEverywhere(worker.values.memory[1], 1);
  EXPECT_EQ(worker.exchange_metrics.push_bytes.Value(), 3 * 2 * 4 * kElements);
}

TEST(LocalSgdExchangeTest, DecayOfAGroupReplacesThatOfTheOptimizer) {
  InProcessNetwork network;
  FakePs::Options job = Job(/*workers=*/1);
  job.spec.mutable_training()->mutable_optimizer()->mutable_sgd()->set_weight_decay(1);
  v1::ParameterGroup& group = *job.spec.mutable_training()->add_parameter_groups();
  group.add_match("w");
  group.set_decay(0.5);
  FakePs ps(network, job);
  Member worker(network, ps);
  ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
  worker.Step(0, /*gradient=*/0, /*share=*/1);
  ASSERT_TRUE(worker.exchange->AwaitVersion(1).ok());
  ExpectEverywhere(worker.values.memory[0], 1 - kLearningRate * 0.5);
}

TEST(LocalSgdExchangeTest, WaitWithinARoundEndsWithTheLastUpdateOfAnotherThread) {
  InProcessNetwork network;
  FakePs ps(network, Job(/*workers=*/1));
  Member worker(network, ps);
  ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
  absl::Status version, parameter;
  {
    std::jthread first([&] { version = worker.exchange->AwaitVersion(1); });
    std::jthread second([&] { parameter = worker.exchange->AwaitParameter(1, 1); });
    worker.Step(0, 1, /*share=*/1);
  }
  EXPECT_EQ(version, absl::OkStatus());
  EXPECT_EQ(parameter, absl::OkStatus());
}

// A device that has every parameter of a version continues as if the last step was over.
TEST(LocalSgdExchangeTest, VersionOfEveryParameterImpliesTheVersionOfTheWhole) {
  constexpr int64_t kRound = 3000;
  InProcessNetwork network;
  FakePs::Options job = Job(/*workers=*/1);
  job.graph.mutable_parameters(0)->set_shape(0, 1);
  job.spec.mutable_sync()->set_every(kRound);
  job.total_steps = kRound;
  FakePs ps(network, job);
  Member worker(network, ps);
  ASSERT_TRUE(worker.exchange->Connect(kRound, {}).ok());
  int64_t behind = 0;
  {
    std::atomic<int64_t> seen = 0;
    std::jthread device([&] {
      for (int64_t version = 1; version < kRound; ++version) {
        while (!worker.exchange->HasParameter(0, version) ||
               !worker.exchange->HasParameter(1, version)) {
        }
        behind += worker.exchange->version() < version;
        seen = version;
        seen.notify_one();
      }
    });
    for (int64_t step = 0; step < kRound - 1; ++step) {
      seen.wait(step - 1);  // each version is seen before the next one is made
      worker.Step(step, 0, /*share=*/1);
    }
  }
  EXPECT_EQ(behind, 0);
}

TEST(LocalSgdExchangeTest, NonFiniteStatisticMakesTheNormNonFinite) {
  InProcessNetwork network;
  FakePs ps(network, Job(/*workers=*/1));
  Member worker(network, ps);
  ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
  worker.Step(0, 1, /*share=*/1);
  EXPECT_TRUE(std::isfinite(worker.exchange->GradientNorm(1)));
  for (int p = 0; p < 2; ++p) ASSERT_TRUE(worker.exchange->AwaitParameter(p, 1).ok());
  worker.gradients.memory[1][0] = std::numeric_limits<float>::infinity();
  for (int c = 0; c < worker.plan.chunks_size(); ++c) {
    if (worker.plan.chunks(c).slot() == 0) {
      ASSERT_TRUE(worker.exchange->Push(ChunkId(c), 1).ok());
    }
  }
  EXPECT_FALSE(std::isfinite(worker.exchange->GradientNorm(2)));
  for (int c = 0; c < worker.plan.chunks_size(); ++c) {
    const v1::PlanChunk& chunk = worker.plan.chunks(c);
    if (chunk.slot() > 0) continue;
    EXPECT_EQ(std::isfinite(worker.exchange->GradientSquares(ChunkId(c), 2)),
              chunk.parameter() == 0);
  }
}

TEST(LocalSgdExchangeTest, FailureEndsTheRoundEarly) {
  InProcessNetwork network;
  FakePs ps(network, Job(/*workers=*/1));
  Member worker(network, ps);
  ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
  worker.Step(0, 1, /*share=*/1);
  worker.exchange->Fail(absl::CancelledError("released"));
  EXPECT_EQ(worker.exchange->Push(ChunkId(0), 1), absl::CancelledError("released"));
  EXPECT_EQ(worker.exchange->AwaitVersion(3), absl::CancelledError("released"));
}

TEST(LocalSgdExchangeTest, FailureEndsAWaitWithinARound) {
  InProcessNetwork network;
  FakePs ps(network, Job(/*workers=*/1));
  Member worker(network, ps);
  ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
  absl::Status version;
  {
    std::jthread waiting([&] { version = worker.exchange->AwaitVersion(1); });
    worker.exchange->Fail(absl::CancelledError("released"));
  }
  EXPECT_EQ(version, absl::CancelledError("released"));
}

}  // namespace
}  // namespace muster::local_sgd_exchange_test
