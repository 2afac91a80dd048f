#include "lib/shard/core/parameter_shard.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "lib/codec/codec.h"
#include "lib/shard/core/plan_check.h"
#include "lib/shard/testing/test_plan.h"
#include "lib/status/status.h"
#include "lib/transport/core/crc32c.h"

namespace muster::parameter_shard_test {
namespace {

using Values = std::vector<float>;

// Compares bits: -0 and 0 differ, and a NaN equals itself.
uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }

struct Sent {
  Rank rank;
  WireHeader header;
  Values payload;
};

struct SentToShard {
  ShardIndex shard;
  WireHeader header;
  std::vector<std::byte> payload;
};

struct Declined {
  uint64_t id;
  int64_t step;
  v1::SnapshotOutcome outcome;
};

// Records the output of the shard. Sends finish at once, or when FinishSends() is called.
class FakeOutput : public ShardOutput {
 public:
  void SendTo(Rank rank, const WireHeader& header, absl::Span<const std::byte> payload,
              Transport::SendDone done) override {
    const auto* values = reinterpret_cast<const float*>(payload.data());
    sent.push_back({rank, header, {values, values + payload.size() / sizeof(float)}});
    if (!hold_sends) return done(absl::OkStatus());
    held.push_back(std::move(done));
  }
  void SendToShard(ShardIndex shard, const WireHeader& header, absl::Span<const std::byte> payload,
                   Transport::SendDone done) override {
    to_shards.push_back({shard, header, {payload.begin(), payload.end()}});
    done(absl::OkStatus());
  }
  void StepJudged(const StepVerdict& verdict) override { verdicts.push_back(verdict); }
  kernels::OutgoingStores UpdateBegins(int64_t) override {
    return kernels::OutgoingStores::kDirect;
  }
  void UpdateEnds(double) override { ++updates; }
  void StalePushApplied(int64_t staleness) override { stalenesses.push_back(staleness); }
  void SnapshotTaken(std::shared_ptr<const ShardSnapshot> snapshot) override {
    snapshots.push_back(std::move(snapshot));
  }
  void SnapshotDeclined(uint64_t id, int64_t step, v1::SnapshotOutcome outcome,
                        const std::string&) override {
    declined.push_back({id, step, outcome});
  }

  void FinishSends() {
    for (auto& done : std::exchange(held, {})) done(absl::OkStatus());
  }

  bool hold_sends = false;
  std::vector<Transport::SendDone> held;
  std::vector<Sent> sent;
  std::vector<SentToShard> to_shards;
  std::vector<StepVerdict> verdicts;
  int updates = 0;
  std::vector<int64_t> stalenesses;
  std::vector<std::shared_ptr<const ShardSnapshot>> snapshots;
  std::vector<Declined> declined;
};

class ParameterShardTest : public testing::Test {
 protected:
  void Make(const TestPlanOptions& options, ShardIndex shard = kFirstShard) {
    plan_ = MakeTestPlan(options);
    MakeShard(shard);
  }

  // Creates the shard from plan_.
  void MakeShard(ShardIndex shard = kFirstShard) {
    ASSERT_TRUE(CheckPlan(plan_).ok()) << CheckPlan(plan_);
    output_ = FakeOutput();
    auto made = ParameterShard::Create(
        std::make_shared<v1::JobPlan>(plan_), shard,
        *budget_.Reserve(ParameterShard::BytesNeeded(plan_, shard), absl::ZeroDuration()));
    ASSERT_TRUE(made.ok());
    shard_ = *std::move(made);
    shard_->set_output(&output_);
    for (const LocalChunk chunk : shard_->chunks()) shard_->Initialize(chunk);
  }

  // Returns false if the shard refuses the push.
  bool Push(int64_t step, int chunk, int rank, const Values& gradient) {
    const WireHeader header = PushHeader(plan_, step, chunk, rank);
    const auto placement = shard_->PlacePush(header);
    if (placement.memory.empty()) return false;
    EXPECT_EQ(placement.memory.size(), gradient.size() * sizeof(float));
    std::memcpy(placement.memory.data(), gradient.data(), placement.memory.size());
    EXPECT_EQ(shard_->PushArrived(header, placement.memory, {}), RefusalReason::kNone);
    return true;
  }

  void PushAll(int64_t step, int chunk) {
    for (int rank = 0; rank < plan_.workers_size(); ++rank) {
      ASSERT_TRUE(Push(step, chunk, rank, Values(plan_.chunks(chunk).elements(), 0.25f)));
    }
  }

  // Runs the next turn of the shard's thread after `passed`.
  void TurnAfter(ParameterShard::Clock::duration passed) {
    now_ += passed;
    shard_->PassOverSnapshots([this] { return now_; });
  }

  RefusalReason RefusalOf(WireHeader header) { return shard_->PlacePush(header).refusal; }

  Values ValuesOf(int index) const {
    const absl::Span<const float> values = shard_->values(LocalChunk(index));
    return {values.begin(), values.end()};
  }

  static Values Joined(Values first, const Values& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
  }

  static Values Plus(Values values, float addend) {
    for (float& value : values) value += addend;
    return values;
  }

