#include "lib/shard/agreement/step_agreement.h"

#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "lib/shard/testing/test_plan.h"

namespace muster::step_agreement_test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Message {
  ShardIndex to{};
  WireHeader header;
  absl::Span<const std::byte> payload;
  Transport::SendDone done;
};

struct Judged {
  int64_t step;
  bool skipped;
  int64_t skips_in_row;

  friend bool operator==(const Judged&, const Judged&) = default;
};

// A shard that reports the norms that the test gives it.
struct FakeShard : JudgedShard {
  void StepJudged(int64_t step, bool skipped, int64_t skips_in_row) override {
    judged.push_back({step, skipped, skips_in_row});
  }
  void MeasureDirections(absl::Span<double> squares) override {
    ASSERT_EQ(squares.size(), norms.size());
    std::copy(norms.begin(), norms.end(), squares.begin());
  }
  void GoOn() override { ++went_on; }

  std::vector<double> norms;
  std::vector<Judged> judged;
  int went_on = 0;
  std::unique_ptr<StepAgreement> agreement;
};

// Three parameters of one chunk each, on three shards; the last one is frozen.
class StepAgreementTest : public testing::Test {
 protected:
  void Make(TestPlanOptions options) {
    options.parameters = {8, 8, 8};
    options.frozen = {2};
    options.weight_decay = true;
    options.shards = 3;
    plan_ = MakeTestPlan(options);
    for (int chunk = 0; chunk < 3; ++chunk) plan_.mutable_chunks(chunk)->set_shard(chunk);
    for (int number = 0; number < 3; ++number) {
      shards_[number].agreement = std::make_unique<StepAgreement>(
          plan_, ShardIndex(number),
          [this](ShardIndex to, const WireHeader& header, absl::Span<const std::byte> payload,
                 Transport::SendDone done) {
            sent_.push_back({to, header, payload, std::move(done)});
          },
          &shards_[number]);
    }
  }
  void MakeClipped() { Make({.clip_norm = 5}); }
  void MakeLamb() {
    TestPlanOptions options;
    options.optimizer.mutable_lamb()->set_learning_rate(0.1);
    Make(options);
  }

  StepAgreement& At(int shard) { return *shards_[shard].agreement; }

  Message TakeMessage() {
    Message message = std::move(sent_.front());
    sent_.pop_front();
    return message;
  }
  // Returns false if the message is not wanted.
  bool Deliver(const Message& message) {
    StepAgreement& to = At(ToInt(message.to));
    if (message.payload.empty()) return to.VerdictArrived(message.header) == RefusalReason::kNone;
    const absl::Span<std::byte> place = to.Place(message.header);
    if (place.empty()) return false;
    std::memcpy(place.data(), message.payload.data(), place.size());
    to.Arrived(message.header);
    return true;
  }
  void DeliverAll() {
    while (!sent_.empty()) {
      Message message = TakeMessage();
      EXPECT_TRUE(Deliver(message)) << KindOf(message);
      message.done(absl::OkStatus());
    }
  }
  static int KindOf(const Message& message) { return static_cast<int>(message.header.kind); }

  void Sum(double first, double second) {
    At(1).ChunkSummed(TrainedChunk(0), second);
    At(0).ChunkSummed(TrainedChunk(0), first);
  }
  void BeginStep(int64_t step) {
    for (int shard : {0, 1}) At(shard).BeginStep(step);
  }
  bool AllIdle() const {
    bool idle = true;
    for (const FakeShard& shard : shards_) idle = idle && shard.agreement->idle();
    return idle;
  }

  v1::JobPlan plan_;
  FakeShard shards_[3];
  std::deque<Message> sent_;
};

