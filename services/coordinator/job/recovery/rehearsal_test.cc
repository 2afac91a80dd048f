#include "services/coordinator/job/recovery/rehearsal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::rehearsal_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Heard = Rehearsal::Heard;
using State = Rehearsal::State;

class RehearsalTest : public ::testing::Test {
 protected:
  void Begin(const std::vector<std::string>& newcomers) {
    v1::JobPlan plan;
    plan.set_generation(3);
    rehearsal_.Begin(plan, newcomers, now_);
  }
  // Returns the number of the warm-up from its plan.
  uint64_t Number() const {
    v1::JobPlan plan;
    EXPECT_TRUE(plan.ParseFromString(*rehearsal_.plan()));
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
    return rehearsal_.Take(member, &report, now_);
  }

  absl::Time now_ = absl::FromUnixSeconds(1000);
  Rehearsal rehearsal_{/*first_number=*/(5ull << 32) + 1};
};

TEST_F(RehearsalTest, IsDoneOnceAllHavePrepared) {
  EXPECT_EQ(rehearsal_.Of({}), State::kNone);
  EXPECT_EQ(rehearsal_.Of({"w-2"}), State::kNone);
  Begin({"w-2", "w-3"});
  EXPECT_EQ(Number(), (5ull << 32) + 1);
  EXPECT_EQ(rehearsal_.Of({"w-2", "w-3"}), State::kUnderWay);
  EXPECT_EQ(rehearsal_.Of({"w-2"}), State::kNone) << "the shares would differ";
  EXPECT_EQ(rehearsal_.Of({"w-2", "w-4"}), State::kNone);
  EXPECT_EQ(Say("w-2", v1::MEMBER_PREPARED), Heard::kPrepared);
  EXPECT_EQ(Say("w-3", v1::MEMBER_PREPARING), Heard::kNothing);
  EXPECT_EQ(rehearsal_.Of({"w-2", "w-3"}), State::kUnderWay);
  EXPECT_EQ(Say("w-3", v1::MEMBER_PREPARED), Heard::kPrepared);
  EXPECT_EQ(rehearsal_.Of({"w-2", "w-3"}), State::kDone);

  rehearsal_.End();
  EXPECT_EQ(rehearsal_.Of({"w-2", "w-3"}), State::kNone);
  EXPECT_THAT(rehearsal_.members(), IsEmpty());
}

TEST_F(RehearsalTest, PreparedWorkerThatIsRefusedIsExcluded) {
  Begin({"w-2"});
  EXPECT_EQ(Say("w-2", v1::MEMBER_PREPARED), Heard::kPrepared);
  rehearsal_.Refuse("w-2", "other data");
  EXPECT_TRUE(rehearsal_.Refused("w-2"));
  EXPECT_EQ(*rehearsal_.WhyRefused("w-2"), "other data");
  EXPECT_EQ(rehearsal_.Of({"w-2"}), State::kNone);
  EXPECT_EQ(Say("w-2", v1::MEMBER_PREPARED), Heard::kOutsider) << "the caller releases it";
}

TEST_F(RehearsalTest, WorkerThatHasNotBegunGetsTheDirectiveAgain) {
  Begin({"w-2"});
  const uint64_t first = Number();
  EXPECT_EQ(rehearsal_.Take("w-2", nullptr, now_), Heard::kNothing)
      << "the directive was just sent";
  now_ += Rehearsal::kResend;
  EXPECT_EQ(rehearsal_.Take("w-2", nullptr, now_), Heard::kSilence);
  EXPECT_EQ(rehearsal_.Take("w-2", nullptr, now_), Heard::kNothing);
  Begin({"w-2", "w-3"});
  EXPECT_NE(Number(), first);
  now_ += Rehearsal::kResend;
  EXPECT_EQ(Say("w-2", v1::MEMBER_PREPARED, 0, first), Heard::kSilence)
      << "a report of the previous warm-up";
  EXPECT_EQ(Say("w-3", v1::MEMBER_PREPARED), Heard::kPrepared);
  EXPECT_EQ(rehearsal_.Of({"w-2", "w-3"}), State::kUnderWay);
}

TEST_F(RehearsalTest, WorkersOutsideTheWarmUpAreUnauthenticatedPeers) {
  Begin({"w-2"});
  EXPECT_EQ(Say("w-3", v1::MEMBER_PREPARED), Heard::kOutsider);
  EXPECT_EQ(rehearsal_.Take("w-3", nullptr, now_), Heard::kNothing) << "it does not know the job";
  rehearsal_.Remove("w-2");
  EXPECT_EQ(Say("w-2", v1::MEMBER_PREPARED), Heard::kOutsider);
}

