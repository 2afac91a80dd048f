#include "lib/exchange/ring_exchange.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/exchange/worker_shard.h"
#include "lib/shard/chunks/memory_budget.h"
#include "lib/shard/chunks/plan_credentials.h"
#include "lib/shard/testing/fake_member_service.h"
#include "lib/shard/testing/test_plan.h"
#include "lib/status/status.h"
#include "lib/telemetry/metrics.h"
#include "lib/telemetry/trace.h"
#include "lib/telemetry/trace_file.h"
#include "lib/transport/session/session.h"
#include "lib/transport/testing/inprocess_transport.h"
#include "lib/transport/testing/postbox.h"

namespace muster::ring_exchange_test {
namespace {

using ::testing::HasSubstr;
using Fate = InProcessNetwork::Fate;
using Floats = std::vector<float>;

constexpr int64_t kSteps = 1000;

// Has 16 chunks of 1 KiB and a few smaller ones.
v1::JobPlan RingPlan(int workers, TestPlanOptions options = {.parameters = {4096, 700, 3}}) {
  options.workers = workers;
  options.shards = workers;
  options.sync = SyncOf(v1::ALLREDUCE);
  return MakeTestPlan(options);
}

// The gradient of every element; the same in every run.
float GradientAt(int rank, int64_t step, int parameter, int64_t i) {
  const auto seed = static_cast<uint64_t>(rank + 7 * step + 31 * parameter + 101 * i);
  return static_cast<float>((seed * 0x9e3779b97f4a7c15 >> 40) % 2001) / 1000.0f - 1.0f;
}

// A worker's memory, shard and exchange.
struct Member {
  Member(std::shared_ptr<const v1::JobPlan> plan, int rank, InProcessNetwork* network,
         CheckpointClient* checkpoints = nullptr) {
    for (const v1::Parameter& parameter : plan->graph().parameters()) {
      parameters.emplace_back(parameter.shape(0));
      gradients.emplace_back(parameter.shape(0));
    }
    auto made = WorkerShard::Create(
        {.plan = plan, .rank = Rank(rank), .budget = &budget, .checkpoints = checkpoints}, {});
    EXPECT_TRUE(made.ok()) << made.status();
    shard = *std::move(made);
    options = {.plan = plan,
               .rank = Rank(rank),
               .transport = [network]() -> absl::StatusOr<std::unique_ptr<Transport>> {
                 return network->MakeTransport();
               },
               .shard = shard.get(),
               .metrics = &exchange_metrics};
    for (Floats& values : parameters) options.parameters.push_back(absl::MakeSpan(values));
    for (Floats& values : gradients) options.gradients.push_back(absl::MakeSpan(values));
  }

  void Open() {
    auto opened = RingExchange::Create(options);
    ASSERT_TRUE(opened.ok()) << opened.status();
    exchange = *std::move(opened);
  }

  void FillGradients(int64_t step) {
    for (size_t p = 0; p < gradients.size(); ++p) {
      for (size_t i = 0; i < gradients[p].size(); ++i) {
        gradients[p][i] = GradientAt(ToInt(options.rank), step, static_cast<int>(p), i);
      }
    }
  }

  absl::Status PushAll(int64_t step) {
    for (int c = 0; c < options.plan->chunks_size(); ++c) {
      if (absl::Status pushed = exchange->Push(ChunkId(c), step); !pushed.ok()) return pushed;
    }
    return absl::OkStatus();
  }

  double BytesOut() {
    return exchange_metrics
        .Link(options.plan->workers((ToInt(options.rank) + 1) % Ranks()).member())
        .sent_bytes.Value();
  }
  int Ranks() const { return options.plan->workers_size(); }

