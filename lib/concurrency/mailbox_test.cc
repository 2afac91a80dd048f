#include "lib/concurrency/mailbox.h"

#include <thread>

#include "gtest/gtest.h"

namespace muster::mailbox_test {
namespace {

TEST(MailboxTest, RefusesWhatExceedsItsCapacity) {
  Mailbox<int> mailbox(2);
  EXPECT_TRUE(mailbox.TryPost(1));
  EXPECT_TRUE(mailbox.TryPost(2));
  EXPECT_FALSE(mailbox.TryPost(3));
  EXPECT_EQ(mailbox.TakeAll(), (std::deque<int>{1, 2}));
  EXPECT_TRUE(mailbox.TryPost(4));
}

TEST(MailboxTest, WakesTheTakerAfterEveryPost) {
  int wakes = 0;
  Mailbox<int> mailbox(8, [&] { ++wakes; });
  mailbox.TryPost(1);
  mailbox.Post(2);
  EXPECT_EQ(wakes, 2);
}

TEST(MailboxTest, ClosedMailboxRefusesPostsAndStillDeliversMessages) {
  Mailbox<int> mailbox(8);
  mailbox.TryPost(1);
  mailbox.Close();
  EXPECT_FALSE(mailbox.Post(2));
  int value = 0;
  EXPECT_TRUE(mailbox.Take(value, absl::ZeroDuration()));
  EXPECT_EQ(value, 1);
  EXPECT_FALSE(mailbox.Take(value, absl::InfiniteDuration()));
}

TEST(MailboxTest, PostWaitsForRoomThatTheTakerMakes) {
  Mailbox<int> mailbox(1);
  std::jthread poster([&] {
    for (int i = 0; i < 1000; ++i) ASSERT_TRUE(mailbox.Post(i));
  });
  for (int i = 0; i < 1000; ++i) {
    int value = -1;
    ASSERT_TRUE(mailbox.Take(value, absl::InfiniteDuration()));
    EXPECT_EQ(value, i);
  }
}

}  // namespace
}  // namespace muster::mailbox_test
