#include "lib/exchange/send_window.h"

#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace muster::send_window_test {
namespace {

TEST(SendWindowTest, OldestUnfinishedSendHoldsBackTheOthers) {
  SendWindow window(/*bytes_max=*/100, /*sends=*/8);
  const int64_t slow = window.Begin(40);
  const int64_t quick = window.Begin(40);
  EXPECT_FALSE(window.Admits(40));
  window.End(quick);
  EXPECT_EQ(window.span(), 80);
  EXPECT_FALSE(window.Admits(40)) << "the bytes under way would fit, but the send is too far ahead";
  EXPECT_TRUE(window.Admits(20));
  window.End(slow);
  EXPECT_EQ(window.span(), 0);
  EXPECT_TRUE(window.Admits(100));
}

TEST(SendWindowTest, SendLargerThanTheWindowGoesAlone) {
  SendWindow window(/*bytes_max=*/1, /*sends=*/8);
  EXPECT_TRUE(window.Admits(64));
  const int64_t ticket = window.Begin(64);
  EXPECT_FALSE(window.Admits(64));
  window.End(ticket);
  EXPECT_TRUE(window.Admits(64));
}

TEST(SendWindowTest, SpanReachesFromTheOldestToTheNewestInAnyOrderOfEnds) {
  for (int seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    SendWindow window(/*bytes_max=*/500, /*sends=*/16);
    struct Sent {
      int64_t ticket, bytes;
      bool done;
    };
    std::deque<Sent> begun;
    for (int turn = 0; turn < 400; ++turn) {
      const auto bytes = static_cast<int64_t>(1 + random() % 90);
      if (begun.size() < 16 && window.Admits(bytes)) {
        begun.push_back({window.Begin(bytes), bytes, false});
      } else {
        Sent& sent = begun[random() % begun.size()];
        if (!std::exchange(sent.done, true)) window.End(sent.ticket);
      }
      while (!begun.empty() && begun.front().done) begun.pop_front();
      int64_t span = 0;
      for (const Sent& sent : begun) span += sent.bytes;
      ASSERT_EQ(window.span(), span) << "seed " << seed;
      ASSERT_TRUE(span <= 500) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace muster::send_window_test