  MemoryBudget budget_{int64_t{1} << 30};
  v1::JobPlan plan_;
  std::unique_ptr<ParameterShard> shard_;
  FakeOutput output_;  // destroyed before the shard, as transports are
  ParameterShard::Clock::time_point now_;
};

// One update adds this to an element. The learning rate is 0.5, and the gradients add up to 0.5.
constexpr float kUpdate = -0.25f;

TEST_F(ParameterShardTest, UpdatesAfterAllRanksHavePushedAndAnswersAll) {
  Make({});
  shard_->Start(10);
  const Values before = ValuesOf(0);
  EXPECT_TRUE(Push(0, 0, 1, Values(7, 0.25f)));
  EXPECT_EQ(output_.updates, 0);
  EXPECT_TRUE(Push(0, 0, 0, Values(7, 0.25f)));
  EXPECT_EQ(output_.updates, 1);

  ASSERT_EQ(output_.sent.size(), 2);
  for (int rank : {0, 1}) {
    const Sent& answer = output_.sent[rank];
    EXPECT_EQ(answer.rank, Rank(rank));
    EXPECT_EQ(answer.payload, Plus(before, kUpdate));
    EXPECT_EQ(answer.header, (WireHeader{.kind = MessageKind::kParams,
                                         .dtype = WireDType::kF32,
                                         .generation = 1,
                                         .job = 7,
                                         .step = 1,
                                         .chunk = 0,
                                         .rank = static_cast<uint32_t>(rank),
                                         .length = 28,
                                         .scalar = 7 * 0.25}));
  }
  EXPECT_EQ(shard_->lowest_version(), 1);
}

TEST_F(ParameterShardTest, PushesWaitForTheStartButFetchesDoNot) {
  Make({});
  EXPECT_EQ(shard_->Fetch(FetchHeader(plan_, 0, 0, 1)), RefusalReason::kNone);
  ASSERT_EQ(output_.sent.size(), 1);
  EXPECT_EQ(output_.sent[0].payload, ValuesOf(0));
  PushAll(0, 0);
  EXPECT_EQ(output_.updates, 0);
  shard_->Start(10);
  EXPECT_EQ(output_.updates, 1);
}

TEST_F(ParameterShardTest, OrderOfArrivalDoesNotChangeABit) {
  constexpr int kWorkers = 5, kElements = 333;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<Values> gradients(kWorkers, Values(kElements));
  for (Values& gradient : gradients) {
    for (float& g : gradient) g = normal(random) * std::exp(normal(random) * 8);
  }
  std::vector<int> order = {0, 1, 2, 3, 4};
  Values expected;
  for (int trial = 0; trial < 20; ++trial) {
    Make({.parameters = {kElements}, .chunk_bytes = 4096, .workers = kWorkers});
    shard_->Start(1);
    for (int rank : order) ASSERT_TRUE(Push(0, 0, rank, gradients[rank]));
    if (expected.empty()) expected = ValuesOf(0);
    const Values values = ValuesOf(0);
    EXPECT_TRUE(std::ranges::equal(values, expected, {}, Bits, Bits));
    std::shuffle(order.begin(), order.end(), random);
  }
}

TEST_F(ParameterShardTest, ChunkSizeDoesNotChangeTheParameter) {
  v1::Optimizer adamw;
  adamw.mutable_adamw()->set_learning_rate(0.1);
  adamw.mutable_adamw()->set_weight_decay(0.1);
  Values expected;
  for (int64_t chunk_bytes : {1 << 20, 4 * 1013, 4 * 100, 4 * 17, 4}) {
    Make({.parameters = {1013}, .chunk_bytes = chunk_bytes, .optimizer = adamw});
    shard_->Start(3);
    for (int64_t step = 0; step < 3; ++step) {
      for (int chunk = 0; chunk < plan_.chunks_size(); ++chunk) {
        for (int rank : {0, 1}) {
          Values gradient;
          for (int64_t i = 0; i < plan_.chunks(chunk).elements(); ++i) {
            gradient.push_back(
                std::sin(static_cast<float>(plan_.chunks(chunk).offset() + i) + rank + step));
          }
          ASSERT_TRUE(Push(step, chunk, rank, gradient));
        }
      }
    }
    Values whole;
    for (int chunk = 0; chunk < plan_.chunks_size(); ++chunk) {
      const Values part = ValuesOf(chunk);
      whole.insert(whole.end(), part.begin(), part.end());
    }
    if (expected.empty()) expected = whole;
    EXPECT_TRUE(std::ranges::equal(whole, expected, {}, Bits, Bits))
        << chunk_bytes << " bytes per chunk";
  }
}

TEST_F(ParameterShardTest, WeightDecayAppliesOnlyIfTheParameterHasIt) {
  TestPlanOptions options{.parameters = {3, 3}, .workers = 1};
  options.optimizer.mutable_sgd()->set_weight_decay(1);
  plan_ = MakeTestPlan(options);
  plan_.mutable_graph()->mutable_parameters(1)->set_weight_decay(true);
  MakeShard();
  const Values kept = ValuesOf(0);
  Values halved = ValuesOf(1);
  for (float& value : halved) value -= 0.5f * value;
  shard_->Start(1);
  for (int chunk : {0, 1}) ASSERT_TRUE(Push(0, chunk, 0, Values(3, 0.0f)));
  EXPECT_EQ(ValuesOf(0), kept);
  EXPECT_EQ(ValuesOf(1), halved);
}

TEST_F(ParameterShardTest, DecayOfAGroupReplacesThatOfTheOptimizer) {
  TestPlanOptions options{.parameters = {3, 3, 3}, .weight_decay = true, .workers = 1};
  options.optimizer.mutable_sgd()->set_weight_decay(1);
  plan_ = MakeTestPlan(options);
  plan_.mutable_graph()->mutable_parameters(2)->set_weight_decay(false);
  for (const auto& [name, decay] : {std::pair("p1", 0.0), std::pair("p2", 0.5)}) {
    v1::ParameterGroup& group = *plan_.mutable_spec()->mutable_training()->add_parameter_groups();
    group.add_match(name);
    group.set_decay(decay);
  }
  MakeShard();
  std::vector<Values> expected;
  for (const int chunk : {0, 1, 2}) expected.push_back(ValuesOf(chunk));
  for (float& value : expected[0]) value -= 0.5f * value;
  for (float& value : expected[2]) value -= 0.5f * (0.5f * value);
  shard_->Start(1);
  for (const int chunk : {0, 1, 2}) {
    ASSERT_TRUE(Push(0, chunk, 0, Values(3, 0.0f)));
    EXPECT_EQ(ValuesOf(chunk), expected[chunk]) << chunk;
  }
}

TEST_F(ParameterShardTest, RepeatOfTheLastStepIsAnsweredAndNotApplied) {
  Make({});
  shard_->Start(10);
  PushAll(0, 0);
  output_.sent.clear();
  const auto placement = shard_->PlacePush(PushHeader(plan_, 0, 0, 1));
  EXPECT_TRUE(placement.memory.empty());
  EXPECT_TRUE(placement.repeat);
  shard_->AnswerRepeat(PushHeader(plan_, 0, 0, 1));
  ASSERT_EQ(output_.sent.size(), 1);
  EXPECT_EQ(output_.sent[0].rank, Rank(1));
  EXPECT_EQ(output_.sent[0].header.step, 1);
  EXPECT_EQ(output_.sent[0].header.scalar, 7 * 0.25);
  EXPECT_EQ(output_.sent[0].payload, ValuesOf(0));
  EXPECT_EQ(output_.updates, 1);
}

TEST_F(ParameterShardTest, RepeatOfTheCurrentStepIsIgnored) {
  Make({});
  shard_->Start(10);
  const WireHeader header = PushHeader(plan_, 0, 0, 1);
  ASSERT_FALSE(shard_->PlacePush(header).memory.empty());
  EXPECT_TRUE(shard_->PlacePush(header).repeat) << "while the first is being received";
  shard_->PushArrived(header, {}, {});
  EXPECT_TRUE(shard_->PlacePush(header).repeat) << "after it was received";
  shard_->AnswerRepeat(header);
  EXPECT_TRUE(output_.sent.empty());
}

TEST_F(ParameterShardTest, RefusesMessagesThatDoNotFitThePlan) {
  Make({.parameters = {7, 9}, .shards = 2});  // chunk 1 is on shard 0, chunk 0 on shard 1
  shard_->Start(1);
  const WireHeader good = PushHeader(plan_, 0, 1, 0);
  auto with = [&](auto change) {
    WireHeader header = good;
    change(header);
    return RefusalOf(header);
  };
  EXPECT_EQ(with([](WireHeader& h) { h.chunk = 0; }), RefusalReason::kWrongChunk);
  EXPECT_EQ(with([](WireHeader& h) { h.chunk = 2; }), RefusalReason::kWrongChunk);
  EXPECT_EQ(with([](WireHeader& h) { h.chunk = ~0u; }), RefusalReason::kWrongChunk);
  EXPECT_EQ(with([](WireHeader& h) { h.length = 28; }), RefusalReason::kWrongLength);
  EXPECT_EQ(with([](WireHeader& h) { h.length = ~0ull; }), RefusalReason::kWrongLength);
  EXPECT_EQ(with([](WireHeader& h) { h.dtype = WireDType::kNone; }), RefusalReason::kBadHeader);
  EXPECT_EQ(with([](WireHeader& h) { h.step = 1; }), RefusalReason::kWrongStep);
  EXPECT_EQ(with([](WireHeader& h) { h.step = -1; }), RefusalReason::kWrongStep);
  EXPECT_EQ(with([](WireHeader& h) { h.step = INT64_MIN; }), RefusalReason::kWrongStep);
  EXPECT_EQ(shard_->Fetch(FetchHeader(plan_, 1, 1, 0)), RefusalReason::kWrongStep);
  EXPECT_EQ(shard_->Fetch(FetchHeader(plan_, -1, 1, 0)), RefusalReason::kWrongStep);
  EXPECT_EQ(shard_->Fetch(FetchHeader(plan_, 0, 0, 0)), RefusalReason::kWrongChunk);
  PushAll(0, 1);
  EXPECT_EQ(with([](WireHeader& h) { h.step = 1; }), RefusalReason::kWrongStep) << "after the last";
  EXPECT_EQ(output_.updates, 1);
}

TEST_F(ParameterShardTest, HoldsTwoVersions) {
  Make({});
  shard_->Start(10);
  const Values version0 = ValuesOf(0);
  PushAll(0, 0);
  output_.sent.clear();
  EXPECT_EQ(shard_->Fetch(FetchHeader(plan_, 0, 0, 0)), RefusalReason::kNone);
  EXPECT_EQ(shard_->Fetch(FetchHeader(plan_, 1, 0, 0)), RefusalReason::kNone);
  ASSERT_EQ(output_.sent.size(), 2);
  EXPECT_EQ(output_.sent[0].payload, version0);
  EXPECT_EQ(output_.sent[1].payload, Plus(version0, kUpdate));
  PushAll(1, 0);
  EXPECT_EQ(shard_->Fetch(FetchHeader(plan_, 0, 0, 0)), RefusalReason::kWrongStep);
}

TEST_F(ParameterShardTest, RankThatFetchesFasterThanItReadsHasOneAnswerUnderWay) {
  Make({.workers = 2});
  shard_->Start(10);
  output_.hold_sends = true;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(shard_->Fetch(FetchHeader(plan_, 0, 0, 0)), RefusalReason::kNone);
  }
  EXPECT_EQ(output_.sent.size(), 1u);
  EXPECT_EQ(shard_->Fetch(FetchHeader(plan_, 0, 0, 1)), RefusalReason::kNone);
  EXPECT_EQ(output_.sent.size(), 2u) << "other ranks do not wait for it";

  output_.FinishSends();
  EXPECT_EQ(output_.sent.size(), 3u) << "only the last fetch is answered";
  EXPECT_EQ(output_.sent[2].rank, Rank(0));
  output_.FinishSends();
  EXPECT_EQ(output_.sent.size(), 3u);
  EXPECT_TRUE(shard_->idle());

  EXPECT_EQ(shard_->Fetch(FetchHeader(plan_, 0, 0, 0)), RefusalReason::kNone);
  EXPECT_EQ(shard_->Fetch(FetchHeader(plan_, 0, 0, 0)), RefusalReason::kNone);
  shard_->RankLost(Rank(0));
  output_.FinishSends();
  EXPECT_EQ(output_.sent.size(), 4u) << "a lost rank gets no answer";
}

