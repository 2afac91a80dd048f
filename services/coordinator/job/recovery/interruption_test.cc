#include "services/coordinator/job/recovery/interruption.h"

#include <gtest/gtest.h>

#include <string>

namespace muster::interruption_test {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

class InterruptionTest : public ::testing::Test {
 protected:
  InterruptionTest() {
    plan_.set_generation(4);
    plan_.set_carries(3);
    plan_.add_workers()->set_member("w-0");
    for (const char* name : {"p-0", "p-1"}) plan_.add_shards()->set_member(name);
    members_.Enlist(plan_, kStart);
  }

  void Report(const std::string& name, v1::MemberJobState state, int64_t oldest = 0,
              int64_t newest = 0) {
    v1::JobReport report;
    report.set_state(state);
    report.set_oldest_version(oldest);
    report.set_next_step(newest);
    members_.Take(name, &report, now_);
  }
  void HaltAll(int64_t oldest, int64_t newest) {
    Report("w-0", v1::MEMBER_HALTED, 0, newest);
    for (const char* name : {"p-0", "p-1"}) Report(name, v1::MEMBER_HALTED, oldest, newest);
  }
  v1::Directive::KindCase WantedOf(const std::string& name) const {
    const auto wanted = interruption_.WantedOf(members_.at(name), plan_);
    return wanted ? wanted->kind_case() : v1::Directive::KIND_NOT_SET;
  }