TEST_F(StepAgreementTest, AllShardsDrawTheSameConclusionFromTheWholeGradient) {
  MakeClipped();
  Sum(36, 64);
  EXPECT_FALSE(At(0).agreed());
  ASSERT_EQ(sent_.size(), 1u) << "shard 0 needs no message to itself";
  EXPECT_EQ(sent_[0].header, (WireHeader{.kind = MessageKind::kSquares,
                                         .generation = 1,
                                         .job = 7,
                                         .step = 0,
                                         .rank = 1,
                                         .length = sizeof(double)}));
  DeliverAll();
  for (int shard : {0, 1}) {
    ASSERT_TRUE(At(shard).agreed());
    EXPECT_FALSE(At(shard).judgement()->skip);
    EXPECT_EQ(At(shard).judgement()->factor, 0.5) << "to a norm of 5";
    EXPECT_EQ(shards_[shard].judged, (std::vector<Judged>{{0, false, 0}}));
  }
  EXPECT_TRUE(shards_[2].judged.empty()) << "shard 2 has no gradients";
  EXPECT_EQ(At(0).squares(TrainedChunk(0)), 36);
  EXPECT_EQ(At(1).squares(TrainedChunk(0)), 64);
  EXPECT_TRUE(AllIdle());
}

TEST_F(StepAgreementTest, AllSkipAndCountANonFiniteStep) {
  MakeClipped();
  for (int64_t step = 0; const double second : {kNaN, kNaN, 1.0}) {
    Sum(1, second);
    DeliverAll();
    BeginStep(++step);
  }
  for (int shard : {0, 1}) {
    EXPECT_EQ(shards_[shard].judged,
              (std::vector<Judged>{{0, true, 1}, {1, true, 2}, {2, false, 0}}));
  }
}

TEST_F(StepAgreementTest, StepWaitsForTrustRatiosUnlessItIsSkipped) {
  MakeLamb();
  shards_[0].norms = {9, 4};
  shards_[1].norms = {16, 4};
  Sum(1, 1);
  Message squares = TakeMessage();
  EXPECT_TRUE(Deliver(squares));
  EXPECT_FALSE(At(0).agreed()) << "judged, but the ratios are missing";
  ASSERT_TRUE(At(0).judgement());
  squares.done(absl::OkStatus());
  DeliverAll();
  for (int shard : {0, 1}) {
    ASSERT_TRUE(At(shard).agreed());
    EXPECT_EQ(At(shard).trust_ratio(0), 1.5);
    EXPECT_EQ(At(shard).trust_ratio(1), 2);
    EXPECT_EQ(At(shard).trust_ratio(2), 1) << "parameter 2 is frozen";
  }
  BeginStep(1);
  Sum(1, kNaN);
  DeliverAll();
  EXPECT_TRUE(At(0).agreed() && At(1).agreed()) << "a skipped step needs no ratios";
  EXPECT_TRUE(AllIdle());
}

TEST_F(StepAgreementTest, NothingIsSummedWhileAReportIsUnderWay) {
  MakeClipped();
  Sum(1, 1);
  Message squares = TakeMessage();
  EXPECT_TRUE(Deliver(squares));
  DeliverAll();
  BeginStep(1);
  EXPECT_TRUE(At(0).takes_sums());
  EXPECT_FALSE(At(1).takes_sums()) << "its memory is still being read";
  EXPECT_FALSE(At(1).idle());
  const int went_on = shards_[1].went_on;
  squares.done(absl::OkStatus());
  EXPECT_TRUE(At(1).takes_sums());
  EXPECT_EQ(shards_[1].went_on, went_on + 1);
  EXPECT_TRUE(AllIdle());
}

TEST_F(StepAgreementTest, RatiosWaitUntilTheLastOnesAreSent) {
  MakeLamb();
  shards_[0].norms = shards_[1].norms = {9, 4};
  Message trust;
  for (int64_t step : {0, 1}) {
    Sum(1, 1);
    while (!sent_.empty()) {
      Message message = TakeMessage();
      EXPECT_TRUE(Deliver(message));
      if (message.header.kind == MessageKind::kTrust) {
        trust = std::move(message);
      } else {
        message.done(absl::OkStatus());
      }
    }
    EXPECT_EQ(At(0).agreed(), step == 0);
    if (step == 0) BeginStep(1);
  }
  trust.done(absl::OkStatus());
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].header.step, 1);
  DeliverAll();
  EXPECT_TRUE(At(0).agreed() && At(1).agreed());
}