TEST_F(ParameterShardTest, ValueIsNotOverwrittenWhileItIsSent) {
  Make({});
  shard_->Start(10);
  output_.hold_sends = true;
  PushAll(0, 0);  // version 1 is being sent
  PushAll(1, 0);  // version 2 goes into the other buffer
  EXPECT_EQ(output_.updates, 2);
  PushAll(2, 0);  // version 3 would overwrite version 1
  EXPECT_EQ(output_.updates, 2);
  EXPECT_FALSE(shard_->idle());
  output_.FinishSends();
  EXPECT_EQ(output_.updates, 3);
  output_.FinishSends();
  EXPECT_TRUE(shard_->idle());
}

TEST_F(ParameterShardTest, UnfinishedPushOfALostWorkerMayComeAgain) {
  Make({});
  shard_->Start(10);
  ASSERT_FALSE(shard_->PlacePush(PushHeader(plan_, 0, 0, 1)).memory.empty());
  EXPECT_FALSE(shard_->idle());
  shard_->RankLost(Rank(1));
  EXPECT_TRUE(shard_->idle());
  shard_->PushArrived(PushHeader(plan_, 0, 0, 1), {}, {});  // too late
  PushAll(0, 0);
  EXPECT_EQ(output_.updates, 1);
}

TEST_F(ParameterShardTest, LostPushMayComeAgainAtOnce) {
  Make({});
  shard_->Start(10);
  const WireHeader push = PushHeader(plan_, 0, 0, 1);
  ASSERT_FALSE(shard_->PlacePush(push).memory.empty());
  EXPECT_TRUE(shard_->PlacePush(push).repeat) << "its seat is taken";
  shard_->PushLost(push);
  EXPECT_TRUE(shard_->idle());
  shard_->PushLost(push);  // the second call does nothing
  EXPECT_TRUE(shard_->idle());
  PushAll(0, 0);
  EXPECT_EQ(output_.updates, 1);
}

TEST_F(ParameterShardTest, RetiredShardUpdatesNothing) {
  Make({});
  shard_->Start(10);
  ASSERT_TRUE(Push(0, 0, 0, Values(7, 0.25f)));
  shard_->Retire();
  ASSERT_TRUE(Push(0, 0, 1, Values(7, 0.25f)));
  EXPECT_EQ(output_.updates, 0);
  EXPECT_TRUE(shard_->idle());
}

Values Concatenated(const ShardSnapshot& snapshot, int slot) {
  std::map<ChunkId, absl::Span<const float>> by_chunk;
  for (const auto& piece : snapshot.pieces) {
    if (piece.slot == slot) by_chunk[piece.chunk] = piece.elements;
  }
  Values values;
  for (const auto& [chunk, elements] : by_chunk) {
    values.insert(values.end(), elements.begin(), elements.end());
  }
  return values;
}

// Tests that a job continues with the shard of its last generation, and computes what it would have
// computed without the interruption.
class ContinuedShardTest : public ParameterShardTest {
 protected:
  static TestPlanOptions Options() {
    TestPlanOptions options{.parameters = {4, 300}};
    options.optimizer.mutable_adam()->set_learning_rate(0.5);
    return options;
  }

  void PushSteps(int64_t from, int64_t before) {
    for (int64_t step = from; step < before; ++step) {
      for (int chunk = 0; chunk < plan_.chunks_size(); ++chunk) PushStep(step, chunk);
    }
  }

  void PushStep(int64_t step, int chunk) {
    const auto gradient = 0.125f * static_cast<float>(1 + step % 3 + chunk);
    for (int rank = 0; rank < plan_.workers_size(); ++rank) {
      ASSERT_TRUE(Push(step, chunk, rank, Values(plan_.chunks(chunk).elements(), gradient)));
    }
  }

  // Replaces the shard by that of the next generation.
  absl::Status Continue(int64_t first_step) {
    shard_->Retire();
    plan_.set_generation(plan_.generation() + 1);
    plan_.set_first_step(first_step);
    auto next = ParameterShard::Continue(
        std::make_shared<v1::JobPlan>(plan_), std::move(shard_),
        *budget_.Reserve(ParameterShard::BytesNeeded(plan_, kFirstShard), absl::ZeroDuration()));
    if (!next.ok()) return next.status();
    shard_ = *std::move(next);
    output_ = FakeOutput();
    shard_->set_output(&output_);
    return absl::OkStatus();
  }

  std::vector<Values> AllValues() const {
    std::vector<Values> all;
    for (int chunk = 0; chunk < plan_.chunks_size(); ++chunk) all.push_back(ValuesOf(chunk));
    return all;
  }
};

TEST_F(ContinuedShardTest, ContinuesAtTheLastStepThatAllChunksHave) {
  Make(Options());
  shard_->Start(10);
  PushSteps(0, 10);
  const std::vector<Values> undisturbed = AllValues();

  Make(Options());
  shard_->Start(10);
  PushSteps(0, 5);
  PushStep(5, 0);  // chunk 0 is at version 6, chunk 1 has half of its pushes
  ASSERT_TRUE(Push(5, 1, 0, Values(plan_.chunks(1).elements(), 7)));
  EXPECT_EQ(shard_->held_versions().oldest, 5);
  EXPECT_EQ(shard_->held_versions().newest, 5);
  ASSERT_TRUE(Continue(5).ok());
  EXPECT_EQ(shard_->lowest_version(), 5);
  shard_->Start(10);
  PushSteps(5, 7);
  ASSERT_TRUE(Continue(6).ok()) << "a second loss: both chunks step back";
  EXPECT_EQ(shard_->held_versions().oldest, 6) << "the version before is unknown";
  shard_->Start(10);
  PushSteps(6, 10);

  EXPECT_EQ(AllValues(), undisturbed);
}

TEST_F(ContinuedShardTest, ServesItsFirstVersionToANewWorker) {
  Make(Options());
  shard_->Start(10);
  PushSteps(0, 3);
  const Values version2 = [&] {
    EXPECT_EQ(shard_->Fetch(FetchHeader(plan_, 2, 0, 0)), RefusalReason::kNone);
    return output_.sent.back().payload;
  }();
  plan_.mutable_workers()->RemoveLast();  // only one is left
  plan_.mutable_workers(0)->set_samples(2);
  ASSERT_TRUE(Continue(2).ok());
  EXPECT_EQ(shard_->Fetch(FetchHeader(plan_, 2, 0, 0)), RefusalReason::kNone);
  EXPECT_EQ(output_.sent.back().payload, version2);
  EXPECT_EQ(shard_->Fetch(FetchHeader(plan_, 1, 0, 0)), RefusalReason::kWrongStep);
}

TEST_F(ContinuedShardTest, LossScaleStepsBackToo) {
  TestPlanOptions options{.parameters = {4}, .workers = 1};
  options.optimizer.mutable_adam()->set_learning_rate(1);
  options.precision = v1::FP16;
  Make(options);
  shard_->Start(10);
  ASSERT_TRUE(Push(0, 0, 0, Values(4, 0.5f)));
  const float scale = output_.sent.back().header.loss_scale;
  const Values version1 = ValuesOf(0);
  ASSERT_TRUE(Push(1, 0, 0, Values(4, std::numeric_limits<float>::infinity())));
  ASSERT_EQ(output_.sent.back().header.loss_scale, scale / 2);
  ASSERT_TRUE(Continue(1).ok());
  shard_->Start(10);
  EXPECT_EQ(shard_->Fetch(FetchHeader(plan_, 1, 0, 0)), RefusalReason::kNone);
  EXPECT_EQ(output_.sent.back().header.loss_scale, scale);
  EXPECT_EQ(output_.sent.back().payload, version1);
}

// The snapshots are equal whether the version is a chunk's current one or the one before.
TEST_F(ContinuedShardTest, SnapshotOfAHeldVersionEqualsOneTakenAtThatStep) {
  TestPlanOptions options = Options();
  options.precision = v1::FP16;  // with a loss scale
  std::vector<std::shared_ptr<const ShardSnapshot>> taken;
  const auto same = [](const ShardSnapshot& a, const ShardSnapshot& b) {
    return std::ranges::equal(a.pieces, b.pieces, [](const auto& x, const auto& y) {
      return x.chunk == y.chunk && x.slot == y.slot && std::ranges::equal(x.elements, y.elements);
    });
  };
  for (const int64_t version : {4, 5}) {
    SCOPED_TRACE(version);
    Make(options);
    shard_->Start(10);
    shard_->TakeSnapshot(7, version);
    PushSteps(0, 5);
    ASSERT_EQ(output_.snapshots.size(), 1);
    const ShardSnapshot& before = *output_.snapshots[0];
    shard_->Retire();
    const auto held = shard_->SnapshotOfHeld(9, version);
    ASSERT_NE(held, nullptr);
    EXPECT_EQ(held->id, 9);
    EXPECT_EQ(held->step, version);
    EXPECT_TRUE(same(*held, before));
    EXPECT_FALSE(same(*held, *shard_->SnapshotOfHeld(9, 9 - version)));
    EXPECT_EQ(held->update_state.SerializeAsString(), before.update_state.SerializeAsString());
    EXPECT_EQ(shard_->SnapshotOfHeld(9, 3), nullptr);
    EXPECT_EQ(shard_->SnapshotOfHeld(9, 6), nullptr);
  }
}