  absl::Time now_ = kStart;
  v1::JobPlan plan_;
  JobMembers members_;
  Interruption interruption_;
};

TEST_F(InterruptionTest, OnlyBspShardsContinueInPlace) {
  for (const auto mode :
       {v1::SYNC_MODE_UNSPECIFIED, v1::BSP, v1::SSP, v1::ASP, v1::LOCAL_SGD, v1::ALLREDUCE}) {
    plan_.mutable_spec()->mutable_sync()->set_mode(mode);
    EXPECT_EQ(Interruption::CanCarry(plan_), mode == v1::SYNC_MODE_UNSPECIFIED || mode == v1::BSP);
  }
  plan_.mutable_spec()->mutable_sync()->set_mode(v1::BSP);
  plan_.mutable_spec()->mutable_sync()->set_backup_workers(1);
  EXPECT_FALSE(Interruption::CanCarry(plan_));
}

TEST_F(InterruptionTest, CanDoWithoutAWorkerIfShardsContinueInPlace) {
  EXPECT_TRUE(Interruption::CanDoWithout(plan_, members_, "w-0"));
  plan_.mutable_spec()->mutable_sync()->set_mode(v1::ASP);
  EXPECT_FALSE(Interruption::CanDoWithout(plan_, members_, "w-0"));
}

TEST_F(InterruptionTest, CanDoWithoutAPsOnceReplicasHoldItsShards) {
  plan_.set_first_step(5);
  Report("w-0", v1::MEMBER_RUNNING, 0, /*newest=*/7);
  EXPECT_FALSE(Interruption::CanDoWithout(plan_, members_, "p-0")) << "its shard has no replica";

  plan_.mutable_shards(0)->mutable_backup()->set_member("p-1");
  members_.Enlist(plan_, now_);
  members_.SetLeaving("p-0");
  Report("w-0", v1::MEMBER_RUNNING, 0, 6);
  EXPECT_FALSE(Interruption::CanDoWithout(plan_, members_, "p-0"))
      << "the replica may not be filled yet";
  Report("w-0", v1::MEMBER_RUNNING, 0, 7);
  EXPECT_TRUE(Interruption::CanDoWithout(plan_, members_, "p-0"));
  Report("w-0", v1::MEMBER_DONE, 0, 7);
  EXPECT_FALSE(Interruption::CanDoWithout(plan_, members_, "p-0")) << "the job is about to end";
}

TEST_F(InterruptionTest, CountsRecoveriesInARowUntilTheJobMakesANewStep) {
  v1::RestartSpec policy;
  policy.set_max_restarts(2);
  auto recovery = Interruption::Count({}, policy, /*step=*/0);
  ASSERT_TRUE(recovery.has_value());
  EXPECT_EQ(recovery->in_row(), 1);
  recovery = Interruption::Count(*recovery, policy, 0);
  ASSERT_TRUE(recovery.has_value());
  EXPECT_EQ(recovery->in_row(), 2);
  EXPECT_FALSE(Interruption::Count(*recovery, policy, 0).has_value());

  recovery = Interruption::Count(*recovery, policy, 1);
  ASSERT_TRUE(recovery.has_value());
  EXPECT_EQ(recovery->in_row(), 1);
  EXPECT_EQ(recovery->count(), 3);
}

TEST_F(InterruptionTest, RepeatedStepsAddUpOverRecoveries) {
  v1::JobRecovery recovery;
  recovery.set_step(57);
  Interruption::NoteResumption(/*first_step=*/50, /*made=*/55, recovery);
  EXPECT_EQ(recovery.resumed_step(), 50);
  EXPECT_EQ(recovery.steps_again(), 7);
  Interruption::NoteResumption(40, 58, recovery);
  EXPECT_EQ(recovery.resumed_step(), 50) << "a resumption after a suspension is no recovery";

  recovery.clear_resumed_step();
  Interruption::NoteResumption(50, 58, recovery);
  EXPECT_EQ(recovery.steps_again(), 7 + 8) << "a member reported one more step";
  recovery.clear_resumed_step();
  Interruption::NoteResumption(59, 59, recovery);
  EXPECT_EQ(recovery.steps_again(), 7 + 8);
  EXPECT_EQ(recovery.resumed_step(), 59);
}

TEST_F(InterruptionTest, FirstRecoveryDoesNotWaitAndLaterOnesBackOff) {
  v1::RestartSpec policy;
  auto backoff = [&](int in_row) {
    v1::JobRecovery recovery;
    recovery.set_in_row(in_row);
    return Interruption::Backoff(recovery, policy);
  };
  EXPECT_EQ(backoff(1), absl::ZeroDuration());
  EXPECT_EQ(backoff(2), Interruption::kFirstBackoff);
  EXPECT_EQ(backoff(3), 2 * Interruption::kFirstBackoff);
  EXPECT_EQ(backoff(1000), Interruption::kBackoffMax);

  policy.mutable_backoff()->set_seconds(7);
  EXPECT_EQ(backoff(1), absl::ZeroDuration());
  EXPECT_EQ(backoff(3), absl::Seconds(14));
  EXPECT_EQ(backoff(1000), Interruption::kBackoffMax);
  policy.mutable_backoff()->set_seconds(60);
  EXPECT_EQ(backoff(2), absl::Seconds(60));
  EXPECT_EQ(backoff(1000), absl::Seconds(60));
  policy.mutable_backoff()->set_seconds(0);
  EXPECT_EQ(backoff(1000), absl::ZeroDuration());
}

TEST_F(InterruptionTest, ResumesAtTheCommonVersionOnceAllMembersHaveStopped) {
  interruption_.Begin(/*carries=*/true, absl::Seconds(2), now_);
  Report("w-0", v1::MEMBER_HALTED, 0, 7);
  Report("p-0", v1::MEMBER_HALTED, 6, 7);
  EXPECT_FALSE(interruption_.NoteStopped(plan_, members_, now_));
  now_ += absl::Seconds(1);
  Report("p-1", v1::MEMBER_HALTED, 7, 8);
  EXPECT_FALSE(interruption_.NoteStopped(plan_, members_, now_));
  EXPECT_FALSE(interruption_.ResumesAt(plan_, members_, now_).has_value()) << "the back-off lasts";

  const auto resumption = interruption_.ResumesAt(plan_, members_, now_ + absl::Seconds(1));

  ASSERT_TRUE(resumption.has_value());
  EXPECT_TRUE(resumption->carries);
  EXPECT_EQ(resumption->first_step, 7);
  EXPECT_EQ(resumption->since, now_);
}

TEST_F(InterruptionTest, ShardsThatAreTooFarApartAreReleased) {
  interruption_.Begin(/*carries=*/true, absl::ZeroDuration(), now_);
  HaltAll(6, 7);
  Report("p-1", v1::MEMBER_HALTED, 9, 10);
  EXPECT_EQ(WantedOf("p-0"), v1::Directive::KIND_NOT_SET);

  EXPECT_TRUE(interruption_.NoteStopped(plan_, members_, now_));

  EXPECT_FALSE(interruption_.carries());
  EXPECT_EQ(WantedOf("p-0"), v1::Directive::kRelease);
  EXPECT_FALSE(interruption_.ResumesAt(plan_, members_, now_)->carries);
}

TEST_F(InterruptionTest, HaltsRunningMembersAndReleasesPreparingOnesWithoutShards) {
  interruption_.Begin(/*carries=*/true, absl::ZeroDuration(), now_);
  Report("w-0", v1::MEMBER_PREPARING);
  Report("p-0", v1::MEMBER_PREPARING);
  Report("p-1", v1::MEMBER_RUNNING);
  EXPECT_EQ(WantedOf("w-0"), v1::Directive::kRelease);
  EXPECT_EQ(WantedOf("p-0"), v1::Directive::kHalt);
  EXPECT_EQ(WantedOf("p-1"), v1::Directive::kHalt);
  interruption_.LoseShards();
  EXPECT_EQ(WantedOf("p-0"), v1::Directive::kRelease);
  members_.SetLost("p-1");
  EXPECT_EQ(WantedOf("p-1"), v1::Directive::KIND_NOT_SET);
}

TEST_F(InterruptionTest, PsThatIsBehindPreparesIfItsShardsContinueInPlace) {
  interruption_.Begin(/*carries=*/true, absl::ZeroDuration(), now_);
  members_.Take("p-0", nullptr, now_, /*behind=*/3);
  EXPECT_EQ(WantedOf("p-0"), v1::Directive::kPrepare);
  members_.Take("p-0", nullptr, now_, /*behind=*/2);
  EXPECT_EQ(WantedOf("p-0"), v1::Directive::kRelease);
}

}  // namespace
}  // namespace muster::interruption_test