TEST_F(RehearsalTest, FailedWorkerIsNotAskedAgainInThisGeneration) {
  Begin({"w-2", "w-3"});
  EXPECT_EQ(Say("w-3", v1::MEMBER_FAILED), Heard::kFailed);
  EXPECT_TRUE(rehearsal_.Refused("w-3"));
  EXPECT_FALSE(rehearsal_.Refused("w-2"));
  EXPECT_THAT(rehearsal_.members(), ElementsAre("w-2"));
  Begin({"w-2"});
  EXPECT_TRUE(rehearsal_.Refused("w-3"));
  rehearsal_.End();
  EXPECT_FALSE(rehearsal_.Refused("w-3"));
}

TEST_F(RehearsalTest, ReasonOfAFailureIsKeptUntilTheWorkerPrepares) {
  Begin({"w-2", "w-3"});
  Say("w-3", v1::MEMBER_FAILED);
  EXPECT_EQ(rehearsal_.WhyRefused("w-2"), nullptr);
  rehearsal_.End();
  ASSERT_NE(rehearsal_.WhyRefused("w-3"), nullptr) << "a later recovery may need the reason";
  EXPECT_EQ(*rehearsal_.WhyRefused("w-3"), "no such file");
  Begin({"w-3"});
  Say("w-3", v1::MEMBER_PREPARING);
  EXPECT_NE(rehearsal_.WhyRefused("w-3"), nullptr);
  Say("w-3", v1::MEMBER_PREPARED);
  EXPECT_EQ(rehearsal_.WhyRefused("w-3"), nullptr);
}

TEST_F(RehearsalTest, RefusalExpiresAtItsTime) {
  const absl::Time begin = absl::UnixEpoch();
  rehearsal_.Refuse("w-2", "it did not halt", begin + absl::Minutes(5));
  rehearsal_.Refuse("w-3", "no such file");
  rehearsal_.ForgiveInTime(begin + absl::Minutes(5) - absl::Seconds(1));
  EXPECT_NE(rehearsal_.WhyRefused("w-2"), nullptr);
  rehearsal_.ForgiveInTime(begin + absl::Minutes(5));
  EXPECT_EQ(rehearsal_.WhyRefused("w-2"), nullptr);
  EXPECT_NE(rehearsal_.WhyRefused("w-3"), nullptr);
}

TEST_F(RehearsalTest, ForgiveReadmitsOneWorkerAndForgetAllOfThem) {
  Begin({"w-2", "w-3"});
  Say("w-2", v1::MEMBER_FAILED);
  Say("w-3", v1::MEMBER_FAILED);
  rehearsal_.Forgive("w-2");
  EXPECT_FALSE(rehearsal_.Refused("w-2")) << "it may warm up again at once";
  EXPECT_EQ(rehearsal_.WhyRefused("w-2"), nullptr);
  EXPECT_TRUE(rehearsal_.Refused("w-3"));
  rehearsal_.Forget();
  EXPECT_FALSE(rehearsal_.Refused("w-3"));
  EXPECT_EQ(rehearsal_.WhyRefused("w-3"), nullptr);
}

TEST_F(RehearsalTest, WorkerWithoutProgressIsGivenUp) {
  Begin({"w-2", "w-3", "w-4"});
  Say("w-2", v1::MEMBER_PREPARED);
  now_ += Rehearsal::kStallMax / 2;
  Say("w-3", v1::MEMBER_PREPARING, /*progress=*/7);
  EXPECT_EQ(rehearsal_.TakeStalled(now_), "");
  now_ += Rehearsal::kStallMax / 2;
  EXPECT_EQ(rehearsal_.TakeStalled(now_), "w-4") << "w-3 made progress, w-2 is prepared";
  EXPECT_EQ(rehearsal_.TakeStalled(now_), "");
  EXPECT_TRUE(rehearsal_.Refused("w-4"));
  EXPECT_EQ(*rehearsal_.WhyRefused("w-4"), "it has shown no progress for 10m");
  now_ += Rehearsal::kStallMax;
  rehearsal_.WentOn(now_);
  EXPECT_EQ(rehearsal_.TakeStalled(now_), "") << "the time until then does not count";
}

}  // namespace
}  // namespace muster::rehearsal_test
