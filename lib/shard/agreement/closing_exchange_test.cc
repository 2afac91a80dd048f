#include "lib/shard/agreement/closing_exchange.h"

#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "lib/shard/gate/rank_set.h"
#include "lib/shard/testing/test_plan.h"

namespace muster::closing_exchange_test {
namespace {

constexpr int kWorkers = 3;
constexpr LocalChunk kChunk{0};

struct Message {
  ShardIndex to{};
  WireHeader header;
  absl::Span<const std::byte> payload;
  Transport::SendDone done;
};

struct Shard {
  std::unique_ptr<BackupGate> gate;
  std::unique_ptr<ClosingExchange> exchange;
  int closed = 0;
};

// Two shards with one chunk each. A step waits for two of three workers.
class ClosingExchangeTest : public testing::Test {
 protected:
  ClosingExchangeTest() {
    TestPlanOptions options{.parameters = {8, 8}, .workers = kWorkers, .shards = 2};
    options.sync.set_backup_workers(1);
    const v1::JobPlan plan = MakeTestPlan(options);
    for (int number : {0, 1}) {
      Shard& shard = shards_[number];
      shard.gate = std::make_unique<BackupGate>(
          BackupGate::Options{.chunks = 1, .trained_chunks = 1, .samples = {1, 1, 1}});
      shard.gate->Start(/*total_steps=*/10);
      shard.exchange = std::make_unique<ClosingExchange>(
          plan, ShardIndex(number), shard.gate.get(),
          [this](ShardIndex to, const WireHeader& header, absl::Span<const std::byte> payload,
                 Transport::SendDone done) {
            sent_.push_back({to, header, payload, std::move(done)});
          },
          [&shard] { ++shard.closed; });
    }
  }

  ClosingExchange& At(int shard) { return *shards_[shard].exchange; }

  void Push(int shard, int rank, int64_t step) {
    BackupGate& gate = *shards_[shard].gate;
    ASSERT_EQ(gate.Admit(kChunk, Rank(rank), step), PushFate::kTake);
    ASSERT_EQ(gate.Arrived(kChunk, Rank(rank)), PushFate::kTake);
    At(shard).TellArrived();
  }
  std::vector<int> RanksOf(int shard) {
    const ChunkUpdate update = shards_[shard].gate->NextUpdate(kChunk);
    std::vector<int> ranks;
    for (const Rank rank : update.ranks) ranks.push_back(ToInt(rank));
    return ranks;
  }
  void Apply() {
    for (Shard& shard : shards_) shard.gate->Updated(kChunk);
  }

  Message TakeMessage() {
    Message message = std::move(sent_.front());
    sent_.pop_front();
    return message;
  }
  // Returns false if the message is not wanted.
  bool Deliver(const Message& message) {
    ClosingExchange& to = At(ToInt(message.to));
    if (message.header.kind == MessageKind::kClosed) {
      return to.StepClosed(message.header, message.payload) == RefusalReason::kNone;
    }
    const absl::Span<std::byte> place = to.Place(message.header);
    if (place.empty()) return false;
    std::memcpy(place.data(), message.payload.data(), place.size());
    to.Arrived(message.header);
    return true;
  }
  void DeliverAll() {
    while (!sent_.empty()) {
      Message message = TakeMessage();
      EXPECT_TRUE(Deliver(message));
      message.done(absl::OkStatus());
    }
  }

