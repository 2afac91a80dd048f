#include "lib/exchange/ps_exchange.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/codec/codec.h"
#include "lib/exchange/fake_ps.h"
#include "lib/plan/parameter_table.h"
#include "lib/status/status.h"
#include "lib/telemetry/metrics.h"
#include "lib/telemetry/trace.h"
#include "lib/telemetry/trace_file.h"
#include "lib/transport/testing/inprocess_transport.h"

namespace muster::ps_exchange_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Fate = InProcessNetwork::Fate;

// Three layers "a", "b", "c" in a row. Each has one parameter of 512 elements: two chunks of 1 KiB.
v1::Graph ThreeLayers() {
  v1::Graph graph;
  for (const char* name : {"c", "a", "b"}) {  // not in the order in which forward reads them
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
constexpr int kChunksOfShard = 3;      // every second one of six
constexpr int64_t kSteps = 1000;

// Parameter p is chunks 2p and 2p + 1.
absl::Status PushParameter(PsExchange& exchange, int p, int64_t step) {
  absl::Status first = exchange.Push(ChunkId(2 * p), step);
  absl::Status second = exchange.Push(ChunkId(2 * p + 1), step);
  return first.ok() ? second : first;
}

FakePs::Options Job(int workers = 1, int shards = 2) {
  FakePs::Options options{.graph = ThreeLayers(), .workers = workers, .shards = shards};
  options.spec.mutable_data()->set_batch_size(4);
  options.spec.mutable_training()->mutable_optimizer()->mutable_sgd()->set_learning_rate(0.5);
  return options;
}

// A worker's memory and exchange.
struct Member {
  Member(InProcessNetwork& network, const FakePs& ps,
         absl::FunctionRef<void(PsExchange::Options&)> adjust, int rank = 0)
      : exchange_metrics(metrics) {
    for (const v1::Parameter& parameter : ps.plan()->graph().parameters()) {
      parameters.emplace_back(ElementCount(parameter));
      gradients.emplace_back(ElementCount(parameter));
    }
    PsExchange::Options options{.plan = ps.plan(),
                                .rank = Rank(rank),
                                .transport = [&network] { return network.MakeTransport(); },
                                .answer_timeout = absl::Seconds(30),
                                .metrics = &exchange_metrics};
    for (auto& parameter : parameters) options.parameters.push_back(absl::MakeSpan(parameter));
    for (auto& gradient : gradients) options.gradients.push_back(absl::MakeSpan(gradient));
    adjust(options);
    exchange = PsExchange::Create(std::move(options)).value();
  }
  Member(InProcessNetwork& network, const FakePs& ps, int rank = 0)
      : Member(
            network, ps, [](PsExchange::Options&) {}, rank) {}

  Metrics metrics;
  ExchangeMetrics exchange_metrics;
  std::vector<std::vector<float>> parameters, gradients;
  std::unique_ptr<PsExchange> exchange;
};

TEST(PsExchangeTest, FetchesThenTurnsEveryPushIntoTheNextVersion) {
  InProcessNetwork network;
  FakePs ps(network, Job());
  Member worker(network, ps);
  EXPECT_EQ(worker.exchange->version(), -1);
  ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
  ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
  EXPECT_EQ(worker.parameters[kA], ps.parameter(kA));

  const std::vector<float> initial = worker.parameters[kA];
  for (int64_t step = 0; step < 3; ++step) {
    for (int p : {kC, kB, kA}) {
      ASSERT_TRUE(worker.exchange->AwaitParameter(p, step).ok());
      std::ranges::fill(worker.gradients[p], step + 1.0f);
      ASSERT_TRUE(PushParameter(*worker.exchange, p, step).ok());
    }
    ASSERT_TRUE(worker.exchange->AwaitAnswers().ok());
    EXPECT_EQ(worker.exchange->version(), step + 1);
    EXPECT_NEAR(worker.exchange->GradientNorm(step + 1), (step + 1) * std::sqrt(3 * 512.0), 1e-5);
  }
  EXPECT_FLOAT_EQ(worker.parameters[kA][100], initial[100] - 0.5f - 1.0f - 1.5f);
  EXPECT_EQ(worker.parameters[kB], ps.parameter(kB));
}

// A program computes the gradients of this job. "b" is frozen.
FakePs::Options ExternalJob(int workers = 1) {
  FakePs::Options options = Job(workers);
  options.graph.clear_nodes();
  options.spec.mutable_model()->mutable_external()->set_path("model.safetensors");
  options.spec.mutable_data()->mutable_external();
  v1::ParameterGroup* frozen = options.spec.mutable_training()->add_parameter_groups();
  frozen->add_match("b");
  frozen->set_frozen(true);
  return options;
}

// Memory for the values of odd versions.
struct OddValues {
  explicit OddValues(const FakePs& ps) {
    for (const v1::Parameter& parameter : ps.plan()->graph().parameters()) {
      tensors.emplace_back(ElementCount(parameter));
    }
  }
  void AddTo(PsExchange::Options& options) {
    for (auto& tensor : tensors) options.odd_parameters.push_back(absl::MakeSpan(tensor));
  }
  std::vector<std::vector<float>> tensors;
};

TEST(PsExchangeTest, OddVersionsArriveInTheirOwnMemory) {
  for (const bool narrow : {false, true}) {  // on the wire
    InProcessNetwork network;
    FakePs::Options job = ExternalJob();
    if (narrow) {
      for (v1::Parameter& parameter : *job.graph.mutable_parameters()) {
        parameter.clear_shape();
        parameter.add_shape(2);
        parameter.add_shape(256);
      }
      job.spec.mutable_sync()->set_values(v1::VALUES_BF16);
    }
    FakePs ps(network, job);
    OddValues odd(ps);
    Member worker(network, ps, [&](PsExchange::Options& options) {
      odd.AddTo(options);
      options.answer_timeout = absl::InfiniteDuration();
    });
    ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
    ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
    const std::vector<float> initial = worker.parameters[kA];
    const std::vector<float> frozen = worker.parameters[kB];

    const PsExchange::PushTerms terms{.learning_rate = 0.25, .weight = 2};
    for (int64_t step = 0; step < 2; ++step) {
      for (const int p : {kC, kA}) {
        std::ranges::fill(worker.gradients[p], 4.0f);  // 2 times the weight
        for (const int chunk : {2 * p, 2 * p + 1}) {
          ASSERT_TRUE(worker.exchange->Push(ChunkId(chunk), step, terms).ok());
        }
      }
      ASSERT_TRUE(worker.exchange->AwaitVersion(step + 1).ok());
      if (step == 0) {
        EXPECT_EQ(worker.parameters[kA], initial) << "still readable";
      }
      const std::vector<float> now = step == 0 ? odd.tensors[kA] : worker.parameters[kA];
      EXPECT_NEAR(now[100], initial[100] - 0.5f * static_cast<float>(step + 1), 0.02);
    }
    EXPECT_EQ(worker.parameters[kB], frozen);
    EXPECT_EQ(odd.tensors[kB], std::vector<float>(512)) << "frozen: fetched once";
  }
}

TEST(PsExchangeTest, APushCarriesItsTermsAndMayHaveNoGradient) {
  InProcessNetwork network;
  FakePs ps(network, ExternalJob());
  Member worker(network, ps);
  ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
  ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
  const std::vector<float> initial = worker.parameters[kC];
  for (const int p : {kC, kA}) {
    std::ranges::fill(worker.gradients[p], 1.0f);
    for (const int chunk : {2 * p, 2 * p + 1}) {
      ASSERT_TRUE(worker.exchange
                      ->Push(ChunkId(chunk), 0,
                             {.learning_rate = 0.125, .weight = 0.5f, .has_gradient = p == kA})
                      .ok());
    }
  }
  ASSERT_TRUE(worker.exchange->AwaitVersion(1).ok());
  EXPECT_EQ(worker.parameters[kC], initial) << "no worker had a gradient";
  EXPECT_EQ(ps.shard(0).push_bytes() + ps.shard(1).push_bytes(), 512 * 4);

  std::vector<PushedTerms> pushed = ps.shard(0).terms();
  for (const PushedTerms& terms : ps.shard(1).terms()) pushed.push_back(terms);
  ASSERT_EQ(pushed.size(), 4);
  for (const PushedTerms& terms : pushed) {
    EXPECT_EQ(terms.learning_rate, 0.125);
    EXPECT_EQ(terms.weight, 0.5f);
    EXPECT_EQ(terms.has_gradient, ps.plan()->chunks(terms.chunk).parameter() == kA);
  }
}

TEST(PsExchangeTest, ChunksThatTheNextForwardReadsFirstAreSentFirst) {
  InProcessNetwork network;
  FakePs ps(network, Job(/*workers=*/1, /*shards=*/1));
  Member worker(network, ps, [](auto& options) { options.tuning.inflight_bytes_max = 1 << 10; });
  ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
  ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());

  // The first chunk uses up the credit; the others queue behind it.
  ps.shard(0).Stall(true);
  for (int p : {kC, kB, kA}) ASSERT_TRUE(PushParameter(*worker.exchange, p, 0).ok());
  ps.shard(0).Stall(false);
  ASSERT_TRUE(worker.exchange->AwaitVersion(1).ok());

  std::vector<int> order = ps.shard(0).pushed_chunks();
  ASSERT_EQ(order.size(), 6);
  // The first chunk depends on which posts the thread saw first; the rest is sorted by priority.
  order.erase(order.begin());
  std::vector<int> parameters;
  for (int chunk : order) parameters.push_back(ps.plan()->chunks(chunk).parameter());
  EXPECT_TRUE(std::ranges::is_sorted(parameters, {}, [](int p) { return (p + 2) % 3; }))
      << testing::PrintToString(parameters);
}

TEST(PsExchangeTest, NoLinkHasMoreBytesInFlightThanItsCredit) {
  InProcessNetwork network;
  FakePs ps(network, Job(/*workers=*/1, /*shards=*/3));
  constexpr int64_t kCredit = 1 << 10;
  std::array<std::atomic<int64_t>, 3> sent = {};
  std::atomic<int64_t> most = 0;
  network.SetFault([&](const WireHeader& header) {
    if (header.kind != MessageKind::kPush) return Fate::kDeliver;
    const int shard = ps.plan()->chunks(static_cast<int>(header.chunk)).shard();
    sent[shard] += static_cast<int64_t>(header.length);
    most = std::max<int64_t>(most, sent[shard] - (ps.shard(shard).pushes_placed() << 10));
    return Fate::kDeliver;
  });
  Member worker(network, ps, [](auto& options) { options.tuning.inflight_bytes_max = kCredit; });
  ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
  for (int64_t step = 0; step < 20; ++step) {
    ASSERT_TRUE(worker.exchange->AwaitVersion(step).ok());
    for (int p : {kC, kB, kA}) ASSERT_TRUE(PushParameter(*worker.exchange, p, step).ok());
  }
  ASSERT_TRUE(worker.exchange->AwaitVersion(20).ok());
  EXPECT_EQ(sent[0] + sent[1] + sent[2], 20 * 6 << 10);
  EXPECT_LE(most, kCredit);
  network.SetFault(nullptr);
}

TEST(PsExchangeTest, OtherLinksDoNotRunFarAheadOfAStalledOne) {
  InProcessNetwork network;
  FakePs ps(network, Job(/*workers=*/1, /*shards=*/2));
  Member worker(network, ps, [](auto& options) { options.tuning.inflight_bytes_max = 3 << 10; });
  ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
  ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
  ps.shard(0).Stall(true);
  for (int p : {kC, kB, kA}) ASSERT_TRUE(PushParameter(*worker.exchange, p, 0).ok());
  ps.shard(1).AwaitPushes(1);
  EXPECT_LT(ps.shard(1).pushes_placed(), kChunksOfShard) << "the window holds three of six chunks";
  ps.shard(0).Stall(false);
  EXPECT_TRUE(worker.exchange->AwaitVersion(1).ok());
}

TEST(PsExchangeTest, WithoutPriorityChunksGoInTheOrderInWhichTheyBecameFinal) {
  InProcessNetwork network;
  FakePs ps(network, Job(/*workers=*/1, /*shards=*/1));
  Member worker(network, ps, [](auto& options) {
    options.tuning.inflight_bytes_max = 1;
    options.tuning.priority = false;
  });
  ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
  ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
  ps.shard(0).Stall(true);
  for (int p : {kC, kB, kA}) ASSERT_TRUE(PushParameter(*worker.exchange, p, 0).ok());
  ps.shard(0).Stall(false);
  ASSERT_TRUE(worker.exchange->AwaitVersion(1).ok());
  EXPECT_THAT(ps.shard(0).pushed_chunks(),
              ElementsAre(2 * kC, 2 * kC + 1, 2 * kB, 2 * kB + 1, 2 * kA, 2 * kA + 1));
}

TEST(PsExchangeTest, WithoutOverlapNoParameterIsHereBeforeAllAre) {
  for (const bool overlap : {true, false}) {
    InProcessNetwork network;
    FakePs ps(network, Job(/*workers=*/1, /*shards=*/1));
    Member worker(network, ps, [&](auto& options) { options.tuning.overlap = overlap; });
    ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
    ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
    ASSERT_TRUE(PushParameter(*worker.exchange, kA, 0).ok());
    ASSERT_TRUE(worker.exchange->AwaitAnswers().ok());
    EXPECT_EQ(worker.exchange->HasParameter(kA, 1), overlap);
    for (int p : {kB, kC}) ASSERT_TRUE(PushParameter(*worker.exchange, p, 0).ok());
    EXPECT_TRUE(worker.exchange->AwaitParameter(kA, 1).ok());
    EXPECT_TRUE(overlap || worker.exchange->version() == 1);
  }
}

TEST(PsExchangeTest, CreditSmallerThanAChunkSendsOneAtATime) {
  InProcessNetwork network;
  FakePs ps(network, Job());
  Member worker(network, ps, [](auto& options) { options.tuning.inflight_bytes_max = 1; });
  ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
  ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
  for (int p : {kC, kB, kA}) ASSERT_TRUE(PushParameter(*worker.exchange, p, 0).ok());
  EXPECT_TRUE(worker.exchange->AwaitVersion(1).ok());
}

TEST(PsExchangeTest, RepeatedAnswersNeverDecreaseAVersion) {
  InProcessNetwork network;
  FakePs ps(network, Job());
  Member worker(network, ps);
  ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
  ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
  network.SetFault([](const WireHeader& header) {
    return header.kind == MessageKind::kParams ? Fate::kDuplicate : Fate::kDeliver;
  });
  for (int64_t step = 0; step < 5; ++step) {
    for (int p : {kC, kB, kA}) {
      std::ranges::fill(worker.gradients[p], 1.0f);
      ASSERT_TRUE(PushParameter(*worker.exchange, p, step).ok());
    }
    ASSERT_TRUE(worker.exchange->AwaitVersion(step + 1).ok());
    EXPECT_EQ(worker.exchange->version(), step + 1);
    for (int p : {kC, kB, kA}) EXPECT_EQ(worker.parameters[p], ps.parameter(p));
  }
}

TEST(PsExchangeTest, TwoWorkersWithLittleCreditDoNotWaitForEachOther) {
  InProcessNetwork network;
  FakePs ps(network, Job(/*workers=*/2));
  Member first(
      network, ps, [](auto& options) { options.tuning.inflight_bytes_max = 1; }, 0);
  Member second(
      network, ps, [](auto& options) { options.tuning.inflight_bytes_max = 1; }, 1);
  auto train = [](PsExchange& exchange, std::vector<int> order) {
    ASSERT_TRUE(exchange.Connect(kSteps, {}).ok());
    for (int64_t step = 0; step < 50; ++step) {
      ASSERT_TRUE(exchange.AwaitVersion(step).ok());
      for (int p : order) ASSERT_TRUE(PushParameter(exchange, p, step).ok());
    }
    ASSERT_TRUE(exchange.AwaitVersion(50).ok());
  };
  std::jthread one([&] { train(*first.exchange, {kC, kB, kA}); });
  std::jthread two([&] { train(*second.exchange, {kA, kB, kC}); });
}

TEST(PsExchangeTest, LostShardIsNamedWithChunkMemberAndStep) {
  InProcessNetwork network;
  FakePs ps(network, Job());
  Member worker(network, ps);
  ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
  ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
  for (int p : {kC, kB, kA}) ASSERT_TRUE(PushParameter(*worker.exchange, p, 0).ok());
  ASSERT_TRUE(worker.exchange->AwaitVersion(1).ok());

  ps.shard(1).Stall(true);
  for (int p : {kC, kB, kA}) ASSERT_TRUE(PushParameter(*worker.exchange, p, 1).ok());
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

TEST(PsExchangeTest, UnansweredHelloIsNamedAndOtherShardsAreStillGreeted) {
  InProcessNetwork network;
  FakePs ps(network, Job(/*workers=*/1, /*shards=*/3));
  std::array<std::atomic<int>, 3> greetings = {};
  network.SetFault([&](const WireHeader& header) {
    if (header.kind != MessageKind::kHello) return Fate::kDeliver;
    ++greetings[header.chunk];
    return header.chunk == 1 ? Fate::kDrop : Fate::kDeliver;
  });
  Member worker(network, ps,
                [](auto& options) { options.hello_timeout = absl::Milliseconds(200); });
  const absl::Status status = worker.exchange->Connect(kSteps, {});
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("shard 1 of ps-1 has not answered HELLO"));
  EXPECT_EQ(worker.exchange->culprit(), "ps-1");
  EXPECT_EQ(greetings[0], 2) << "HELLO and its answer";
  EXPECT_EQ(greetings[1], 1);
  EXPECT_EQ(greetings[2], 2);
}

TEST(PsExchangeTest, RefusalIsNamed) {
  InProcessNetwork network;
  FakePs ps(network, Job());
  ps.shard(0).RefuseChunk(ps.plan()->chunks(0).shard() == 0 ? 0 : 1, RefusalReason::kWrongStep);
  Member worker(network, ps);
  ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
  ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
  for (int p : {kC, kB, kA}) PushParameter(*worker.exchange, p, 0).IgnoreError();
  const absl::Status status = worker.exchange->AwaitVersion(1);
  EXPECT_EQ(ReasonOf(status), "PS_REFUSED") << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("of step 0: WRONG_STEP; run the same version on every member"));
  EXPECT_EQ(worker.exchange->culprit(), "ps-0");
}