TEST_F(ContinuedShardTest, SnapshotOfChunksOneStepApartIsAtTheirCommonStep) {
  Make(Options());
  shard_->Start(10);
  PushSteps(0, 5);
  const std::vector<Values> version5 = AllValues();
  PushStep(5, 0);
  ASSERT_NE(ValuesOf(0), version5[0]);
  shard_->Retire();
  const auto held = shard_->SnapshotOfHeld(9, 5);
  ASSERT_NE(held, nullptr);
  ASSERT_EQ(version5.size(), 3);
  EXPECT_EQ(Concatenated(*held, 0), Joined(Joined(version5[0], version5[1]), version5[2]));
}

TEST_F(ContinuedShardTest, RefusesToContinueWithoutTheVersion) {
  Make(Options());
  shard_->Start(10);
  PushSteps(0, 5);
  EXPECT_EQ(ReasonOf(Continue(3)), "SHARDS_NOT_HELD");
  Make(Options());
  plan_.mutable_chunks(0)->set_elements(3);
  plan_.mutable_chunks(1)->set_elements(301);
  const absl::Status other_chunks = Continue(0);
  EXPECT_EQ(ReasonOf(other_chunks), "SHARDS_NOT_HELD") << other_chunks;
}

TEST_F(ParameterShardTest, LowestVersionIsThatOfTheSlowestChunk) {
  Make({.parameters = {3, 4, 5}});
  shard_->Start(10);
  EXPECT_EQ(shard_->lowest_version(), 0);
  PushAll(0, 2);
  PushAll(0, 0);
  EXPECT_EQ(shard_->lowest_version(), 0);
  PushAll(0, 1);
  EXPECT_EQ(shard_->lowest_version(), 1);
  PushAll(1, 1);
  EXPECT_EQ(shard_->lowest_version(), 1);
  PushAll(1, 0);
  PushAll(1, 2);
  EXPECT_EQ(shard_->lowest_version(), 2);
}

// ---------------------------------------------------------------- snapshots

TEST_F(ParameterShardTest, SnapshotsKeepTheirStepWhileTrainingContinues) {
  TestPlanOptions options{.parameters = {3, 4}, .checkpoint_every = 2};
  options.optimizer.mutable_sgd()->set_momentum(0.5);
  Make(options);
  shard_->Start(3);
  std::map<int64_t, Values> at_step;
  for (int64_t step = 0; step < 3; ++step) {
    PushAll(step, 0);
    PushAll(step, 1);
    at_step[step + 1] = Joined(ValuesOf(0), ValuesOf(1));
  }
  ASSERT_EQ(output_.snapshots.size(), 1) << "the final snapshot waits for memory";
  EXPECT_EQ(output_.snapshots[0]->id, 0);
  EXPECT_EQ(output_.snapshots[0]->step, 2);
  EXPECT_EQ(Concatenated(*output_.snapshots[0], 0), at_step[2]);
  // Momentum 0.5 of a gradient that is always 0.5: 0.5, then 0.75.
  EXPECT_EQ(Concatenated(*output_.snapshots[0], 1), Values(7, 0.75f));
  shard_->SnapshotWritten(0, 2);
  ASSERT_EQ(output_.snapshots.size(), 2);
  EXPECT_EQ(output_.snapshots[1]->step, 3);
  EXPECT_EQ(Concatenated(*output_.snapshots[1], 0), at_step[3]);
}

// A deferred copy is made when the thread is idle, or before the next update of the chunk. Answers
// to the workers go first.
TEST_F(ParameterShardTest, DeferredCopiesKeepTheirStep) {
  TestPlanOptions options{.parameters = {3, 4, 5}, .checkpoint_every = 2};
  options.optimizer.mutable_sgd()->set_momentum(0.5);
  Make(options);
  shard_->DeferCopies();
  EXPECT_FALSE(shard_->CopyOne());
  shard_->Start(4);
  for (const int64_t step : {0, 1}) {
    for (const int chunk : {0, 1, 2}) PushAll(step, chunk);
  }
  const Values at_step_2 = Joined(Joined(ValuesOf(0), ValuesOf(1)), ValuesOf(2));
  EXPECT_TRUE(output_.snapshots.empty());
  EXPECT_EQ(output_.updates, 6);

  PushAll(2, 1);
  EXPECT_EQ(output_.updates, 7) << "no update waits";
  EXPECT_TRUE(shard_->CopyOne());
  EXPECT_TRUE(output_.snapshots.empty());
  EXPECT_TRUE(shard_->CopyOne());
  EXPECT_FALSE(shard_->CopyOne());

  ASSERT_EQ(output_.snapshots.size(), 1);
  EXPECT_EQ(output_.snapshots[0]->step, 2);
  EXPECT_EQ(Concatenated(*output_.snapshots[0], 0), at_step_2);
  EXPECT_EQ(Concatenated(*output_.snapshots[0], 1), Values(12, 0.75f));

  // The final snapshot has no update after it, and waits for memory.
  PushAll(2, 0);
  PushAll(2, 2);
  for (const int chunk : {0, 1, 2}) PushAll(3, chunk);
  EXPECT_FALSE(shard_->CopyOne());
  shard_->SnapshotWritten(0, 2);
  for (const int chunk : {0, 1, 2}) EXPECT_TRUE(shard_->CopyOne()) << chunk;
  ASSERT_EQ(output_.snapshots.size(), 2);
  EXPECT_EQ(output_.snapshots[1]->step, 4);
}

TEST_F(ParameterShardTest, UnwrittenSnapshotDelaysOnlyUpdatesBeyondTheNextDueStep) {
  Make({.checkpoint_every = 2});
  shard_->Start(100);
  for (int64_t step = 0; step < 5; ++step) PushAll(step, 0);
  EXPECT_EQ(output_.updates, 4) << "version 4 is due and not held yet";
  EXPECT_EQ(output_.snapshots.size(), 1);
  shard_->SnapshotWritten(0, 2);
  EXPECT_EQ(output_.updates, 5);
  ASSERT_EQ(output_.snapshots.size(), 2);
  EXPECT_EQ(output_.snapshots[1]->step, 4);
}

TEST_F(ParameterShardTest, SlowWriteCausesTheNextDueSnapshotToBePassedOver) {
  constexpr auto kLong = ParameterShard::kWriteHoldsUpMax;
  Make({.checkpoint_every = 2});
  shard_->Start(100);
  for (const int64_t step : {0, 1}) PushAll(step, 0);
  TurnAfter(kLong);
  for (const int64_t step : {2, 3, 4}) PushAll(step, 0);
  TurnAfter(kLong - std::chrono::nanoseconds(1));
  ASSERT_EQ(output_.updates, 4);
  TurnAfter(std::chrono::nanoseconds(1));
  EXPECT_EQ(output_.updates, 5);
  TurnAfter(kLong);  // no update waits
  ASSERT_EQ(output_.declined.size(), 1);
  EXPECT_EQ(output_.declined[0].id, 0);
  EXPECT_EQ(output_.declined[0].step, 4);
  EXPECT_EQ(output_.declined[0].outcome, v1::SNAPSHOT_MISSED);
  shard_->SnapshotWritten(0, 2);
  PushAll(5, 0);
  ASSERT_EQ(output_.snapshots.size(), 2);
  EXPECT_EQ(output_.snapshots[1]->step, 6);
  for (const int64_t step : {6, 7, 8}) PushAll(step, 0);
  TurnAfter(kLong);
  EXPECT_EQ(output_.updates, 8) << "this write has a time limit of its own";
  TurnAfter(kLong);
  EXPECT_EQ(output_.updates, 9);
}

TEST_F(ParameterShardTest, RequestedSnapshotDelaysUpdatesNoLongerThanAPeriodicOne) {
  Make({.checkpoint_every = 4});
  shard_->Start(100);
  for (const int64_t step : {0, 1, 2, 3}) PushAll(step, 0);
  TurnAfter({});
  shard_->TakeSnapshot(7, 6);
  for (const int64_t step : {4, 5, 6}) PushAll(step, 0);
  ASSERT_EQ(output_.updates, 6);
  TurnAfter(ParameterShard::kWriteHoldsUpMax);
  EXPECT_EQ(output_.updates, 7);
  ASSERT_EQ(output_.declined.size(), 1);
  EXPECT_EQ(output_.declined[0].id, 7);
  EXPECT_EQ(output_.declined[0].step, 6);
  EXPECT_EQ(output_.declined[0].outcome, v1::SNAPSHOT_MISSED);
  shard_->TakeSnapshot(7, 6);  // a repeated directive
  shard_->TakeSnapshot(8, 8);
  for (const int64_t step : {7, 8}) PushAll(step, 0);
  TurnAfter({});
  EXPECT_EQ(output_.updates, 9) << "the periodic snapshot of that step is passed over as well";
  ASSERT_EQ(output_.declined.size(), 3);
  EXPECT_EQ(output_.declined[1].id, 8);
  EXPECT_EQ(output_.declined[2].id, 0);
}