TEST_F(StepAgreementTest, UnexpectedMessagesGetNoPlace) {
  MakeLamb();
  Sum(1, 1);
  Message squares = TakeMessage();
  auto wants = [this](WireHeader header, auto change) {
    change(header);
    return !At(0).Place(header).empty();
  };
  EXPECT_FALSE(wants(squares.header, [](WireHeader& h) { h.step = 1; }));
  EXPECT_FALSE(wants(squares.header, [](WireHeader& h) { h.rank = 2; }))
      << "shard 2 has no gradients";
  EXPECT_FALSE(wants(squares.header, [](WireHeader& h) { h.rank = 3; }));
  EXPECT_FALSE(wants(squares.header, [](WireHeader& h) { h.rank = ~0u; }));
  EXPECT_FALSE(wants(squares.header, [](WireHeader& h) { h.length = 16; }));
  EXPECT_FALSE(wants(squares.header, [](WireHeader& h) {
    h.kind = MessageKind::kNorms;
    h.length = 16;
  })) << "before the verdict";
  WireHeader trust = squares.header;
  trust.kind = MessageKind::kTrust;
  trust.length = 3 * sizeof(double);
  EXPECT_TRUE(At(1).Place(trust).empty()) << "before the verdict";
  WireHeader verdict = squares.header;
  verdict.kind = MessageKind::kVerdict;
  EXPECT_EQ(At(2).VerdictArrived(verdict), RefusalReason::kWrongStep) << "shard 2 has no gradients";
  EXPECT_EQ(At(0).VerdictArrived(verdict), RefusalReason::kWrongStep)
      << "shard 0 gives the verdicts";
  verdict.step = 1;
  EXPECT_EQ(At(1).VerdictArrived(verdict), RefusalReason::kWrongStep);
  squares.done(absl::OkStatus());
  EXPECT_TRUE(AllIdle());
  shards_[0].norms = shards_[1].norms = {1, 1};
  EXPECT_TRUE(Deliver(squares)) << "the refused messages did no harm";
  EXPECT_FALSE(Deliver(squares)) << "a repeat";
}

TEST_F(StepAgreementTest, LostMessageMayBeSentAgain) {
  MakeLamb();
  shards_[0].norms = shards_[1].norms = {1, 1};
  Sum(1, 1);
  Message squares = TakeMessage();
  squares.done(absl::UnavailableError("broken"));
  for (const bool whole_shard : {false, true}) {
    EXPECT_FALSE(At(0).Place(squares.header).empty());
    EXPECT_TRUE(At(0).Place(squares.header).empty()) << "while it is being received";
    EXPECT_FALSE(At(0).idle());
    whole_shard ? At(0).ShardLost(ShardIndex(1)) : At(0).Lost(squares.header);
    EXPECT_TRUE(sent_.empty());
  }
  At(0).Arrived(squares.header);  // too late
  EXPECT_FALSE(At(0).judgement());
  EXPECT_TRUE(Deliver(squares));

  while (sent_.front().header.kind != MessageKind::kTrust) {
    Message message = TakeMessage();
    EXPECT_TRUE(Deliver(message));
    message.done(absl::OkStatus());
  }
  Message trust = TakeMessage();
  trust.done(absl::OkStatus());
  for (const bool whole_shard : {false, true}) {
    EXPECT_FALSE(At(1).Place(trust.header).empty());
    EXPECT_FALSE(At(1).idle());
    whole_shard ? At(1).ShardLost(ShardIndex(0)) : At(1).Lost(trust.header);
    EXPECT_TRUE(At(1).idle());
  }
  At(1).Arrived(trust.header);  // too late
  EXPECT_FALSE(At(1).agreed());
  EXPECT_TRUE(Deliver(trust));
  EXPECT_TRUE(At(1).agreed());
  EXPECT_TRUE(AllIdle());
}

}  // namespace
}  // namespace muster::step_agreement_test