TEST(PsExchangeTest, DifferentLearningRatesAreNoMembersFault) {
  InProcessNetwork network;
  FakePs ps(network, Job());
  ps.shard(0).RefuseChunk(ps.plan()->chunks(0).shard() == 0 ? 0 : 1,
                          RefusalReason::kOtherLearningRate);
  Member worker(network, ps);
  ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
  ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
  for (int p : {kC, kB, kA}) PushParameter(*worker.exchange, p, 0).IgnoreError();
  const absl::Status status = worker.exchange->AwaitVersion(1);
  EXPECT_EQ(ReasonOf(status), "OTHER_LEARNING_RATE") << status;
  EXPECT_EQ(worker.exchange->culprit(), "");
}

TEST(PsExchangeTest, ShardThatImpersonatesAnotherFailsTheJob) {
  enum class Lie { kHello, kValue };
  for (const Lie lie : {Lie::kHello, Lie::kValue}) {
    InProcessNetwork network;
    FakePs ps(network, Job());
    Member worker(network, ps);
    absl::Status status;
    if (lie == Lie::kHello) {
      ps.shard(0).Claim(/*shard=*/1, /*chunk=*/-1);
      status = worker.exchange->Connect(kSteps, {});
    } else {
      ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
      ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
      ASSERT_EQ(ps.plan()->chunks(2 * kA + 1).shard(), 1);
      ps.shard(0).Claim(/*shard=*/-1, /*chunk=*/2 * kA + 1);
      const std::vector<float> before = worker.parameters[kA];
      // The answer to the first chunk may have failed the job before the second is pushed.
      PushParameter(*worker.exchange, kA, 0).IgnoreError();
      status = worker.exchange->AwaitVersion(1);
      EXPECT_EQ(worker.parameters[kA], before) << "its payload was not placed";
    }
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_EQ(ReasonOf(status), "PS_PROTOCOL");
    EXPECT_EQ(status.message(), "shard 0 of ps-0 speaks for shard 1 of ps-1 at step 0");
    EXPECT_EQ(worker.exchange->culprit(), "ps-0");
  }
}