// A job that is suspended waits for the checkpoint of the step at which its workers have paused.
TEST_F(ParameterShardTest, NoSnapshotIsPassedOverIfNoUpdateWaits) {
  Make({.checkpoint_every = 2});
  shard_->Start(100);
  for (const int64_t step : {0, 1, 2, 3}) PushAll(step, 0);
  shard_->TakeSnapshot(7, 4);
  ASSERT_TRUE(Push(4, 0, /*rank=*/1, Values(7, 0.25f)));
  TurnAfter({});
  TurnAfter(2 * ParameterShard::kWriteHoldsUpMax);
  EXPECT_TRUE(output_.declined.empty());
  shard_->SnapshotWritten(0, 2);
  shard_->SnapshotWritten(7, 4);
  ASSERT_EQ(output_.snapshots.size(), 3);
  EXPECT_EQ(output_.snapshots[1]->id, 7);
  EXPECT_EQ(output_.snapshots[2]->step, 4);
}

TEST_F(ParameterShardTest, RequestedSnapshotIsTakenWhenEveryChunkReachesItsStep) {
  Make({.parameters = {3, 4}});
  shard_->Start(10);
  shard_->TakeSnapshot(5, 1);
  PushAll(0, 0);
  EXPECT_TRUE(output_.snapshots.empty());
  const Values first = ValuesOf(0);
  PushAll(1, 0);
  PushAll(0, 1);
  ASSERT_EQ(output_.snapshots.size(), 1);
  EXPECT_EQ(output_.snapshots[0]->id, 5);
  EXPECT_EQ(Concatenated(*output_.snapshots[0], 0), Joined(first, ValuesOf(1)));
  shard_->TakeSnapshot(5, 1);
  shard_->SnapshotWritten(5, 1);
  shard_->TakeSnapshot(5, 1);
  EXPECT_EQ(output_.snapshots.size(), 1) << "a repeated directive";
  EXPECT_TRUE(output_.declined.empty());
}

TEST_F(ParameterShardTest, SnapshotOfAPassedStepIsMissed) {
  Make({.parameters = {3, 4}});
  shard_->Start(10);
  PushAll(0, 0);
  shard_->TakeSnapshot(5, 0);
  ASSERT_EQ(output_.declined.size(), 1);
  EXPECT_EQ(output_.declined[0].outcome, v1::SNAPSHOT_MISSED);
  shard_->TakeSnapshot(6, 1);
  PushAll(0, 1);
  ASSERT_EQ(output_.snapshots.size(), 1);
  EXPECT_EQ(output_.snapshots[0]->id, 6);
}

TEST_F(ParameterShardTest, SnapshotOfTheCurrentStepIsTakenAtOnce) {
  Make({.parameters = {3, 4}});
  shard_->Start(10);
  shard_->TakeSnapshot(9, 0);
  ASSERT_EQ(output_.snapshots.size(), 1);
  EXPECT_EQ(output_.snapshots[0]->step, 0);
}

TEST_F(ParameterShardTest, NewRequestSupersedesAWaitingOne) {
  Make({.checkpoint_every = 1});
  shard_->Start(10);
  PushAll(0, 0);  // the snapshot of step 1 is not written
  shard_->TakeSnapshot(5, 1);
  shard_->TakeSnapshot(6, 2);
  PushAll(1, 0);
  EXPECT_EQ(output_.updates, 2) << "no snapshot waits for step 5";
  shard_->SnapshotWritten(0, 1);
  shard_->SnapshotWritten(6, 2);
  ASSERT_EQ(output_.snapshots.size(), 3);
  EXPECT_EQ(output_.snapshots[1]->id, 6);
  EXPECT_EQ(output_.snapshots[2]->id, 0);
}

TEST_F(ParameterShardTest, JobResumedAtItsEndStillTakesItsFinalSnapshot) {
  Make({.first_step = 10});
  shard_->Start(10);
  ASSERT_EQ(output_.snapshots.size(), 1);
  EXPECT_EQ(output_.snapshots[0]->step, 10);
}

TEST_F(ParameterShardTest, ShardWithoutChunksTakesEmptySnapshots) {
  Make({.parameters = {3}, .shards = 2}, ShardIndex(1));
  shard_->Start(10);
  shard_->TakeSnapshot(3, 4);
  ASSERT_EQ(output_.snapshots.size(), 1);
  EXPECT_TRUE(output_.snapshots[0]->pieces.empty());
  EXPECT_EQ(shard_->lowest_version(), INT64_MAX);
}

// ---------------------------------------------------------------- restore

v1::ShardSlice SliceOf(int chunk, int slot, int64_t offset, const Values& values) {
  v1::ShardSlice slice;
  slice.set_chunk(chunk);
  slice.set_slot(slot);
  slice.set_offset_bytes(offset);
  slice.set_data(values.data(), values.size() * sizeof(float));
  slice.set_crc32c(
      Crc32c({reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(float)}));
  return slice;
}

TEST_F(ParameterShardTest, RestoresValuesAndSlotsFromSlices) {
  TestPlanOptions options{.parameters = {4}, .workers = 1, .first_step = 8};
  options.optimizer.mutable_sgd()->set_momentum(0.5);
  Make(options);
  shard_->BeginRestore();
  ASSERT_TRUE(shard_->RestoreSlice(SliceOf(0, 0, 0, {1, 2})).ok());
  shard_->BeginRestore();  // the first attempt was abandoned
  ASSERT_TRUE(shard_->RestoreSlice(SliceOf(0, 0, 0, {1, 2})).ok());
  ASSERT_TRUE(shard_->RestoreSlice(SliceOf(0, 1, 0, {4, 4, 4, 4})).ok());
  EXPECT_TRUE(absl::IsDataLoss(shard_->FinishRestore()));
  ASSERT_TRUE(shard_->RestoreSlice(SliceOf(0, 0, 8, {3, 4})).ok());
  EXPECT_TRUE(shard_->FinishRestore().ok());
  shard_->Start(9);
  ASSERT_TRUE(Push(8, 0, 0, Values(4, 0.0f)));
  EXPECT_EQ(ValuesOf(0), (Values{0, 1, 2, 3})) << "minus 0.5 times half of the momentum 4";
}

TEST_F(ParameterShardTest, RestoresTheUpdateCountAndTheLossScale) {
  TestPlanOptions options{.parameters = {4}, .workers = 1, .first_step = 8};
  options.optimizer.mutable_adam()->set_learning_rate(1);
  options.precision = v1::FP16;
  Make(options);
  v1::ShardSlice slice = SliceOf(0, 0, 0, {0, 0, 0, 0});
  slice.mutable_update_state()->set_updates(0);
  slice.mutable_update_state()->set_loss_scale(128);
  slice.mutable_update_state()->set_clean_steps(1999);
  ASSERT_TRUE(shard_->RestoreSlice(slice).ok());
  shard_->Start(20);
  EXPECT_EQ(shard_->Fetch(FetchHeader(plan_, 8, 0, 0)), RefusalReason::kNone);
  EXPECT_EQ(output_.sent.back().header.loss_scale, 128);

  ASSERT_TRUE(Push(8, 0, 0, Values(4, 0.5f)));

  EXPECT_EQ(output_.sent.back().header.loss_scale, 256) << "its 2000th clean step";
  EXPECT_NEAR(ValuesOf(0)[0], -1, 1e-6) << "Adam's first step is the learning rate";
  slice.mutable_update_state()->set_updates(8 * 1024 + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(shard_->RestoreSlice(SliceOf(0, 0, 0, {1}))));
  Make(options);
  EXPECT_TRUE(absl::IsInvalidArgument(shard_->RestoreSlice(slice)))
      << "more than the largest number of workers can make in 8 steps";
  slice.mutable_update_state()->set_updates(8);
  slice.mutable_update_state()->set_loss_scale(0.25);
  Make(options);
  EXPECT_TRUE(absl::IsInvalidArgument(shard_->RestoreSlice(slice)));
}

TEST_F(ParameterShardTest, ClippingByValueNeedsNoVerdict) {
  plan_ = MakeTestPlan({.parameters = {4, 4}});
  plan_.mutable_spec()->mutable_training()->mutable_clip()->set_value(0.25);
  shard_ = *ParameterShard::Create(std::make_shared<v1::JobPlan>(plan_), kFirstShard,
                                   *budget_.Reserve(1 << 20, absl::ZeroDuration()));
  shard_->set_output(&output_);
  shard_->Start(10);
  for (int rank : {0, 1}) ASSERT_TRUE(Push(0, 0, rank, {1, -1, 0.1f, 0}));
  EXPECT_EQ(ValuesOf(0), (Values{-0.125f, 0.125f, -0.1f, 0}));
  EXPECT_EQ(output_.updates, 1) << "the chunk does not wait for the other one";
  EXPECT_TRUE(output_.verdicts.empty());
}

