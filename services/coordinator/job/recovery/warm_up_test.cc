#include "services/coordinator/job/recovery/warm_up.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::warm_up_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Heard = WarmUp::Heard;
using State = WarmUp::State;

class WarmUpTest : public ::testing::Test {
 protected:
  void Begin(const std::vector<std::string>& newcomers) {
    v1::JobPlan plan;
    plan.set_generation(3);
    warm_up_.Begin(plan, newcomers, now_);
  }
  // Returns the number of the warm-up from its plan.
  uint64_t Number() const {
    v1::JobPlan plan;
    EXPECT_TRUE(plan.ParseFromString(*warm_up_.plan()));
    EXPECT_EQ(plan.generation(), 3);
    return plan.rehearsal();
  }
  Heard Say(const std::string& member, v1::MemberJobState state, uint64_t progress = 0,
            uint64_t number = 0) {
    v1::JobReport report;
    report.set_state(state);
    report.set_prepare_progress(progress);
    report.set_rehearsal(number == 0 ? Number() : number);
    if (state == v1::MEMBER_FAILED) report.mutable_error()->set_message("no such file");
    return warm_up_.Take(member, &report, now_);
  }

  absl::Time now_ = absl::FromUnixSeconds(1000);
  WarmUp warm_up_{/*first_number=*/(5ull << 32) + 1};
};

TEST_F(WarmUpTest, IsDoneOnceAllHavePrepared) {
  EXPECT_EQ(warm_up_.Of({}), State::kNone);
  EXPECT_EQ(warm_up_.Of({"w-2"}), State::kNone);
  Begin({"w-2", "w-3"});
  EXPECT_EQ(Number(), (5ull << 32) + 1);
  EXPECT_EQ(warm_up_.Of({"w-2", "w-3"}), State::kUnderWay);
  EXPECT_EQ(warm_up_.Of({"w-2"}), State::kNone) << "the shares would differ";
  EXPECT_EQ(warm_up_.Of({"w-2", "w-4"}), State::kNone);
  EXPECT_EQ(Say("w-2", v1::MEMBER_PREPARED), Heard::kPrepared);
  EXPECT_EQ(Say("w-3", v1::MEMBER_PREPARING), Heard::kNothing);
  EXPECT_EQ(warm_up_.Of({"w-2", "w-3"}), State::kUnderWay);
  EXPECT_EQ(Say("w-3", v1::MEMBER_PREPARED), Heard::kPrepared);
  EXPECT_EQ(warm_up_.Of({"w-2", "w-3"}), State::kDone);

  warm_up_.End();
  EXPECT_EQ(warm_up_.Of({"w-2", "w-3"}), State::kNone);
  EXPECT_THAT(warm_up_.members(), IsEmpty());
}

TEST_F(WarmUpTest, PreparedWorkerThatIsUnfitIsRemoved) {
  Begin({"w-2"});
  EXPECT_EQ(Say("w-2", v1::MEMBER_PREPARED), Heard::kPrepared);
  warm_up_.Remove("w-2");
  EXPECT_EQ(warm_up_.Of({"w-2"}), State::kNone);
  EXPECT_EQ(Say("w-2", v1::MEMBER_PREPARED), Heard::kOutsider) << "the caller releases it";
}

TEST_F(WarmUpTest, WorkerThatHasNotBegunIsSilent) {
  Begin({"w-2"});
  const uint64_t first = Number();
  EXPECT_EQ(warm_up_.Take("w-2", nullptr, now_), Heard::kSilence);
  Begin({"w-2", "w-3"});
  EXPECT_NE(Number(), first);
  EXPECT_EQ(Say("w-2", v1::MEMBER_PREPARED, 0, first), Heard::kSilence)
      << "a report of the previous warm-up";
  EXPECT_EQ(Say("w-3", v1::MEMBER_PREPARED), Heard::kPrepared);
  EXPECT_EQ(warm_up_.Of({"w-2", "w-3"}), State::kUnderWay);
}

TEST_F(WarmUpTest, WorkersOutsideTheWarmUpAreUnauthenticatedPeers) {
  Begin({"w-2"});
  EXPECT_EQ(Say("w-3", v1::MEMBER_PREPARED), Heard::kOutsider);
  EXPECT_EQ(warm_up_.Take("w-3", nullptr, now_), Heard::kNothing) << "it does not know the job";
  warm_up_.Remove("w-2");
  EXPECT_EQ(Say("w-2", v1::MEMBER_PREPARED), Heard::kOutsider);
}

TEST_F(WarmUpTest, FailedWorkerIsRemoved) {
  Begin({"w-2", "w-3"});
  EXPECT_EQ(Say("w-3", v1::MEMBER_FAILED), Heard::kFailed);
  EXPECT_THAT(warm_up_.members(), ElementsAre("w-2"));
}

TEST_F(WarmUpTest, WorkerWithoutProgressIsGivenUp) {
  Begin({"w-2", "w-3", "w-4"});
  Say("w-2", v1::MEMBER_PREPARED);
  now_ += WarmUp::kStallMax / 2;
  Say("w-3", v1::MEMBER_PREPARING, /*progress=*/7);
  EXPECT_EQ(warm_up_.TakeStalled(now_), "");
  now_ += WarmUp::kStallMax / 2;
  EXPECT_EQ(warm_up_.TakeStalled(now_), "w-4") << "w-3 made progress, w-2 is prepared";
  EXPECT_EQ(warm_up_.TakeStalled(now_), "");
  EXPECT_FALSE(warm_up_.Has("w-4"));
  now_ += WarmUp::kStallMax;
  warm_up_.WentOn(now_);
  EXPECT_EQ(warm_up_.TakeStalled(now_), "") << "the time until then does not count";
}

}  // namespace
}  // namespace muster::warm_up_test