TEST(PsExchangeTest, LostValueIsFetchedAgain) {
  std::vector<std::vector<float>> with_losses, without;
  for (const bool lossy : {false, true}) {
    InProcessNetwork network;
    FakePs ps(network, Job());
    std::atomic<int> lost = 0, fetches = 0;
    network.SetFault([&](const WireHeader& header) {
      if (header.kind == MessageKind::kFetch) ++fetches;
      if (header.kind != MessageKind::kParams || !lossy) return Fate::kDeliver;
      return ++lost % 3 == 0 ? Fate::kBreak : Fate::kDeliver;
    });
    Member worker(network, ps);
    ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
    for (int64_t step = 0; step < 5; ++step) {
      ASSERT_TRUE(worker.exchange->AwaitVersion(step).ok());
      for (int p : {kC, kB, kA}) {
        for (int i = 0; i < 512; ++i) worker.gradients[p][i] = std::sin(0.1 * i + step);
        ASSERT_TRUE(PushParameter(*worker.exchange, p, step).ok());
      }
    }
    ASSERT_TRUE(worker.exchange->AwaitVersion(5).ok());
    EXPECT_EQ(fetches, 6 + lost / 3);
    (lossy ? with_losses : without) = worker.parameters;
    network.SetFault(nullptr);
  }
  EXPECT_EQ(with_losses, without);
}