TEST_F(ParameterShardTest, ShardOtherThanTheFirstReportsAndWaitsForTheVerdict) {
  Make({.parameters = {5, 4}, .shards = 2, .clip_norm = 1e9}, ShardIndex(1));
  shard_->Start(10);
  int chunk = 0;
  while (plan_.chunks(chunk).shard() != 1) ++chunk;
  ASSERT_EQ(shard_->chunk_count(), 1);
  PushAll(0, chunk);
  EXPECT_EQ(output_.updates, 0);
  ASSERT_EQ(output_.to_shards.size(), 1);
  const SentToShard& squares = output_.to_shards[0];
  EXPECT_EQ(squares.shard, kFirstShard);
  EXPECT_EQ(squares.header.kind, MessageKind::kSquares);
  EXPECT_EQ(squares.header.rank, 1);
  ASSERT_EQ(squares.payload.size(), 8);
  double sum = 0;
  std::memcpy(&sum, squares.payload.data(), 8);
  EXPECT_EQ(sum, 0.25 * static_cast<double>(plan_.chunks(chunk).elements()));

  WireHeader verdict = squares.header;
  verdict.kind = MessageKind::kVerdict;
  verdict.step = 1;
  EXPECT_EQ(shard_->DecisionArrived(verdict, {}), RefusalReason::kWrongStep);
  verdict.step = 0;
  verdict.scalar = 3;
  EXPECT_EQ(shard_->DecisionArrived(verdict, {}), RefusalReason::kNone);
  EXPECT_EQ(output_.updates, 1);
  EXPECT_EQ(shard_->DecisionArrived(verdict, {}), RefusalReason::kWrongStep) << "a repeat";
}

TEST_F(ParameterShardTest, UnwrittenSnapshotDelaysAJudgedStep) {
  Make({.checkpoint_every = 2, .clip_norm = 1e9});
  shard_->Start(100);
  for (int64_t step = 0; step < 5; ++step) PushAll(step, 0);
  EXPECT_EQ(output_.updates, 4);
  EXPECT_EQ(output_.verdicts.size(), 5);
  shard_->SnapshotWritten(0, 2);
  EXPECT_EQ(output_.updates, 5);
  ASSERT_EQ(output_.snapshots.size(), 2);
  EXPECT_EQ(output_.snapshots[1]->update_state.updates(), 4);
}

TEST_F(ParameterShardTest, RefusesDamagedSlicesAndThoseOfOtherShards) {
  Make({.parameters = {4}});
  shard_->BeginRestore();
  v1::ShardSlice damaged = SliceOf(0, 0, 0, {1, 2});
  (*damaged.mutable_data())[3] ^= 1;
  EXPECT_TRUE(absl::IsDataLoss(shard_->RestoreSlice(damaged)));
  for (const v1::ShardSlice& slice :
       {SliceOf(1, 0, 0, {1}), SliceOf(-1, 0, 0, {1}), SliceOf(0, 1, 0, {1}),
        SliceOf(0, -1, 0, {1}), SliceOf(0, 0, 4, {1}), SliceOf(0, 0, -4, {1}),
        SliceOf(0, 0, 0, {1, 2, 3, 4, 5})}) {
    EXPECT_TRUE(absl::IsInvalidArgument(shard_->RestoreSlice(slice))) << slice.ShortDebugString();
  }
}

// ---------------------------------------------------------------- consistency modes

TEST_F(ParameterShardTest, AsynchronousPushesMoveAsFarAsOneSynchronousStep) {
  Make({.parameters = {4}, .workers = 3});
  std::vector<Values> values;
  for (v1::SyncMode mode : {v1::BSP, v1::ASP}) {
    plan_.mutable_spec()->mutable_sync()->set_mode(mode);
    for (int rank = 0; rank < 3; ++rank) plan_.mutable_workers(rank)->set_samples(rank + 1);
    MakeShard();
    shard_->Start(10);
    for (int rank : {2, 0, 1}) ASSERT_TRUE(Push(0, 0, rank, Values(4, 0.125f * (rank + 1))));
    values.push_back(ValuesOf(0));
  }
  for (int e = 0; e < 4; ++e) EXPECT_NEAR(values[0][e], values[1][e], 1e-6);
}

TEST_F(ParameterShardTest, AsynchronousPushIsAnsweredOnlyToItsRank) {
  Make({.sync = SyncOf(v1::ASP)});
  shard_->Start(10);
  const Values before = ValuesOf(0);
  ASSERT_TRUE(Push(0, 0, 1, Values(7, 0.25f)));
  ASSERT_EQ(output_.sent.size(), 1);
  EXPECT_EQ(output_.sent[0].rank, Rank(1));
  EXPECT_EQ(output_.sent[0].header.step, 1);
  EXPECT_EQ(output_.sent[0].payload, Plus(before, -0.125f)) << "twice the gradient, half the rate";
  EXPECT_EQ(output_.sent[0].header.scalar, 7 * 0.25) << "as if all ranks had pushed this gradient";
  EXPECT_EQ(shard_->lowest_version(), 0);
  ASSERT_TRUE(Push(1, 0, 1, Values(7, 0.25f)));
  ASSERT_TRUE(Push(0, 0, 0, Values(7, 0.25f)));
  EXPECT_EQ(output_.sent.back().rank, Rank(0));
  EXPECT_EQ(output_.sent.back().header.step, 1);
  EXPECT_EQ(output_.sent.back().payload, Plus(before, -0.375f)) << "the newest value";
  EXPECT_EQ(shard_->lowest_version(), 1);
}

TEST_F(ParameterShardTest, StaleGradientMayCountLess) {
  v1::SyncSpec sync = SyncOf(v1::ASP);
  sync.set_staleness_aware(true);
  Make({.sync = sync});
  shard_->Start(10);
  for (int64_t step : {0, 1, 2}) ASSERT_TRUE(Push(step, 0, 0, Values(7, 0.0f)));
  const Values before = ValuesOf(0);
  ASSERT_TRUE(Push(0, 0, 1, Values(7, 1.0f)));
  EXPECT_EQ(ValuesOf(0), Plus(before, -0.25f)) << "three updates of two ranks: one step stale";
  EXPECT_EQ(output_.stalenesses, (std::vector<int64_t>{0, 0, 0, 1}));
}

TEST_F(ParameterShardTest, AsynchronousStatisticsMoveByTheRanksShareOfTheBatch) {
  Make({.parameters = {3}, .sync = SyncOf(v1::ASP)});
  plan_.mutable_graph()->mutable_parameters(0)->set_statistic_momentum(0.5);
  plan_.mutable_graph()->mutable_parameters(0)->mutable_initializer()->set_constant(2);
  MakeShard();
  shard_->Start(10);
  ASSERT_TRUE(Push(0, 0, 1, Values(3, 3.0f)));  // a mean of 6 over half the batch
  EXPECT_EQ(ValuesOf(0), Values(3, 3.0f)) << "2 + 0.25 (6 - 2)";
}

TEST_F(ParameterShardTest, SnapshotOfAnAsynchronousJobIsAnExactCut) {
  TestPlanOptions options{.checkpoint_every = 2, .sync = SyncOf(v1::ASP)};
  options.optimizer = TestPlanOptions::PlainSgd(1);
  Make(options);
  plan_.mutable_graph()->mutable_parameters(0)->mutable_initializer()->set_constant(0);
  MakeShard();
  shard_->Start(100);
  for (int64_t step : {0, 1}) ASSERT_TRUE(Push(step, 0, 0, Values(7, 1.0f)));
  ASSERT_TRUE(Push(2, 0, 0, Values(7, 64.0f)));
  EXPECT_EQ(output_.updates, 2) << "step 2 is not part of the snapshot";
  for (int64_t step : {0, 1}) ASSERT_TRUE(Push(step, 0, 1, Values(7, 1.0f)));
  ASSERT_EQ(output_.snapshots.size(), 1);
  EXPECT_EQ(output_.snapshots[0]->step, 2);
  EXPECT_EQ(output_.snapshots[0]->update_state.updates(), 4);
  EXPECT_EQ(Concatenated(*output_.snapshots[0], 0), Values(7, -4));
  EXPECT_EQ(output_.updates, 5) << "training continues after the snapshot";
  shard_->TakeSnapshot(1, 2);
  ASSERT_EQ(output_.declined.size(), 1) << "rank 0 is beyond the step";
  EXPECT_EQ(output_.declined[0].outcome, v1::SNAPSHOT_MISSED);
}