  MemoryBudget budget{int64_t{1} << 30};
  Metrics metrics;
  ExchangeMetrics exchange_metrics{metrics};
  std::vector<Floats> parameters, gradients;
  std::unique_ptr<WorkerShard> shard;
  RingExchange::Options options;
  std::unique_ptr<RingExchange> exchange;
};

// All workers of a job.
struct Ring {
  explicit Ring(const v1::JobPlan& plan, CheckpointClient* checkpoints = nullptr)
      : plan(std::make_shared<const v1::JobPlan>(plan)) {
    for (int r = 0; r < plan.workers_size(); ++r) {
      members.push_back(std::make_unique<Member>(this->plan, r, &network, checkpoints));
    }
  }

  std::vector<std::string> Addresses() const {
    std::vector<std::string> addresses;
    for (const auto& member : members) addresses.push_back(member->exchange->address());
    return addresses;
  }

  // Runs on all members at the same time.
  void OnEach(const std::function<absl::Status(Member&)>& action) {
    std::vector<std::jthread> threads;
    for (const auto& member : members) {
      threads.emplace_back([&] {
        const absl::Status status = action(*member);
        EXPECT_TRUE(status.ok()) << status;
      });
    }
  }

  void Connect() {
    for (const auto& member : members) member->Open();
    const auto addresses = Addresses();
    OnEach([&](Member& member) { return member.exchange->Connect(kSteps, addresses); });
    OnEach([&](Member& m) { return m.exchange->AwaitVersion(plan->first_step()); });
  }

  void Step(int64_t step) {
    for (const auto& member : members) member->FillGradients(step);
    OnEach([&](Member& member) { return member.PushAll(step); });
    OnEach([&](Member& member) { return member.exchange->AwaitVersion(step + 1); });
  }

  // Applies plain SGD with learning rate 0.5 to `values`. The gradients of all ranks are added in
  // the order of the ring.
  void Apply(int64_t step, std::vector<Floats>& values) const {
    const int n = plan->workers_size();
    for (const v1::PlanChunk& chunk : plan->chunks()) {
      for (int64_t i = chunk.offset(); i < chunk.offset() + chunk.elements(); ++i) {
        float sum = GradientAt((chunk.shard() + 1) % n, step, chunk.parameter(), i);
        for (int hop = 2; hop <= n; ++hop) {
          sum += GradientAt((chunk.shard() + hop) % n, step, chunk.parameter(), i);
        }
        values[chunk.parameter()][i] -= 0.5f * sum;
      }
    }
  }