TEST(PsExchangeTest, TimeoutOfAWaitNamesTheMissingChunk) {
  InProcessNetwork network;
  FakePs ps(network, Job(/*workers=*/2));
  Member worker(network, ps,
                [](auto& options) { options.answer_timeout = absl::Milliseconds(200); });
  ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
  ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
  for (int p : {kC, kB, kA}) ASSERT_TRUE(PushParameter(*worker.exchange, p, 0).ok());
  const absl::Status status = worker.exchange->AwaitParameter(kB, 1);  // rank 1 never pushes
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("chunk "));
  EXPECT_THAT(std::string(status.message()), HasSubstr(" of ps-"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("step 1"));
}

TEST(PsExchangeTest, FrozenParameterIsNeverReportedAsMissing) {
  InProcessNetwork network;
  FakePs::Options job = Job(/*workers=*/2);
  v1::ParameterGroup& group = *job.spec.mutable_training()->add_parameter_groups();
  group.add_match("c");  // the plan's first parameter
  group.set_frozen(true);
  FakePs ps(network, job);
  Member worker(network, ps,
                [](auto& options) { options.answer_timeout = absl::Milliseconds(200); });
  ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
  ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
  for (int p : {kC, kB, kA}) ASSERT_TRUE(PushParameter(*worker.exchange, p, 0).ok());
  const absl::Status status = worker.exchange->AwaitVersion(1);  // rank 1 never pushes
  EXPECT_EQ(ReasonOf(status), "STEP_TIMEOUT") << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("chunk 2 of parameter 'a'"));
}

