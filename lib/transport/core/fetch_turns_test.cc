#include "lib/transport/core/fetch_turns.h"

#include <deque>
#include <map>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::fetch_turns_test {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;

constexpr size_t kBytes = 100;

class FetchTurnsTest : public testing::Test {
 protected:
  // A payload that remembers its sender's rank.
  struct Ranked : FetchTurns::Payload {
    int32_t rank = 0;
  };

  void Wait(int32_t rank, int payloads) {
    for (int i = 0; i < payloads; ++i) {
      Ranked& payload = payloads_.emplace_back();
      payload.rank = rank;
      turns_.Wait(&payload, PeerId(rank), kBytes);
    }
  }

  // Starts all payloads that may start now. Returns their ranks.
  std::vector<int> Begin() {
    std::vector<int> ranks;
    while (auto* payload = static_cast<Ranked*>(turns_.Begin(now_))) {
      ranks.push_back(payload->rank);
      fetching_.push_back(payload);
    }
    return ranks;
  }

  void EndOldest() {
    turns_.End(fetching_.front());
    fetching_.pop_front();
  }

  FetchTurns turns_{{.bytes_max = 2 * kBytes, .fetches_min = 1, .patience = milliseconds(10)}};
  FetchTurns::Time now_;
  std::deque<Ranked> payloads_;
  std::deque<Ranked*> fetching_;
};

TEST_F(FetchTurnsTest, PayloadsOfSendersAlternateWhicheverCameFirst) {
  Wait(7, 3);
  EXPECT_THAT(Begin(), ElementsAre(7, 7));
  Wait(8, 3);
  std::vector<int> ranks;
  while (turns_.waiting()) {
    EndOldest();
    for (const int rank : Begin()) ranks.push_back(rank);
  }
  // After rank 7 has had two payloads, rank 8 does not get two in a row to catch up. When both have
  // had the same number of bytes, either may be next.
  EXPECT_THAT(ranks, testing::AnyOf(ElementsAre(7, 8, 8, 8), ElementsAre(8, 7, 8, 8)));
}

TEST_F(FetchTurnsTest, WhileOneSenderIsSlowTheOthersDoNotRunAhead) {
  Wait(1, 4);
  Wait(2, 4);
  Begin();
  std::map<int, int> begun = {{1, 0}, {2, 0}};
  for (const Ranked* payload : fetching_) ++begun[payload->rank];
  EXPECT_THAT(begun, ElementsAre(testing::Pair(1, 1), testing::Pair(2, 1)));
  // Rank 2's fetches never end; those of the other rank end at once.
  for (int turn = 0; turn < 6; ++turn) {
    for (size_t i = 0; i < fetching_.size(); ++i) {
      if (fetching_[i]->rank != 1) continue;
      turns_.End(fetching_[i]);
      fetching_.erase(fetching_.begin() + static_cast<int>(i));
      break;
    }
    for (const int rank : Begin()) ++begun[rank];
  }
  EXPECT_LE(begun[1], 3);
}

TEST_F(FetchTurnsTest, ASlowSenderHoldsTheOthersBackOnlyForPatience) {
  Wait(1, 2);
  EXPECT_THAT(Begin(), ElementsAre(1, 1));
  Wait(2, 2);
  now_ += milliseconds(10);
  EXPECT_THAT(Begin(), ElementsAre());
  now_ += milliseconds(1);
  EXPECT_THAT(Begin(), ElementsAre(2, 2));
  EndOldest();  // its payload was no longer counted
  EXPECT_FALSE(turns_.waiting());
}

TEST_F(FetchTurnsTest, AnIdleSenderSavesUpNoTurns) {
  Wait(1, 1);
  Wait(2, 10);
  Begin();
  while (turns_.waiting()) {
    EndOldest();
    Begin();
  }
  while (!fetching_.empty()) EndOldest();
  Wait(2, 1);
  Begin();
  Wait(1, 8);
  Wait(2, 8);
  std::vector<int> ranks = Begin();
  for (int turn = 0; turn < 6; ++turn) {
    EndOldest();
    for (const int rank : Begin()) ranks.push_back(rank);
  }
  EXPECT_GE(std::ranges::count(ranks, 2), 3) << "rank 1 had ten turns fewer before";
}

TEST_F(FetchTurnsTest, ASenderThatLeavesHasNoTurnAndTheOthersKeepTheirOrder) {
  for (const size_t leaves : {0, 1, 3}) {
    FetchTurns turns({.bytes_max = 1, .fetches_min = 4});
    std::deque<FetchTurns::Payload> payloads(4);
    for (auto& payload : payloads) turns.Wait(&payload, PeerId(1), kBytes);
    turns.Leave(&payloads[leaves]);
    FetchTurns::Payload late;
    turns.Wait(&late, PeerId(1), kBytes);
    for (size_t i = 0; i < payloads.size(); ++i) {
      if (i == leaves) continue;
      EXPECT_EQ(turns.Begin(now_), &payloads[i]);
    }
    EXPECT_EQ(turns.Begin(now_), &late);
    EXPECT_FALSE(turns.waiting());
  }
}

TEST_F(FetchTurnsTest, AFewPayloadsAreFetchedHoweverLargeTheyAre) {
  FetchTurns turns({.bytes_max = 1, .fetches_min = 3});
  std::deque<FetchTurns::Payload> payloads(5);
  for (auto& payload : payloads) turns.Wait(&payload, PeerId(1), kBytes);
  int begun = 0;
  while (turns.Begin(now_) != nullptr) ++begun;
  EXPECT_EQ(begun, 3);
}

TEST_F(FetchTurnsTest, AbandonReturnsOnlyPayloadsOfTheGivenSender) {
  Wait(1, 5);
  Wait(2, 1);
  Begin();
  int abandoned = 0;
  while (auto* payload = static_cast<Ranked*>(turns_.Abandon(PeerId(1)))) {
    EXPECT_EQ(payload->rank, 1);
    ++abandoned;
  }
  EXPECT_EQ(abandoned, 4);
  EXPECT_EQ(turns_.Abandon(PeerId(3)), nullptr);
  EndOldest();
  EndOldest();
  EXPECT_THAT(Begin(), ElementsAre());
  EXPECT_FALSE(turns_.waiting());
}

}  // namespace
}  // namespace muster::fetch_turns_test
