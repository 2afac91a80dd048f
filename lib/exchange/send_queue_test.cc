#include "lib/exchange/send_queue.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace muster::send_queue_test {
namespace {

std::vector<int> TakeAll(SendQueue& queue) {
  std::vector<int> chunks;
  while (const auto entry = queue.Take()) chunks.push_back(ToInt(entry->chunk));
  return chunks;
}

TEST(SendQueueTest, MostUrgentChunkIsSentFirst) {
  SendQueue queue(/*credit_bytes=*/1000, /*chunks=*/8);
  for (const int chunk : {5, 1, 3})
    queue.Add({.urgency = chunk, .chunk = ChunkId(chunk), .bytes = 10});
  EXPECT_EQ(queue.waiting(), 3);
  EXPECT_EQ(queue.Take()->chunk, ChunkId(1));
  queue.Add({.urgency = 2, .chunk = ChunkId(2), .bytes = 10});
  EXPECT_EQ(TakeAll(queue), std::vector<int>({2, 3, 5}));
  EXPECT_EQ(queue.waiting(), 0);
  EXPECT_EQ(queue.inflight_bytes(), 40);
}

TEST(SendQueueTest, UrgentChunkThatWaitsForCreditIsNotOvertaken) {
  SendQueue queue(/*credit_bytes=*/100, /*chunks=*/8);
  queue.Add({.urgency = 0, .chunk = ChunkId(0), .bytes = 60});
  queue.Add({.urgency = 1, .chunk = ChunkId(1), .bytes = 60});
  queue.Add({.urgency = 2, .chunk = ChunkId(2), .bytes = 10});
  EXPECT_EQ(TakeAll(queue), std::vector<int>({0})) << "chunk 2 would fit, but would delay chunk 1";
  queue.Sent(60);
  EXPECT_EQ(TakeAll(queue), std::vector<int>({1, 2}));
}

TEST(SendQueueTest, ChunkLargerThanTheCreditIsSentAlone) {
  SendQueue queue(/*credit_bytes=*/1, /*chunks=*/8);
  for (const int chunk : {0, 1})
    queue.Add({.urgency = chunk, .chunk = ChunkId(chunk), .bytes = 64});
  EXPECT_EQ(TakeAll(queue), std::vector<int>({0}));
  EXPECT_EQ(queue.credit_left(), -63);
  queue.Sent(64);
  EXPECT_EQ(TakeAll(queue), std::vector<int>({1}));
}

TEST(SendQueueTest, NoChunkIsLostAndTheCreditHoldsInAnyOrderOfEvents) {
  for (int seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const int64_t credit = 1 + random() % 300;
    SendQueue queue(credit, /*chunks=*/64);
    std::vector<SendQueue::Entry> on_their_way;
    int added = 0, taken = 0;
    while (taken < 64) {
      if (added < 64 && random() % 2 == 0) {
        queue.Add({.urgency = (added * 37) % 64,
                   .chunk = ChunkId(added),
                   .bytes = int64_t{1} + static_cast<int64_t>(random() % 100)});
        ++added;
      } else if (const auto entry = queue.Take()) {
        on_their_way.push_back(*entry);
        ++taken;
      } else if (!on_their_way.empty()) {
        queue.Sent(on_their_way.back().bytes);
        on_their_way.pop_back();
      }
      ASSERT_TRUE(queue.inflight_bytes() <= credit || on_their_way.size() == 1) << seed;
      ASSERT_EQ(queue.waiting(), added - taken) << seed;
    }
  }
}

}  // namespace
}  // namespace muster::send_queue_test