TEST_F(ParameterShardTest, UpdateThatWaitsForASlowWorkerIsNotDelayedByTheWrite) {
  Make({.parameters = {7, 7}, .checkpoint_every = 2, .sync = SyncOf(v1::ASP)});
  const Values gradient(7, 0.25f);
  shard_->Start(100);
  for (const int64_t step : {0, 1, 2, 3}) {
    for (const int chunk : {0, 1}) {
      ASSERT_TRUE(Push(step, chunk, /*rank=*/0, gradient));
      const bool is_late = step == 3 && chunk == 0;
      ASSERT_TRUE(is_late || Push(step, chunk, /*rank=*/1, gradient));
    }
  }
  ASSERT_TRUE(Push(4, 0, 0, gradient));
  const int updates = output_.updates;
  TurnAfter({});
  TurnAfter(ParameterShard::kWriteHoldsUpMax);
  EXPECT_TRUE(output_.declined.empty()) << "chunk 0 lacks step 3 of rank 1";
  EXPECT_EQ(output_.updates, updates);
  ASSERT_TRUE(Push(3, 0, 1, gradient));
  TurnAfter({});
  ASSERT_EQ(output_.declined.size(), 1);
  EXPECT_EQ(output_.declined[0].step, 4);
  EXPECT_EQ(output_.updates, updates + 2);
}

TEST_F(ParameterShardTest, LocalSgdAveragesValuesAndSlotsAndAppliesNothing) {
  v1::SyncSpec sync = SyncOf(v1::LOCAL_SGD);
  sync.set_every(4);
  TestPlanOptions options{.parameters = {3}, .checkpoint_every = 8, .sync = sync};
  options.optimizer.mutable_sgd()->set_momentum(0.5);
  Make(options);
  ASSERT_EQ(plan_.chunks_size(), 2) << "one chunk is for the momentum";
  EXPECT_EQ(ValuesOf(1), Values(3, 0.0f));
  shard_->Start(10);
  for (int64_t version : {0, 4, 8}) {
    for (int chunk : {0, 1}) {
      for (int rank : {0, 1}) ASSERT_TRUE(Push(version, chunk, rank, Values(3, 0.5f + chunk)));
      EXPECT_EQ(ValuesOf(chunk), Values(3, 1.0f + 2 * chunk));
      EXPECT_EQ(output_.sent.back().header.step, std::min<int64_t>(version + 4, 10));
      EXPECT_EQ(output_.sent.back().header.scalar, 0);
    }
  }
  EXPECT_EQ(shard_->lowest_version(), 10);
  ASSERT_EQ(output_.snapshots.size(), 1);
  EXPECT_EQ(output_.snapshots[0]->step, 8);
  EXPECT_EQ(output_.snapshots[0]->update_state.updates(), 8);
  ASSERT_EQ(output_.snapshots[0]->pieces.size(), 2);
  for (int chunk : {0, 1}) {
    EXPECT_EQ(output_.snapshots[0]->pieces[chunk].chunk, ChunkId(chunk));
    EXPECT_EQ(output_.snapshots[0]->pieces[chunk].slot, chunk);
  }
}

TEST_F(ParameterShardTest, SnapshotBetweenTwoAveragesIsMissed) {
  v1::SyncSpec sync = SyncOf(v1::LOCAL_SGD);
  sync.set_every(4);
  Make({.sync = sync});
  shard_->Start(10);
  shard_->TakeSnapshot(1, 6);
  ASSERT_EQ(output_.declined.size(), 1);
  EXPECT_EQ(output_.declined[0].outcome, v1::SNAPSHOT_MISSED);
}

TEST_F(ParameterShardTest, StepWithBackupWorkersIsScaledToTheWholeBatch) {
  v1::SyncSpec sync = SyncOf(v1::BSP);
  sync.set_backup_workers(1);
  for (double clip_norm : {0.0, 1e9}) {  // judged or not
    Make({.parameters = {4}, .workers = 3, .clip_norm = clip_norm, .sync = sync});
    plan_.mutable_workers(1)->set_samples(2);
    MakeShard();
    shard_->Start(10);
    output_.sent.clear();
    const Values before = ValuesOf(0);
    ASSERT_TRUE(Push(0, 0, 2, Values(4, 0.5f)));
    ASSERT_TRUE(Push(0, 0, 0, Values(4, 0.5f)));
    EXPECT_EQ(ValuesOf(0), Plus(before, -1)) << "the sum of 1 covers half of the batch";
    ASSERT_EQ(output_.sent.size(), 2) << "rank 1 is owed no answer";
    EXPECT_EQ(output_.sent[0].header.scalar, 4 * 4);
    EXPECT_FALSE(Push(0, 0, 1, Values(4, 0.5f)));
    EXPECT_EQ(shard_->late_pushes(), 1);
    shard_->AnswerRepeat(PushHeader(plan_, 0, 0, 1));
    EXPECT_EQ(output_.sent.back().rank, Rank(1));
    EXPECT_EQ(output_.sent.back().header.step, 1);
  }
}

// The value for one worker stays unsent, because the worker is stopped or its link is slow.
TEST_F(ParameterShardTest, StalledWorkerDoesNotStopTheOthers) {
  v1::SyncSpec backup = SyncOf(v1::BSP);
  backup.set_backup_workers(1);
  for (const v1::SyncSpec& sync : {backup, SyncOf(v1::ASP)}) {
    for (const v1::WireValues wire : {v1::VALUES_FP32, v1::VALUES_BF16}) {
      TestPlanOptions options{.parameters = {4}, .workers = 3, .sync = sync};
      options.sync.set_values(wire);
      Make(options);
      shard_->Start(100);
      output_.hold_sends = true;
      for (int rank : {2, 0, 1}) Push(0, 0, rank, Values(4, 0.0f));
      auto held = std::exchange(output_.held, {});
      ASSERT_EQ(held.size(), output_.sent.size());
      Transport::SendDone stuck;
      for (size_t i = 0; i < held.size(); ++i) {
        if (output_.sent[i].rank == Rank(2)) {
          stuck = std::move(held[i]);
        } else {
          held[i](absl::OkStatus());
        }
      }
      ASSERT_TRUE(stuck);
      output_.hold_sends = false;
      const int updates = output_.updates;
      for (int64_t step = 1; step < 10; ++step) {
        for (int rank : {0, 1}) ASSERT_TRUE(Push(step, 0, rank, Values(4, 0.0f)));
      }
      EXPECT_EQ(output_.updates - updates, sync.mode() == v1::ASP ? 18 : 9);
      stuck(absl::OkStatus());
    }
  }
}

TEST_F(ParameterShardTest, FrozenParametersAreServedAndSavedAndNeverChange) {
  Make({.parameters = {3, 4}, .frozen = {1}, .checkpoint_every = 2});
  shard_->Start(10);
  const Values frozen = ValuesOf(1);
  EXPECT_EQ(RefusalOf(PushHeader(plan_, 0, 1, 0)), RefusalReason::kWrongChunk);
  for (int64_t step : {0, 1}) PushAll(step, 0);
  EXPECT_EQ(shard_->lowest_version(), 2);
  EXPECT_EQ(shard_->Fetch(FetchHeader(plan_, 2, 1, 0)), RefusalReason::kNone);
  EXPECT_EQ(output_.sent.back().payload, frozen);
  EXPECT_EQ(output_.sent.back().header.step, 2);
  ASSERT_EQ(output_.snapshots.size(), 1);
  EXPECT_EQ(Concatenated(*output_.snapshots[0], 0), Joined(ValuesOf(0), frozen));
}

// A frozen chunk has no update that forces its copy, so later steps may be judged before it is
// copied.
TEST_F(ParameterShardTest, LateCopyOfFrozenParametersHasTheStateOfItsStep) {
  std::vector<std::string> states;
  for (const bool late : {false, true}) {
    Make({.parameters = {3, 4}, .frozen = {1}, .workers = 1, .precision = v1::FP16});
    if (late) shard_->DeferCopies();
    shard_->Start(100);
    shard_->TakeSnapshot(5, 2);
    for (const int64_t step : {0, 1, 2, 3, 4, 5}) {
      const float gradient = step == 2 ? std::numeric_limits<float>::infinity() : 0.25f;
      ASSERT_TRUE(Push(step, 0, 0, Values(3, gradient)));
    }
    EXPECT_EQ(shard_->lowest_version(), 6);
    if (late) {
      EXPECT_TRUE(output_.snapshots.empty());
      while (shard_->CopyOne()) continue;
    }
    ASSERT_EQ(output_.snapshots.size(), 1);
    EXPECT_EQ(output_.snapshots[0]->step, 2);
    EXPECT_EQ(output_.snapshots[0]->update_state.updates(), 2);
    states.push_back(output_.snapshots[0]->update_state.SerializeAsString());
  }
  EXPECT_EQ(states[0], states[1]);
}