TEST(PsExchangeTest, MissingAnswerIsNamedWithStepChunkAndShard) {
  InProcessNetwork network;
  FakePs ps(network, Job());
  Member worker(network, ps,
                [](auto& options) { options.answer_timeout = absl::Milliseconds(200); });
  ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
  ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
  network.SetFault([](const WireHeader& header) {
    const bool lost = header.kind == MessageKind::kParams && header.chunk == 2 * kA + 1;
    return lost ? Fate::kDrop : Fate::kDeliver;
  });
  ASSERT_TRUE(PushParameter(*worker.exchange, kA, 0).ok());  // the other chunks are never pushed
  const absl::Status status = worker.exchange->AwaitAnswers();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(ReasonOf(status), "STEP_TIMEOUT");
  EXPECT_EQ(status.message(),
            "step 0: chunk 3 of parameter 'a' has not come from shard 1 of ps-1 for 200ms");
}

TEST(PsExchangeTest, InterruptEndsWaitsForOthersButNotForAnswers) {
  InProcessNetwork network;
  FakePs ps(network, Job());
  Member worker(network, ps);
  ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
  ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
  network.SetFault([](const WireHeader& header) {
    return header.kind == MessageKind::kParams ? Fate::kHold : Fate::kDeliver;
  });
  for (int p : {kC, kB, kA}) ASSERT_TRUE(PushParameter(*worker.exchange, p, 0).ok());
  absl::Status interrupted, answered;
  {
    std::jthread forward([&] { interrupted = worker.exchange->AwaitParameter(kA, 1); });
    std::jthread paused([&] { answered = worker.exchange->AwaitAnswers(); });
    worker.exchange->Interrupt();
    forward.join();
    for (int s = 0; s < 2; ++s) ps.shard(s).AwaitPushes(kChunksOfShard);
    network.SetFault(nullptr);
    // Shards hold a push for a moment before they answer it, so the last answers may not be held
    // yet.
    while (worker.exchange->version() < 1) {
      network.ReleaseHeld();
      std::this_thread::yield();
    }
  }
  EXPECT_TRUE(absl::IsAborted(interrupted)) << interrupted;
  EXPECT_TRUE(answered.ok()) << answered;
  EXPECT_TRUE(worker.exchange->AwaitParameter(kA, 1).ok()) << "nothing to wait for";
}

TEST(PsExchangeTest, FailureEndsConnectAndEveryWait) {
  InProcessNetwork network;
  FakePs ps(network, Job());
  network.SetFault([](const WireHeader&) { return Fate::kDrop; });
  Member worker(network, ps);
  absl::Status connected;
  std::jthread job([&] { connected = worker.exchange->Connect(kSteps, {}); });
  worker.exchange->Fail(absl::CancelledError("released"));
  job.join();
  EXPECT_EQ(connected, absl::CancelledError("released"));
  EXPECT_EQ(worker.exchange->AwaitAnswers(), absl::CancelledError("released"));
  EXPECT_EQ(worker.exchange->culprit(), "");
}

// The links of the last generation would otherwise be shown beside those of the next one.
TEST(PsExchangeTest, NoLinkIsShownAfterAFailureOrTheEnd) {
  InProcessNetwork network;
  FakePs ps(network, Job());
  std::atomic<int> held_hellos = 0, held_values = 0;
  int hellos_of_second = 0;
  network.SetFault([&](const WireHeader& header) {
    const bool answer =
        header.kind == MessageKind::kHello && header.chunk == 1 && ++hellos_of_second == 2;
    held_hellos += answer;
    held_values += header.kind == MessageKind::kParams;
    return answer || header.kind == MessageKind::kParams ? Fate::kHold : Fate::kDeliver;
  });
  Member worker(network, ps);
  ps.shard(0).Stall(true);
  {
    std::jthread job([&] { worker.exchange->Connect(kSteps, {}).IgnoreError(); });
    while (held_hellos == 0) std::this_thread::yield();
    ps.shard(0).Stall(false);
    while (held_values < kChunksOfShard) std::this_thread::yield();
    worker.exchange->Fail(absl::CancelledError("released"));
  }
  network.ReleaseHeld();  // the greeting of shard 1, and then values
  while (worker.exchange_metrics.params_bytes.Value() == 0) std::this_thread::yield();

  const std::string shown = worker.metrics.Render();
  EXPECT_THAT(shown, HasSubstr("peer=\"ps-0/0\",transport=\"inprocess\""));
  EXPECT_THAT(shown, Not(HasSubstr("peer=\"ps-1/0\",transport=\"inprocess\"")));
  network.SetFault(nullptr);
  worker.exchange.reset();
  EXPECT_THAT(worker.metrics.Render(), Not(HasSubstr("muster_transport_info{")));
}