  std::shared_ptr<const v1::JobPlan> plan;
  InProcessNetwork network;
  std::vector<std::unique_ptr<Member>> members;
};

// The credentials of worker `rank` of the ring.
LinkCredentials CredentialsIn(const Ring& ring, uint32_t rank) {
  LinkCredentials credentials = *CredentialsOf(*ring.plan, Rank(0));
  credentials.self.index = rank;
  return credentials;
}

int Occurrences(const std::string& what, const std::string& text) {
  int count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

class RingOfTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Workers, RingOfTest, ::testing::Values(1, 2, 3, 4));

TEST_P(RingOfTest, EveryWorkerStartsWithTheOwnersValues) {
  Ring ring(RingPlan(GetParam()));
  Ring alone(RingPlan(1));
  ring.Connect();
  alone.Connect();

  for (const auto& member : ring.members) {
    EXPECT_EQ(member->parameters, alone.members[0]->parameters);
    EXPECT_NE(member->parameters[0][0], 0);
  }
}

TEST_P(RingOfTest, ValuesFollowTheSumInRingOrderToTheBit) {
  Ring ring(RingPlan(GetParam()));
  ring.Connect();
  std::vector<Floats> expected = ring.members[0]->parameters;
  for (int64_t step = 0; step < 5; ++step) {
    ring.Step(step);
    ring.Apply(step, expected);
    for (const auto& member : ring.members) ASSERT_EQ(member->parameters, expected) << step;
  }
}

TEST_P(RingOfTest, TraceShowsEveryChunk) {
  Ring ring(RingPlan(GetParam()));
  const std::string path = testing::TempDir() + "/ring_exchange_trace.json";
  Trace trace;
  const auto written = TraceFile::Create(path, &trace).value();
  ring.members[0]->options.tuning.trace = &trace;
  ring.Connect();
  ring.Step(0);
  for (const auto& member : ring.members) member->exchange.reset();
  ASSERT_TRUE(written->Write().ok());

  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  int chunks = 0, sent = 0;
  for (const v1::PlanChunk& chunk : ring.plan->chunks()) {
    ++chunks;
    sent += chunk.shard() != 0;  // the sums of its own chunks end at rank 0
  }
  EXPECT_EQ(Occurrences("\"ph\":\"b\"", text), chunks);
  EXPECT_EQ(Occurrences("\"queued\"", text), sent);
  EXPECT_EQ(Occurrences("\"sent\"", text), sent);
  EXPECT_EQ(Occurrences("\"ph\":\"e\"", text), chunks);
}

TEST_P(RingOfTest, GradientNormIsThatOfTheSum) {
  Ring ring(RingPlan(GetParam()));
  ring.Connect();
  std::vector<Floats> sum;
  for (const Floats& values : ring.members[0]->parameters) sum.emplace_back(values.size(), 0.0f);
  ring.Apply(0, sum);
  double squares = 0;
  for (const Floats& values : sum) {
    for (const float value : values) squares += 4.0 * value * value;  // the learning rate is 1/2
  }

  ring.Step(0);

  for (const auto& member : ring.members) {
    EXPECT_NEAR(member->exchange->GradientNorm(1), std::sqrt(squares), 1e-4);
    EXPECT_EQ(member->exchange->GradientNorm(1), ring.members[0]->exchange->GradientNorm(1));
  }
}

TEST_P(RingOfTest, EveryWorkerSendsTheMinimumOfBytes) {
  const int n = GetParam();
  constexpr int64_t kElements = 48 << 10;  // 192 chunks
  Ring ring(RingPlan(n, {.parameters = {kElements}}));
  ring.Connect();
  std::vector<double> before;
  for (const auto& member : ring.members) before.push_back(member->BytesOut());

  for (int64_t step = 0; step < 3; ++step) ring.Step(step);
  ring.OnEach([](Member& member) { return member.exchange->AwaitAnswers(); });

  const double least = 3 * 2.0 * (n - 1) / n * kElements * sizeof(float);
  for (int r = 0; r < n; ++r) {
    EXPECT_NEAR(ring.members[r]->BytesOut() - before[r], least, 0.01 * least) << "rank " << r;
  }
}

TEST_P(RingOfTest, OnlyTheOwnerHasOptimizerState) {
  v1::Optimizer adam;
  adam.mutable_adam()->set_learning_rate(0.01);
  std::vector<std::vector<Floats>> runs;
  for (int run = 0; run < 2; ++run) {
    Ring ring(RingPlan(GetParam(), {.parameters = {4096, 700, 3}, .optimizer = adam}));
    ring.Connect();
    for (int64_t step = 0; step < 10; ++step) ring.Step(step);
    for (const auto& member : ring.members) {
      EXPECT_EQ(member->parameters, ring.members[0]->parameters);
    }
    runs.push_back(ring.members[0]->parameters);
  }
  EXPECT_EQ(runs[0], runs[1]);
}

TEST_P(RingOfTest, NonFiniteGradientSkipsTheStepEverywhere) {
  Ring ring(RingPlan(GetParam(), {.parameters = {4096, 700, 3}, .precision = v1::FP16}));
  ring.Connect();
  const std::vector<Floats> initial = ring.members[0]->parameters;
  for (const auto& member : ring.members) {
    EXPECT_EQ(*member->exchange->AwaitLossScale(0), 65536);
    member->FillGradients(0);
  }
  ring.members.back()->gradients[1][17] = std::numeric_limits<float>::infinity();

  ring.OnEach([](Member& member) { return member.PushAll(0); });
  ring.OnEach([](Member& member) { return member.exchange->AwaitVersion(1); });

  for (const auto& member : ring.members) {
    EXPECT_EQ(member->parameters, initial);
    EXPECT_EQ(*member->exchange->AwaitLossScale(1), 32768);
    EXPECT_FALSE(std::isfinite(member->exchange->GradientNorm(1)));
  }
  std::vector<Floats> expected = initial;
  ring.Step(1);
  ring.Apply(1, expected);
  for (const auto& member : ring.members) EXPECT_EQ(member->parameters, expected);
}

TEST_P(RingOfTest, ClippingByTheNormOfTheWholeGradientIsTheSameOnAllShards) {
  Ring ring(RingPlan(GetParam(), {.parameters = {4096, 700, 3}, .clip_norm = 1}));
  ring.Connect();
  const std::vector<Floats> before = ring.members[0]->parameters;

  ring.Step(0);

  double squares = 0;  // squares of the update, which is half of the clipped gradient
  for (size_t p = 0; p < before.size(); ++p) {
    for (size_t i = 0; i < before[p].size(); ++i) {
      squares += std::pow(ring.members[0]->parameters[p][i] - before[p][i], 2);
    }
  }
  EXPECT_NEAR(std::sqrt(squares), 0.5, 1e-4);
  for (const auto& member : ring.members) {
    EXPECT_EQ(member->parameters, ring.members[0]->parameters);
    EXPECT_GT(member->exchange->GradientNorm(1), 1);
  }
}

TEST_P(RingOfTest, LateChunkDelaysOnlyItself) {
  Ring ring(RingPlan(GetParam()));
  ring.Connect();
  const int late = ring.plan->chunks_size() - 1;  // the only chunk of the last parameter
  for (const auto& member : ring.members) member->FillGradients(0);
  for (const auto& member : ring.members) {
    for (int c = 0; c < late; ++c) ASSERT_TRUE(member->exchange->Push(ChunkId(c), 0).ok());
    if (member == ring.members.back()) continue;
    ASSERT_TRUE(member->exchange->Push(ChunkId(late), 0).ok());
  }

  ring.OnEach([](Member& member) { return member.exchange->AwaitParameter(0, 1); });
  ring.OnEach([](Member& member) { return member.exchange->AwaitParameter(1, 1); });
  for (const auto& member : ring.members) {
    EXPECT_FALSE(member->exchange->HasParameter(2, 1));
    EXPECT_EQ(member->exchange->version(), 0);
  }
  ASSERT_TRUE(ring.members.back()->exchange->Push(ChunkId(late), 0).ok());
  ring.OnEach([](Member& member) { return member.exchange->AwaitVersion(1); });
}

TEST_P(RingOfTest, InterruptedWorkerStillPassesOnChunks) {
  Ring ring(RingPlan(GetParam()));
  ring.Connect();
  for (const auto& member : ring.members) member->FillGradients(0);
  ring.members[0]->exchange->Interrupt();
  EXPECT_TRUE(absl::IsAborted(ring.members[0]->exchange->AwaitVersion(1)));

  ring.OnEach([](Member& member) { return member.PushAll(0); });

  ring.OnEach([](Member& member) { return member.exchange->AwaitAnswers(); });
  for (const auto& member : ring.members) EXPECT_EQ(member->exchange->version(), 1);
}

TEST(RingExchangeTest, SumMayOvertakeTheValueItWasComputedFrom) {
  Ring ring(RingPlan(3, {.parameters = {256}}));  // one chunk, owned by rank 0
  ring.Connect();
  std::vector<Floats> expected = ring.members[0]->parameters;
  absl::Notification overtaken;
  ring.network.SetFault([&](const WireHeader& header) {
    const bool to_rank_2 = header.rank == 1 && header.step == 1;
    if (to_rank_2 && header.kind == MessageKind::kPush) overtaken.Notify();
    return to_rank_2 && header.kind == MessageKind::kParams ? Fate::kHold : Fate::kDeliver;
  });
  for (const auto& member : ring.members) {
    member->FillGradients(0);
    ASSERT_TRUE(member->exchange->Push(ChunkId(0), 0).ok());
  }
  for (int rank : {0, 1}) {
    Member& ahead = *ring.members[rank];
    ASSERT_TRUE(ahead.exchange->AwaitVersion(1).ok());
    ahead.FillGradients(1);
    ASSERT_TRUE(ahead.exchange->Push(ChunkId(0), 1).ok());
  }
  overtaken.WaitForNotification();
  EXPECT_EQ(ring.members[2]->exchange->version(), 0);

  ring.network.ReleaseHeld();

  Member& behind = *ring.members[2];
  ASSERT_TRUE(behind.exchange->AwaitVersion(1).ok());
  behind.FillGradients(1);
  ASSERT_TRUE(behind.exchange->Push(ChunkId(0), 1).ok());
  ring.OnEach([](Member& member) { return member.exchange->AwaitVersion(2); });
  ring.Apply(0, expected);
  ring.Apply(1, expected);
  for (const auto& member : ring.members) EXPECT_EQ(member->parameters, expected);
}

TEST(RingExchangeTest, RepeatedMessagesChangeNothing) {
  Ring ring(RingPlan(3));
  ring.network.SetFault([](const WireHeader& header) {
    const bool payload = header.kind == MessageKind::kPush || header.kind == MessageKind::kParams;
    return payload ? Fate::kDuplicate : Fate::kDeliver;
  });
  ring.Connect();
  std::vector<Floats> expected = ring.members[0]->parameters;
  for (int64_t step = 0; step < 3; ++step) {
    ring.Step(step);
    ring.Apply(step, expected);
  }
  for (const auto& member : ring.members) EXPECT_EQ(member->parameters, expected);
}

TEST(RingExchangeTest, DeadNeighbourIsNamedWithStepAndChunk) {
  Ring ring(RingPlan(3));
  ring.Connect();
  ring.Step(0);
  for (int rank : {0, 2}) {
    ring.members[rank]->FillGradients(1);
    ASSERT_TRUE(ring.members[rank]->PushAll(1).ok());
  }

  ring.members[1]->exchange.reset();

  for (int rank : {0, 2}) {
    RingExchange& exchange = *ring.members[rank]->exchange;
    const absl::Status lost = exchange.AwaitVersion(2);
    EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
    EXPECT_EQ(ReasonOf(lost), "PEER_UNREACHABLE");
    EXPECT_THAT(std::string(lost.message()), HasSubstr("worker-1 (rank 1)"));
    EXPECT_THAT(std::string(lost.message()), HasSubstr("step 1"));
    EXPECT_THAT(std::string(lost.message()), HasSubstr("chunk "));
    EXPECT_EQ(exchange.culprit(), "worker-1");
  }
}

TEST(RingExchangeTest, UnfinishedRoundIsNamedWithStepChunkAndRanks) {
  Ring ring(RingPlan(3));
  for (const auto& member : ring.members) {
    member->options.answer_timeout = absl::Milliseconds(300);
  }
  ring.Connect();
  const v1::PlanChunk& chunk = ring.plan->chunks(1);
  const int owner = chunk.shard(), last = (owner + 2) % 3;
  ring.network.SetFault([last](const WireHeader& header) {
    const bool to_last = header.rank == static_cast<uint32_t>((last + 2) % 3);
    const bool lost = to_last && header.kind == MessageKind::kParams && header.chunk == 1;
    return lost ? Fate::kDrop : Fate::kDeliver;
  });
  for (const auto& member : ring.members) ASSERT_TRUE(member->exchange->Push(ChunkId(1), 0).ok());

  const absl::Status status = ring.members[last]->exchange->AwaitAnswers();

  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(ReasonOf(status), "STEP_TIMEOUT");
  auto name = [](int rank) { return absl::StrCat("worker-", rank, " (rank ", rank, ")"); };
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr(absl::StrCat(
          "step 0: chunk 1 of parameter '", ring.plan->graph().parameters(chunk.parameter()).name(),
          "' of ", name(owner), " has not come from ", name((last + 2) % 3), " for 300ms")));
}

TEST(RingExchangeTest, WorkerThatWasNotStartedIsNamed) {
  Ring ring(RingPlan(2));
  ring.members[0]->options.hello_timeout = absl::Milliseconds(20);
  for (const auto& member : ring.members) member->Open();

  const absl::Status silent = ring.members[0]->exchange->Connect(kSteps, ring.Addresses());

  EXPECT_TRUE(absl::IsUnavailable(silent)) << silent;
  EXPECT_THAT(std::string(silent.message()), HasSubstr("worker-1 (rank 1) has not said HELLO"));
  EXPECT_EQ(ring.members[0]->exchange->culprit(), "worker-1");
}

TEST(RingExchangeTest, WorkerWithAnotherTokenIsNotAnswered) {
  Ring ring(RingPlan(2));
  v1::JobPlan other = *ring.plan;
  other.set_session_token("another-token-16");
  Member unauthenticated_peer(std::make_shared<const v1::JobPlan>(other), 1, &ring.network);
  unauthenticated_peer.options.hello_timeout = absl::Milliseconds(20);
  unauthenticated_peer.Open();
  ring.members[0]->options.hello_timeout = absl::Milliseconds(20);
  ring.members[0]->Open();
  const std::vector<std::string> addresses = {ring.members[0]->exchange->address(),
                                              unauthenticated_peer.exchange->address()};
  std::jthread own([&] {
    EXPECT_TRUE(absl::IsUnavailable(ring.members[0]->exchange->Connect(kSteps, addresses)));
  });
  EXPECT_TRUE(absl::IsUnavailable(unauthenticated_peer.exchange->Connect(kSteps, addresses)));
}

TEST(RingExchangeTest, LostMessageBetweenShardsNamesNoChunk) {
  Ring ring(RingPlan(3, {.parameters = {4096, 700, 3}, .clip_norm = 1}));
  ring.Connect();
  ring.network.SetFault([](const WireHeader& header) {
    return header.kind == MessageKind::kSquares ? Fate::kBreak : Fate::kDeliver;
  });
  for (const auto& member : ring.members) {
    member->FillGradients(0);
    ASSERT_TRUE(member->PushAll(0).ok());
  }
  const absl::Status status = ring.members[0]->exchange->AwaitVersion(1);
  EXPECT_EQ(ReasonOf(status), "PEER_UNREACHABLE");
  EXPECT_THAT(std::string(status.message()), HasSubstr("was lost on its way, of the verdict"));
}

// An impostor speaks as rank 0 to rank 1 of a ring of three.
TEST(RingExchangeTest, NeighbourThatSendsAForbiddenMessageFailsTheJob) {
  for (const bool judged : {false, true}) {
    for (const MessageKind kind : {MessageKind::kHello, MessageKind::kTrust, MessageKind::kSquares,
                                   MessageKind::kFetch, MessageKind::kClosed}) {
      if (judged && kind == MessageKind::kTrust) continue;  // rank 0 may send it
      Ring ring(RingPlan(3, {.clip_norm = judged ? 1.0 : 0.0}));
      Member& member = *ring.members[1];
      member.Open();
      Postbox impostor_mail;
      const auto impostor = ring.network.MakeTransport();
      impostor->SetReceiver(&impostor_mail);
      const LinkCredentials rank_0 = CredentialsIn(ring, 0);
      impostor->OpenSession(rank_0.self.job, rank_0.self.generation, rank_0.token);
      absl::Status status;
      std::jthread job([&] {
        status = member.exchange->Connect(kSteps, {impostor->address(), "", impostor->address()});
      });
      const PeerId peer = *impostor->Connect(member.exchange->address(), rank_0);
      const WireHeader header{.kind = kind,
                              .generation = ring.plan->generation(),
                              .job = ring.plan->job_number(),
                              .rank = kind == MessageKind::kHello ? 2u : 0u};
      impostor->Send(peer, header, {}, {});
      job.join();
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_EQ(ReasonOf(status), "PEER_PROTOCOL");
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("worker-0 (rank 0) sent a message of kind"));
      EXPECT_EQ(member.exchange->culprit(), "worker-0");
    }
  }
}