  Shard shards_[2];
  std::deque<Message> sent_;
};

TEST_F(ClosingExchangeTest, AllShardsCloseAStepWithTheRanksThatAllHave) {
  for (int rank : {2, 1}) Push(0, rank, 0);
  EXPECT_TRUE(sent_.empty()) << "shard 0 needs no message to itself";
  Push(1, 0, 0);
  DeliverAll();
  EXPECT_EQ(shards_[0].closed, 0) << "no rank is complete on all shards";
  for (int rank : {1, 2}) Push(1, rank, 0);
  DeliverAll();
  for (int shard : {0, 1}) {
    EXPECT_EQ(shards_[shard].closed, 1);
    EXPECT_EQ(RanksOf(shard), (std::vector<int>{1, 2}));
    EXPECT_TRUE(At(shard).idle());
  }
}

TEST_F(ClosingExchangeTest, ArrivalsDuringAReportAreReportedAfterIt) {
  for (int rank : {0, 1, 2}) Push(1, rank, 0);
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_FALSE(At(1).idle());
  Message first = TakeMessage();
  uint64_t ranks = 0;
  std::memcpy(&ranks, first.payload.data(), sizeof(ranks));
  EXPECT_EQ(ranks, 0b001u);
  first.done(absl::OkStatus());
  ASSERT_EQ(sent_.size(), 1u);
  Message second = TakeMessage();
  std::memcpy(&ranks, second.payload.data(), sizeof(ranks));
  EXPECT_EQ(ranks, 0b111u);
  second.done(absl::OkStatus());
  EXPECT_TRUE(sent_.empty()) << "there is nothing new";
  EXPECT_TRUE(At(1).idle());
}

TEST_F(ClosingExchangeTest, StepIsNotClosedWhileTheLastDecisionIsUnderWay) {
  Message closed;
  for (int64_t step : {0, 1}) {
    for (int rank : {0, 1}) {
      for (int shard : {0, 1}) Push(shard, rank, step);
    }
    while (!sent_.empty()) {
      Message message = TakeMessage();
      EXPECT_TRUE(Deliver(message));
      if (message.header.kind == MessageKind::kClosed) {
        closed = std::move(message);
      } else {
        message.done(absl::OkStatus());
      }
    }
    EXPECT_EQ(shards_[0].closed, 1);
    if (step == 0) Apply();
  }
  closed.done(absl::OkStatus());
  DeliverAll();
  for (const Shard& shard : shards_) EXPECT_EQ(shard.closed, 2);
}

TEST_F(ClosingExchangeTest, ARetiredShardClosesNothing) {
  for (int rank : {0, 1}) Push(1, rank, 0);
  At(0).Retire();
  for (int rank : {0, 1}) Push(0, rank, 0);
  DeliverAll();
  for (const Shard& shard : shards_) EXPECT_EQ(shard.closed, 0);
  EXPECT_TRUE(At(0).idle());
}

TEST_F(ClosingExchangeTest, InvalidMessagesChangeNothing) {
  for (int rank : {0, 1}) Push(1, rank, 0);
  Message arrived = TakeMessage();
  auto wants = [&](auto change) {
    WireHeader header = arrived.header;
    change(header);
    return !At(0).Place(header).empty();
  };
  EXPECT_FALSE(wants([](WireHeader& h) { h.step = 1; })) << "the step is not open";
  EXPECT_FALSE(wants([](WireHeader& h) { h.length = 16; }));
  EXPECT_FALSE(wants([](WireHeader& h) { h.rank = 2; }));
  EXPECT_FALSE(wants([](WireHeader& h) { h.rank = ~0u; }));
  EXPECT_TRUE(At(1).Place(arrived.header).empty()) << "reports go to shard 0";

  WireHeader closed = arrived.header;
  closed.kind = MessageKind::kClosed;
  const uint64_t absent = 0b100, present = 0b011;
  const auto bytes_of = [](const uint64_t& ranks) {
    return absl::Span<const std::byte>(reinterpret_cast<const std::byte*>(&ranks), sizeof(ranks));
  };
  EXPECT_EQ(At(1).StepClosed(closed, bytes_of(present).first(4)), RefusalReason::kWrongLength);
  EXPECT_EQ(At(1).StepClosed(closed, bytes_of(absent)), RefusalReason::kWrongStep);
  EXPECT_EQ(At(0).StepClosed(closed, bytes_of(present)), RefusalReason::kWrongStep);
  closed.step = 1;
  EXPECT_EQ(At(1).StepClosed(closed, bytes_of(present)), RefusalReason::kWrongStep);
  closed.step = 0;
  EXPECT_EQ(At(1).StepClosed(closed, bytes_of(present)), RefusalReason::kNone);
  EXPECT_EQ(shards_[1].closed, 1);
}

TEST_F(ClosingExchangeTest, LostReportMayBeSentAgain) {
  Push(1, 0, 0);
  const Message arrived = TakeMessage();
  for (const bool whole_shard : {false, true}) {
    EXPECT_FALSE(At(0).Place(arrived.header).empty());
    EXPECT_TRUE(At(0).Place(arrived.header).empty()) << "while it is being received";
    EXPECT_FALSE(At(0).idle());
    whole_shard ? At(0).ShardLost(ShardIndex(1)) : At(0).Lost(arrived.header);
    EXPECT_TRUE(At(0).idle());
  }
  At(0).Arrived(arrived.header);  // too late
  EXPECT_TRUE(Deliver(arrived));
}

}  // namespace
}  // namespace muster::closing_exchange_test