TEST(PsExchangeTest, RefusesAPlanWithChunksThatDoNotCoverItsParameters) {
  InProcessNetwork network;
  FakePs ps(network, Job());
  auto plan = std::make_shared<v1::JobPlan>(*ps.plan());
  plan->mutable_chunks(1)->set_elements(1);
  std::vector<float> memory(512);
  PsExchange::Options options{.plan = plan};
  EXPECT_TRUE(absl::IsInvalidArgument(PsExchange::Create(options).status()));
  plan->mutable_chunks(1)->set_elements(256);
  plan->mutable_chunks(1)->set_shard(9);
  EXPECT_TRUE(absl::IsInvalidArgument(PsExchange::Create(options).status()));
}

TEST(PsExchangeTest, FrozenParametersAreFetchedAndNeverPushed) {
  InProcessNetwork network;
  FakePs::Options job = Job();
  v1::ParameterGroup& group = *job.spec.mutable_training()->add_parameter_groups();
  group.add_match("b");
  group.set_frozen(true);
  FakePs ps(network, job);
  Member worker(network, ps);
  ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
  ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
  const std::vector<float> initial = worker.parameters[kB];
  EXPECT_EQ(initial, ps.parameter(kB));

  for (int64_t step = 0; step < 3; ++step) {
    for (int p : {kC, kB, kA}) {
      EXPECT_TRUE(worker.exchange->HasParameter(kB, step));
      std::ranges::fill(worker.gradients[p], 1.0f);
      ASSERT_TRUE(PushParameter(*worker.exchange, p, step).ok());
    }
    ASSERT_TRUE(worker.exchange->AwaitVersion(step + 1).ok());
  }
  EXPECT_EQ(worker.parameters[kB], initial);
  EXPECT_EQ(ps.shard(0).push_bytes() + ps.shard(1).push_bytes(), 3 * 4 << 10);
}

TEST(PsExchangeTest, GradientsAndValuesArePackedAndCountedToTheByte) {
  struct Case {
    v1::CompressionKind kind;
    v1::WireValues values;
    double tolerance;  // of a value after three steps with gradients below 1
  };
  for (const Case& test : {Case{v1::COMPRESSION_NONE, v1::VALUES_BF16, 0.05},
                           Case{v1::COMPRESSION_FP16, v1::VALUES_FP32, 1e-3},
                           Case{v1::COMPRESSION_BF16, v1::VALUES_FP16, 0.02},
                           Case{v1::COMPRESSION_INT8, v1::VALUES_FP32, 0.02}}) {
    InProcessNetwork network;
    FakePs::Options job = Job();
    for (v1::Parameter& parameter : *job.graph.mutable_parameters()) {
      parameter.clear_shape();
      for (const int size : {16, 32}) parameter.add_shape(size);
    }
    job.spec.mutable_sync()->mutable_compression()->set_kind(test.kind);
    job.spec.mutable_sync()->set_values(test.values);
    FakePs ps(network, job);
    Member worker(network, ps);
    ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
    ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
    std::vector<float> expected = ps.parameter(kA);
    for (int64_t step = 0; step < 3; ++step) {
      for (int p : {kC, kB, kA}) {
        for (int i = 0; i < 512; ++i) worker.gradients[p][i] = std::sin(0.1 * i + step);
        ASSERT_TRUE(PushParameter(*worker.exchange, p, step).ok());
      }
      for (int i = 0; i < 512; ++i) expected[i] -= 0.5f * worker.gradients[kA][i];
      ASSERT_TRUE(worker.exchange->AwaitVersion(step + 1).ok());
    }
    for (int i = 0; i < 512; ++i) {
      ASSERT_NEAR(worker.parameters[kA][i], expected[i], test.tolerance)
          << v1::CompressionKind_Name(test.kind) << " " << i;
    }
    int64_t push_bytes = 0, params_bytes = 0;
    for (int c = 0; c < ps.plan()->chunks_size(); ++c) {
      push_bytes += PushFormat(*ps.plan(), ChunkId(c)).bytes;
      params_bytes += ValuesFormat(*ps.plan(), ChunkId(c)).bytes;
    }
    EXPECT_LT(push_bytes + params_bytes, 2 * 6 << 10) << "at least one direction is packed";
    EXPECT_EQ(worker.exchange_metrics.push_bytes.Value(), 3 * push_bytes);
    EXPECT_EQ(worker.exchange_metrics.params_bytes.Value(), 4 * params_bytes) << "with the fetch";
    EXPECT_EQ(ps.shard(0).push_bytes() + ps.shard(1).push_bytes(), 3 * push_bytes);
    double of_links = 0;
    for (const char* peer : {"ps-0/0", "ps-1/0"}) {
      of_links += worker.exchange_metrics.Link(peer).sent_bytes.Value();
      EXPECT_EQ(worker.exchange_metrics.Link(peer).inflight_bytes.Value(), 0);
    }
    EXPECT_EQ(of_links, 3 * push_bytes);
  }
}

// Returns the f32 values of bf16 memory: the lower half of each is zero.
std::vector<float> Widened(const std::vector<float>& memory) {
  std::vector<float> values(memory.size());
  const auto* narrow = reinterpret_cast<const std::byte*>(memory.data());
  for (size_t i = 0; i < values.size(); ++i) {
    std::memcpy(reinterpret_cast<std::byte*>(&values[i]) + 2, narrow + 2 * i, 2);
  }
  return values;
}

