#include "lib/collective/polled_wait.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace muster::polled_wait_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Uses a clock that advances only when PolledWait sleeps.
class PolledWaitTest : public testing::Test {
 protected:
  PolledWait Within(absl::Duration timeout) {
    return PolledWait({.timeout = timeout,
                       .interval = absl::Seconds(1),
                       .now = [this] { return now_; },
                       .sleep = [this](absl::Duration time) { now_ += time; }});
  }

  static absl::Status TimedOut() { return absl::DeadlineExceededError("bucket 3"); }

  const absl::Duration start_ = absl::Seconds(1000);
  absl::Duration now_ = start_;
};

TEST_F(PolledWaitTest, EndsWhenTheWorkHasEnded) {
  int left = 3;
  const auto finished = [&]() -> absl::StatusOr<bool> { return left-- == 0; };
  EXPECT_TRUE(Within(absl::Seconds(10)).Await(finished, TimedOut).ok());
  EXPECT_EQ(now_ - start_, absl::Seconds(3));
}

TEST_F(PolledWaitTest, GivesUpAtTheDeadline) {
  const auto never = []() -> absl::StatusOr<bool> { return false; };
  const absl::Status status = Within(absl::Seconds(10)).Await(never, TimedOut);
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_EQ(status.message(), "bucket 3");
  EXPECT_EQ(now_ - start_, absl::Seconds(10));
}

TEST_F(PolledWaitTest, AnErrorEndsItAtOnce) {
  const auto fails = []() -> absl::StatusOr<bool> { return absl::InternalError("lost"); };
  EXPECT_TRUE(absl::IsInternal(Within(absl::Seconds(10)).Await(fails, TimedOut)));
  EXPECT_EQ(now_, start_);
}

TEST_F(PolledWaitTest, FinishedWorkIsOkEvenAfterTheDeadline) {
  const auto done = []() -> absl::StatusOr<bool> { return true; };
  EXPECT_TRUE(Within(absl::ZeroDuration()).Await(done, TimedOut).ok());
}

// A stream with a collective operation that waits for missing peers.
struct StuckStream {
  bool is_abandoned = false;

  PolledStream Named(const std::string& name) {
    return {name, [this]() -> absl::StatusOr<bool> { return is_abandoned; }};
  }
};

PolledStream Ended(const std::string& name) {
  return {name, []() -> absl::StatusOr<bool> { return true; }};
}

TEST_F(PolledWaitTest, AbandonsPeersBeforeItWaitsForStreams) {
  StuckStream collective;
  const absl::Status drained =
      Drain([&] { collective.is_abandoned = true; },
            {Ended("compute"), collective.Named("collective")}, Within(absl::Seconds(30)));
  EXPECT_TRUE(drained.ok()) << drained;
  EXPECT_EQ(now_, start_);
}

TEST_F(PolledWaitTest, NamesAStreamThatDoesNotEndInTime) {
  StuckStream collective;
  const absl::Status drained =
      Drain([] {}, {Ended("compute"), collective.Named("collective")}, Within(absl::Seconds(30)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(drained)) << drained;
  EXPECT_THAT(std::string(drained.message()), HasSubstr("collective"));
  EXPECT_THAT(std::string(drained.message()), HasSubstr("30s"));
  EXPECT_THAT(std::string(drained.message()), Not(HasSubstr("compute")));
  EXPECT_EQ(now_ - start_, absl::Seconds(30));
}

TEST_F(PolledWaitTest, WaitsForTheOtherStreamsAfterAFailure) {
  int polls = 0;
  const PolledStream failed = {
      "compute", [&]() -> absl::StatusOr<bool> { return absl::InternalError("illegal address"); }};
  const PolledStream slow = {"download", [&]() -> absl::StatusOr<bool> { return ++polls == 4; }};
  const absl::Status drained = Drain([] {}, {failed, slow}, Within(absl::Seconds(30)));
  EXPECT_TRUE(absl::IsInternal(drained)) << drained;
  EXPECT_EQ(polls, 4);
}

}  // namespace
}  // namespace muster::polled_wait_test