TEST(RingExchangeTest, TimeInWhichChunksWaitForCreditIsCountedAndEnds) {
  Ring ring(RingPlan(2));
  for (const auto& member : ring.members) member->options.tuning.inflight_bytes_max = 1;
  ring.Connect();
  const auto full = [&] {
    return std::ranges::all_of(ring.members, [](const auto& member) {
      return member->exchange_metrics.queue_full.Value() > 0;
    });
  };
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  for (int64_t step = 0; step < kSteps && !full(); ++step) {
    ASSERT_LT(absl::Now(), deadline);
    ring.Step(step);
  }
  for (const auto& member : ring.members) {
    EXPECT_GT(member->exchange_metrics.queue_full.Value(), 0);
    EXPECT_LT(member->exchange_metrics.queue_full.Value(), 60);
    EXPECT_GT(member->exchange_metrics.credit_duration.Collect().histogram.sample_count, 0u);
    member->exchange.reset();
    EXPECT_EQ(member->exchange_metrics.queued_bytes.Value(), 0);
    EXPECT_EQ(member->exchange_metrics.queued_chunks.Value(), 0);
  }
}

TEST(RingExchangeTest, UnknownPeersWithTheTokenAreRefusedAndTheRingContinues) {
  Ring ring(RingPlan(4));
  for (const auto& member : ring.members) member->Open();
  const std::vector<std::string> addresses = ring.Addresses();
  std::vector<LinkCredentials> unauthenticated_peers;
  unauthenticated_peers.push_back(CredentialsIn(ring, 1));  // the worker's own rank
  unauthenticated_peers.push_back(
      CredentialsIn(ring, 2));  // a peer that the worker connects to itself
  unauthenticated_peers.push_back(CredentialsIn(ring, 3));  // not a neighbour
  unauthenticated_peers.push_back(CredentialsIn(ring, 4));  // not a worker
  unauthenticated_peers.push_back(
      CredentialsIn(ring, 4294967295));  // a number far beyond the workers
  unauthenticated_peers.push_back(CredentialsIn(ring, 0));
  unauthenticated_peers.back().self.role = LinkRole::kShard;
  for (const LinkCredentials& who : unauthenticated_peers) {
    Postbox mail;
    const auto unauthenticated_peer = ring.network.MakeTransport();
    unauthenticated_peer->SetReceiver(&mail);
    ASSERT_TRUE(unauthenticated_peer->Connect(addresses[1], who).ok());
    EXPECT_TRUE(ProgressUntil({unauthenticated_peer.get()}, [&] { return !mail.losses.empty(); }))
        << NameOf(who.self);
  }
  ring.OnEach([&](Member& member) { return member.exchange->Connect(kSteps, addresses); });
  {
    Postbox mail;
    const auto second = ring.network.MakeTransport();
    second->SetReceiver(&mail);
    ASSERT_TRUE(second->Connect(addresses[1], CredentialsIn(ring, 0)).ok());
    EXPECT_TRUE(ProgressUntil({second.get()}, [&] { return !mail.losses.empty(); }))
        << "rank 0 is connected already";
  }
  ring.OnEach([](Member& member) { return member.exchange->AwaitVersion(0); });
  ring.Step(0);
  for (const auto& member : ring.members) {
    EXPECT_EQ(member->parameters, ring.members[0]->parameters);
  }
}