TEST(PsExchangeTest, ValuesStayNarrowIfRequested) {
  InProcessNetwork network;
  FakePs::Options job = Job();
  for (v1::Parameter& parameter : *job.graph.mutable_parameters()) {
    parameter.clear_shape();
    for (const int size : {16, 32}) parameter.add_shape(size);
  }
  job.spec.mutable_sync()->set_values(v1::VALUES_BF16);
  FakePs ps(network, job);
  Member wide(network, ps);
  Member narrow(network, ps, [](PsExchange::Options& options) {
    options.narrow_parameters.resize(options.parameters.size());
    options.narrow_parameters[kA] = true;
  });
  for (Member* worker : {&wide, &narrow}) {
    ASSERT_TRUE(worker->exchange->Connect(kSteps, {}).ok());
    ASSERT_TRUE(worker->exchange->AwaitVersion(0).ok());
  }
  EXPECT_EQ(Widened(narrow.parameters[kA]), wide.parameters[kA]);
  EXPECT_EQ(narrow.parameters[kB], wide.parameters[kB])
      << "this parameter was not requested narrow";
}

TEST(PsExchangeTest, EachPullIsMeasuredByItsTransport) {
  InProcessNetwork network;
  FakePs ps(network, Job());
  Member worker(network, ps);
  ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
  ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
  for (int p : {kC, kB, kA}) ASSERT_TRUE(PushParameter(*worker.exchange, p, 0).ok());
  ASSERT_TRUE(worker.exchange->AwaitVersion(1).ok());
  EXPECT_THAT(worker.metrics.Render(),
              HasSubstr("muster_worker_pull_duration_seconds_count{transport=\"inprocess\"} 12\n"))
      << "six chunks, once fetched and once pushed";
}

TEST(PsExchangeTest, TimeInWhichChunksWaitForCreditIsCounted) {
  InProcessNetwork network;
  FakePs ps(network, Job());
  Member worker(network, ps, [](auto& options) { options.tuning.inflight_bytes_max = 1; });
  ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
  ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
  EXPECT_EQ(worker.exchange_metrics.queue_full.Value(), 0);
  int64_t step = 0;  // repeats until chunks become final while others are under way
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  for (; worker.exchange_metrics.queue_full.Value() == 0 && step < kSteps; ++step) {
    ASSERT_LT(absl::Now(), deadline);
    for (int p : {kC, kB, kA}) ASSERT_TRUE(PushParameter(*worker.exchange, p, step).ok());
    ASSERT_TRUE(worker.exchange->AwaitVersion(step + 1).ok());
  }
  EXPECT_GT(worker.exchange_metrics.queue_full.Value(), 0);
  EXPECT_LT(worker.exchange_metrics.queue_full.Value(), 60);
}

TEST(PsExchangeTest, ChunksThatWaitAtTheEndAreRemovedFromTheMetrics) {
  InProcessNetwork network;
  FakePs ps(network, Job());
  Member worker(network, ps, [](auto& options) { options.tuning.inflight_bytes_max = 1; });
  ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
  ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
  ps.shard(0).Stall(true);
  for (int p : {kC, kB, kA}) ASSERT_TRUE(PushParameter(*worker.exchange, p, 0).ok());
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (worker.exchange_metrics.queued_bytes.Value() == 0) ASSERT_LT(absl::Now(), deadline);
  worker.exchange.reset();
  EXPECT_EQ(worker.exchange_metrics.queued_bytes.Value(), 0);
  EXPECT_EQ(worker.exchange_metrics.queued_chunks.Value(), 0);
}

FakePs::Options JobWithAReplica() {
  FakePs::Options job = Job(/*workers=*/1, /*shards=*/2);
  job.spec.mutable_sync()->set_backup_workers(1);
  return job;
}

TEST(PsExchangeTest, OvertakenWorkerCatchesUpToOneVersion) {
  InProcessNetwork network;
  FakePs ps(network, JobWithAReplica());
  Member worker(network, ps);
  ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
  ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
  EXPECT_FALSE(worker.exchange->overtaken());

  ASSERT_TRUE(PushParameter(*worker.exchange, kC, 0).ok());  // in time
  ASSERT_TRUE(worker.exchange->AwaitAnswers().ok());
  for (int s = 0; s < 2; ++s) ps.shard(s).Overtake(4);
  for (int p : {kB, kA}) ASSERT_TRUE(PushParameter(*worker.exchange, p, 0).ok());  // too late
  const absl::Status forward = worker.exchange->AwaitParameter(kA, 1);
  EXPECT_TRUE(absl::IsAborted(forward)) << forward;
  EXPECT_TRUE(worker.exchange->overtaken());

  const absl::StatusOr<int64_t> version = worker.exchange->CatchUp();
  ASSERT_TRUE(version.ok()) << version.status();
  EXPECT_EQ(*version, 4) << "parameter c is fetched too, although its push was in time";
  EXPECT_EQ(ps.shard(0).late_pushes() + ps.shard(1).late_pushes(), 4);
  EXPECT_FALSE(worker.exchange->overtaken());
  EXPECT_EQ(worker.exchange->version(), 4);
  for (int p : {kC, kB, kA}) {
    EXPECT_TRUE(worker.exchange->HasParameter(p, 4));
    EXPECT_EQ(worker.parameters[p], ps.parameter(p));
  }
}

