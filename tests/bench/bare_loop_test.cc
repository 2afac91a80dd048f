#include "tests/bench/bare_loop.h"

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::bare_loop_test {
namespace {

class BareLoopTest : public testing::TestWithParam<const char*> {};

// RunBareLoop checks the values that come back.
TEST_P(BareLoopTest, AllValuesAreRightIfBothSidesSleep) {
  const auto result = RunBareLoop({.substrate = GetParam(),
                                   .workers = 2,
                                   .servers = 2,
                                   .message_bytes = 64 << 10,
                                   .tensors = 5,
                                   .steps = 3,
                                   .rounds = 2,
                                   .poll = false});

  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(result->gigabits_per_second, 0);
  EXPECT_GT(result->round_trip_microseconds, 0);
}

TEST_P(BareLoopTest, AllValuesAreRightIfBothSidesPoll) {
  const auto result = RunBareLoop({.substrate = GetParam(),
                                   .message_bytes = 4096,
                                   .tensors = 7,
                                   .steps = 20,
                                   .rounds = 1,
                                   .poll = true,
                                   .alone = false});

  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->round_trip_microseconds, 0);
}

INSTANTIATE_TEST_SUITE_P(Substrates, BareLoopTest,
                         testing::Values("shm", "ucx-shm", "ucx-tcp", "tcp"), [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST(BareLoopTest, RefusesInvalidOptions) {
  EXPECT_EQ(RunBareLoop({.substrate = "pigeon"}).status().message(),
            "unknown substrate 'pigeon'; there are shm, ucx-shm, ucx-tcp and tcp");
  EXPECT_TRUE(absl::IsInvalidArgument(RunBareLoop({.message_bytes = 100}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(RunBareLoop({.servers = 2, .tensors = 1}).status()));
}

}  // namespace
}  // namespace muster::bare_loop_test