TEST(RingExchangeTest, LostPayloadFailsTheJobAndNamesTheNeighbour) {
  for (const MessageKind kind : {MessageKind::kPush, MessageKind::kParams}) {
    Ring ring(RingPlan(3));
    ring.Connect();
    ring.network.SetFault([kind](const WireHeader& header) {
      return header.kind == kind && header.rank == 0 ? Fate::kBreak : Fate::kDeliver;
    });
    for (const int rank : {2, 1, 0}) {  // the failing worker pushes before rank 0 sends anything
      ring.members[rank]->FillGradients(0);
      ASSERT_TRUE(ring.members[rank]->PushAll(0).ok());
    }
    const absl::Status status = ring.members[1]->exchange->AwaitVersion(1);
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_EQ(ReasonOf(status), "PEER_UNREACHABLE");
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("a payload of worker-0 (rank 0) was lost on its way, of chunk "));
    EXPECT_THAT(std::string(status.message()), HasSubstr("at step 0"));
    EXPECT_EQ(ring.members[1]->exchange->culprit(), "worker-0");
  }
}

TEST(RingExchangeTest, StartWithTooFewAddressesIsRefused) {
  Ring ring(RingPlan(2));
  for (const auto& member : ring.members) member->Open();
  const absl::Status refused = ring.members[0]->exchange->Connect(kSteps, {"inprocess:1"});
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("1 addresses for 2 shards"));
}