TEST(PsExchangeTest, TimeoutOfCatchingUpNamesTheMissingChunk) {
  InProcessNetwork network;
  FakePs ps(network, JobWithAReplica());
  Member worker(network, ps,
                [](auto& options) { options.answer_timeout = absl::Milliseconds(200); });
  ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
  ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
  ASSERT_TRUE(PushParameter(*worker.exchange, kC, 0).ok());  // in time
  ASSERT_TRUE(worker.exchange->AwaitAnswers().ok());
  for (int s = 0; s < 2; ++s) ps.shard(s).Overtake(4);
  for (int p : {kB, kA}) ASSERT_TRUE(PushParameter(*worker.exchange, p, 0).ok());  // too late
  network.SetFault([](const WireHeader& header) {
    const bool lost = header.kind == MessageKind::kFetch && header.chunk == 2 * kC;
    return lost ? Fate::kDrop : Fate::kDeliver;
  });
  const absl::Status status = worker.exchange->CatchUp().status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(ReasonOf(status), "STEP_TIMEOUT");
  EXPECT_EQ(status.message(),
            "step 0: chunk 0 of parameter 'c' has not come from shard 0 of ps-0 for 200ms");
}

TEST(PsExchangeTest, WorkerTakesPartAgainAfterCatchingUp) {
  InProcessNetwork network;
  FakePs ps(network, JobWithAReplica());
  Member worker(network, ps);
  ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
  int64_t step = 0;
  for (int round = 0; round < 20; ++round) {
    ASSERT_TRUE(worker.exchange->AwaitVersion(step).ok());
    for (int p : {kC, kB, kA}) EXPECT_EQ(worker.parameters[p], ps.parameter(p)) << round;
    if (round % 3 == 2) {
      for (int s = 0; s < 2; ++s) ps.shard(s).Overtake(step + 1 + round % 4);
    }
    for (int p : {kC, kB, kA}) ASSERT_TRUE(PushParameter(*worker.exchange, p, step).ok());
    const absl::Status status = worker.exchange->AwaitVersion(step + 1);
    if (round % 3 != 2) {
      ASSERT_TRUE(status.ok()) << status;
      ++step;
    } else if (round % 4 == 0) {  // one step: only this worker's gradient was dropped
      ASSERT_TRUE(status.ok()) << status;
      ++step;
    } else {
      ASSERT_TRUE(absl::IsAborted(status)) << status;
      step = worker.exchange->CatchUp().value();
    }
  }
  EXPECT_EQ(worker.exchange->version(), step);
}

TEST(PsExchangeTest, LateWorkerFetchesTheCurrentVersion) {
  InProcessNetwork network;
  FakePs ps(network, JobWithAReplica());
  for (int s = 0; s < 2; ++s) ps.shard(s).Overtake(5);
  Member worker(network, ps);
  ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
  EXPECT_TRUE(absl::IsAborted(worker.exchange->AwaitParameter(kA, 0)));
  EXPECT_EQ(worker.exchange->CatchUp().value(), 5);
  EXPECT_EQ(worker.parameters[kA], ps.parameter(kA));
}

TEST(PsExchangeTest, WithStalenessEachWorkerHasItsOwnPace) {
  InProcessNetwork network;
  FakePs::Options job = Job(/*workers=*/2);
  job.spec.mutable_sync()->set_mode(v1::ASP);
  FakePs ps(network, job);
  Member fast(network, ps, 0), slow(network, ps, 1);
  ASSERT_TRUE(fast.exchange->Connect(kSteps, {}).ok());
  ASSERT_TRUE(slow.exchange->Connect(kSteps, {}).ok());
  ASSERT_TRUE(slow.exchange->AwaitVersion(0).ok());
  for (int64_t step = 0; step < 10; ++step) {
    ASSERT_TRUE(fast.exchange->AwaitVersion(step).ok());
    for (int p : {kC, kB, kA}) ASSERT_TRUE(PushParameter(*fast.exchange, p, step).ok());
  }
  ASSERT_TRUE(fast.exchange->AwaitVersion(10).ok());
  for (int p : {kC, kB, kA}) ASSERT_TRUE(PushParameter(*slow.exchange, p, 0).ok());
  EXPECT_TRUE(slow.exchange->AwaitVersion(1).ok());
  EXPECT_EQ(slow.exchange->version(), 1);
}

TEST(PsExchangeTest, OnlyValuesOfLargeModelsBypassTheCaches) {
  const int64_t least = PayloadPlace::kUncachedBytesMin / static_cast<int64_t>(sizeof(float));
  for (const int64_t elements : {least - 1, least}) {
    FakePs::Options job = Job();
    job.chunk_bytes = 4 << 20;
    job.graph.mutable_parameters(kC)->set_shape(0, elements - 2 * 512);
    InProcessNetwork network;
    FakePs ps(network, job);
    Member worker(network, ps);
    ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
    ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
    const int64_t chunks = ps.plan()->chunks_size();
    EXPECT_EQ(network.placed_past_caches(), elements < least ? 0 : chunks) << elements;
  }
}

TEST(PsExchangeTest, TraceShowsEveryChunk) {
  InProcessNetwork network;
  FakePs ps(network, Job());
  const std::string path = testing::TempDir() + "/ps_exchange_trace.json";
  Trace trace;
  const auto written = TraceFile::Create(path, &trace).value();
  {
    Member worker(network, ps, [&](auto& options) { options.tuning.trace = &trace; });
    ASSERT_TRUE(worker.exchange->Connect(kSteps, {}).ok());
    ASSERT_TRUE(worker.exchange->AwaitVersion(0).ok());
    for (int p : {kC, kB, kA}) ASSERT_TRUE(PushParameter(*worker.exchange, p, 0).ok());
    ASSERT_TRUE(worker.exchange->AwaitVersion(1).ok());
  }
  ASSERT_TRUE(written->Write().ok());
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  for (const char* what : {"\"ph\":\"b\"", "\"queued\"", "\"sent\"", "\"ph\":\"e\""}) {
    int count = 0;
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1))
      ++count;
    EXPECT_EQ(count, 6) << what;
  }
}

}  // namespace
}  // namespace muster::ps_exchange_test