TEST_F(ParameterShardTest, ShardOfFrozenParametersTakesEverySnapshotAtOnce) {
  Make({.parameters = {3, 4}, .frozen = {0}, .shards = 2, .checkpoint_every = 6}, ShardIndex(1));
  EXPECT_EQ(shard_->lowest_version(), INT64_MAX);
  shard_->Start(10);
  shard_->SnapshotWritten(0, 6);
  shard_->SnapshotWritten(0, 10);
  ASSERT_EQ(output_.snapshots.size(), 2);
  EXPECT_EQ(output_.snapshots[1]->step, 10);
}

// ---------------------------------------------------------------- payloads

// Counts the payloads that were lent and those that were returned.
class LendingTransport : public Transport {
 public:
  PayloadLease Lend() {
    ++lent;
    return PayloadLease(this, 0);
  }
  int lent = 0;

  void SetReceiver(MessageReceiver*) override {}
  std::string address() const override { return ""; }
  std::string name() const override { return "lending"; }
  void OpenSession(uint64_t, uint32_t, const SessionToken&) override {}
  void CloseSession(uint64_t, uint32_t) override {}
  absl::StatusOr<PeerId> Connect(absl::string_view, const LinkCredentials&) override {
    return PeerId::kNone;
  }
  void Disconnect(PeerId) override {}
  void Send(PeerId, const WireHeader&, absl::Span<const std::byte>, SendDone) override {}
  absl::StatusOr<std::unique_ptr<MemoryRegistration>> RegisterMemory(
      absl::Span<std::byte>) override {
    return nullptr;
  }
  int Progress() override { return 0; }
  void Wait(absl::Duration) override {}
  void Wake() override {}

 private:
  void Return(uint64_t) override { --lent; }
};

absl::Span<const std::byte> BytesOf(const Values& values) {
  return {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(float)};
}

TEST_F(ParameterShardTest, GradientsAreReadInPlaceAndReturnedWithTheUpdate) {
  Make({});
  shard_->Start(10);
  LendingTransport transport;
  const Values before = ValuesOf(0), gradient(7, 0.25f);
  for (int rank : {0, 1}) {
    const WireHeader header = PushHeader(plan_, 0, 0, rank);
    EXPECT_TRUE(shard_->PlacePush(header).in_place);
    shard_->PushArrived(header, BytesOf(gradient), transport.Lend());
    EXPECT_EQ(transport.lent, 1 - rank);
  }
  EXPECT_EQ(ValuesOf(0), Plus(before, kUpdate));
}

TEST_F(ParameterShardTest, GradientsOfJudgedStepsAreReturnedWhenSummed) {
  Make({.parameters = {4, 3}, .clip_norm = 1e9});
  shard_->Start(10);
  LendingTransport transport;
  const Values gradient(4, 0.25f);
  for (int rank : {0, 1}) {
    const WireHeader header = PushHeader(plan_, 0, 0, rank);
    shard_->PlacePush(header);
    shard_->PushArrived(header, BytesOf(gradient), transport.Lend());
  }
  EXPECT_EQ(transport.lent, 0);
  EXPECT_EQ(output_.updates, 0) << "the other chunk is missing";
}

TEST_F(ParameterShardTest, RetiredShardReturnsLentGradients) {
  Make({});
  shard_->Start(10);
  LendingTransport transport;
  const Values gradient(7, 0.25f);
  const WireHeader header = PushHeader(plan_, 0, 0, 1), other = PushHeader(plan_, 0, 0, 0);
  shard_->PlacePush(header);
  shard_->PlacePush(other);
  shard_->PushArrived(header, BytesOf(gradient), transport.Lend());
  EXPECT_EQ(transport.lent, 1);
  shard_->Retire();
  EXPECT_EQ(transport.lent, 0);
  shard_->PushArrived(other, BytesOf(gradient), transport.Lend());
  EXPECT_EQ(transport.lent, 0);
  EXPECT_TRUE(shard_->idle());
}

class CodedPushesTest : public ParameterShardTest {
 protected:
  void MakeWith(v1::CompressionKind kind, v1::WireValues values) {
    TestPlanOptions options{.parameters = {640}, .chunk_bytes = 4096};
    options.sync.mutable_compression()->set_kind(kind);
    options.sync.set_values(values);
    Make(options);
    plan_.mutable_graph()->mutable_parameters(0)->clear_shape();  // a matrix
    for (int dimension : {20, 32})
      plan_.mutable_graph()->mutable_parameters(0)->add_shape(dimension);
    MakeShard();
    format_ = PushFormat(plan_, ChunkId(0));
  }

  WireHeader CodedHeader(int rank) const {
    WireHeader header = PushHeader(plan_, 0, 0, rank);
    header.dtype = format_.dtype;
    header.codec = format_.codec;
    header.length = format_.bytes;
    return header;
  }

  // Returns the gradient that the shard decodes from `payload`, which this function encodes.
  Values Pack(const Values& gradient, std::vector<std::byte>& payload) const {
    payload.resize(format_.bytes);
    ChunkEncoder::Create(format_, 1)->Encode(gradient, absl::MakeSpan(payload));
    Values unpacked(gradient.size());
    EXPECT_TRUE(Decode(format_, payload, absl::MakeSpan(unpacked)).ok());
    return unpacked;
  }

  WireFormat format_;
};

TEST_F(CodedPushesTest, GradientsAreDecodedBeforeTheyAreSummed) {
  for (v1::CompressionKind kind :
       {v1::COMPRESSION_FP16, v1::COMPRESSION_BF16, v1::COMPRESSION_INT8, v1::COMPRESSION_TOPK,
        v1::COMPRESSION_ONEBIT, v1::COMPRESSION_POWERSGD}) {
    for (double clip_norm : {0.0, 1e9}) {
      MakeWith(kind, v1::VALUES_FP32);
      if (clip_norm > 0) {
        plan_.mutable_spec()->mutable_training()->mutable_clip()->set_global_norm(clip_norm);
        MakeShard();
      }
      ASSERT_LT(format_.bytes, 640 * 4);
      shard_->Start(10);
      Values expected = ValuesOf(0);
      for (int rank : {0, 1}) {
        Values gradient;
        for (int i = 0; i < 640; ++i) gradient.push_back(std::sin(0.7f * i + rank));
        std::vector<std::byte> payload;
        const Values unpacked = Pack(gradient, payload);
        for (int i = 0; i < 640; ++i) expected[i] -= 0.5f * unpacked[i];
        const WireHeader header = CodedHeader(rank);
        const auto placement = shard_->PlacePush(header);
        ASSERT_EQ(placement.memory.size(), payload.size());
        EXPECT_EQ(placement.in_place, format_.codec == WireCodec::kRaw);
        std::memcpy(placement.memory.data(), payload.data(), payload.size());
        EXPECT_EQ(shard_->PushArrived(header, placement.memory, {}), RefusalReason::kNone);
      }
      for (int i = 0; i < 640; ++i) ASSERT_NEAR(ValuesOf(0)[i], expected[i], 1e-5) << kind;
    }
  }
}

TEST_F(CodedPushesTest, WrongFormatIsRefusedAndGarbageMayBePushedAgain) {
  MakeWith(v1::COMPRESSION_TOPK, v1::VALUES_FP32);
  shard_->Start(10);
  EXPECT_EQ(RefusalOf(PushHeader(plan_, 0, 0, 0)), RefusalReason::kBadHeader);
  WireHeader header = CodedHeader(0);
  ++header.length;
  EXPECT_EQ(RefusalOf(header), RefusalReason::kWrongLength);
  header = CodedHeader(0);
  auto placement = shard_->PlacePush(header);
  std::memset(placement.memory.data(), 0xff, placement.memory.size());
  EXPECT_EQ(shard_->PushArrived(header, placement.memory, {}), RefusalReason::kBadPayload);
  EXPECT_TRUE(shard_->idle());
  EXPECT_FALSE(shard_->PlacePush(header).memory.empty());
}

TEST_F(CodedPushesTest, ValuesAreSentInSixteenBitsAndKeptInThirtyTwo) {
  MakeWith(v1::COMPRESSION_NONE, v1::VALUES_BF16);
  shard_->Start(10);
  auto expect_rounded = [this] {
    EXPECT_EQ(output_.sent.back().header.dtype, WireDType::kBf16);
    ASSERT_EQ(output_.sent.back().header.length, 2 * 640);
    Values sent(640);
    ASSERT_TRUE(Decode(ValuesFormat(plan_, ChunkId(0)), BytesOf(output_.sent.back().payload),
                       absl::MakeSpan(sent))
                    .ok());
    for (int i = 0; i < 640; ++i) ASSERT_NEAR(sent[i], ValuesOf(0)[i], std::abs(sent[i]) / 256);
  };
  EXPECT_EQ(shard_->Fetch(FetchHeader(plan_, 0, 0, 0)), RefusalReason::kNone);
  expect_rounded();
  const Values before = ValuesOf(0);
  for (int64_t step : {0, 1}) PushAll(step, 0);
  expect_rounded();
  EXPECT_EQ(ValuesOf(0), Plus(Plus(before, kUpdate), kUpdate));
}

}  // namespace
}  // namespace muster::parameter_shard_test