TEST(RingExchangeTest, PlanWithShardsOfOtherMembersIsRefused) {
  v1::JobPlan plan = RingPlan(2);
  plan.mutable_shards(1)->set_member("ps-0");
  Ring ring(plan);
  const auto refused = RingExchange::Create(ring.members[0]->options);
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << refused.status();
}

TEST(RingExchangeTest, EveryShardWritesItsPartOfPeriodicAndRequestedCheckpoints) {
  FakeMemberService service;
  CheckpointClient client(service.address());
  Ring ring(RingPlan(2, {.parameters = {4096}, .checkpoint_every = 2}), &client);
  ring.Connect();
  std::vector<Floats> expected = ring.members[0]->parameters;
  for (const auto& member : ring.members) member->shard->TakeSnapshot(5, 3);
  for (int64_t step = 0; step < 3; ++step) {
    ring.Step(step);
    ring.Apply(step, expected);
  }

  const auto written = service.AwaitWritten(4);

  std::vector<std::pair<int64_t, int>> parts;
  for (const auto& upload : written) {
    parts.emplace_back(upload.header.step(), upload.header.shard());
    if (upload.header.step() != 3) continue;
    EXPECT_EQ(upload.header.snapshot(), 5);
    for (const v1::ShardSlice& slice : upload.slices) {
      const v1::PlanChunk& chunk = ring.plan->chunks(slice.chunk());
      EXPECT_EQ(
          0, std::memcmp(slice.data().data(), &expected[0][chunk.offset()], slice.data().size()));
    }
  }
  EXPECT_THAT(parts, ::testing::UnorderedElementsAre(std::pair(2, 0), std::pair(2, 1),
                                                     std::pair(3, 0), std::pair(3, 1)));
}

TEST(RingExchangeTest, MemoryForReceivedSumsCountsAgainstTheBudget) {
  Ring ring(RingPlan(2));
  const int64_t of_shard = ParameterShard::BytesNeeded(PlanOfRingShard(*ring.plan), kFirstShard);
  MemoryBudget budget(of_shard);
  const auto shard = WorkerShard::Create({.plan = ring.plan, .budget = &budget}, {});
  ASSERT_TRUE(shard.ok()) << shard.status();
  RingExchange::Options options = ring.members[0]->options;
  options.shard = shard->get();

  const auto exchange = RingExchange::Create(options);

  EXPECT_EQ(exchange.status().code(), absl::StatusCode::kResourceExhausted) << exchange.status();
  EXPECT_EQ(ReasonOf(exchange.status()), "MEMORY_EXHAUSTED");
}

}  // namespace
}  // namespace muster::ring_exchange_test
