#include "services/coordinator/job/recovery/recovery.h"

#include <gtest/gtest.h>

#include <string>

namespace muster::recovery_test {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

class RecoveryTest : public ::testing::Test {
 protected:
  RecoveryTest() {
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
  v1::Directive::KindCase DesiredOf(const std::string& name) const {
    const auto wanted = recovery_.DesiredOf(members_.at(name), plan_);
    return wanted ? wanted->kind_case() : v1::Directive::KIND_NOT_SET;
  }

  absl::Time now_ = kStart;
  v1::JobPlan plan_;
  JobMembers members_;
  Recovery recovery_;
};

TEST_F(RecoveryTest, OnlyBspShardsContinueInPlace) {
  for (const auto mode :
       {v1::SYNC_MODE_UNSPECIFIED, v1::BSP, v1::SSP, v1::ASP, v1::LOCAL_SGD, v1::ALLREDUCE}) {
    plan_.mutable_spec()->mutable_sync()->set_mode(mode);
    EXPECT_EQ(Recovery::CanContinueInPlace(plan_),
              mode == v1::SYNC_MODE_UNSPECIFIED || mode == v1::BSP);
  }
  plan_.mutable_spec()->mutable_sync()->set_mode(v1::BSP);
  plan_.mutable_spec()->mutable_sync()->set_backup_workers(1);
  EXPECT_FALSE(Recovery::CanContinueInPlace(plan_));
}

TEST_F(RecoveryTest, CanDoWithoutAWorkerIfShardsContinueInPlace) {
  EXPECT_TRUE(Recovery::CanDoWithout(plan_, members_, "w-0"));
  plan_.mutable_spec()->mutable_sync()->set_mode(v1::ASP);
  EXPECT_FALSE(Recovery::CanDoWithout(plan_, members_, "w-0"));
}

TEST_F(RecoveryTest, CanDoWithoutAPsOnceReplicasHoldItsShards) {
  plan_.set_first_step(5);
  Report("w-0", v1::MEMBER_RUNNING, 0, /*newest=*/7);
  EXPECT_FALSE(Recovery::CanDoWithout(plan_, members_, "p-0")) << "its shard has no replica";

  plan_.mutable_shards(0)->mutable_backup()->set_member("p-1");
  members_.Enlist(plan_, now_);
  members_.SetLeaving("p-0");
  Report("w-0", v1::MEMBER_RUNNING, 0, 6);
  EXPECT_FALSE(Recovery::CanDoWithout(plan_, members_, "p-0"))
      << "the replica may not be filled yet";
  Report("w-0", v1::MEMBER_RUNNING, 0, 7);
  EXPECT_TRUE(Recovery::CanDoWithout(plan_, members_, "p-0"));
  Report("w-0", v1::MEMBER_DONE, 0, 7);
  EXPECT_FALSE(Recovery::CanDoWithout(plan_, members_, "p-0")) << "the job is about to end";
}

TEST_F(RecoveryTest, CountsRecoveriesInARowUntilTheJobMakesANewStep) {
  v1::RestartSpec policy;
  policy.set_max_restarts(2);
  auto recovery = Recovery::Count({}, policy, /*step=*/0);
  ASSERT_TRUE(recovery.has_value());
  EXPECT_EQ(recovery->in_row(), 1);
  recovery = Recovery::Count(*recovery, policy, 0);
  ASSERT_TRUE(recovery.has_value());
  EXPECT_EQ(recovery->in_row(), 2);
  EXPECT_FALSE(Recovery::Count(*recovery, policy, 0).has_value());

  recovery = Recovery::Count(*recovery, policy, 1);
  ASSERT_TRUE(recovery.has_value());
  EXPECT_EQ(recovery->in_row(), 1);
  EXPECT_EQ(recovery->count(), 3);
}

TEST_F(RecoveryTest, RepeatedStepsAddUpOverRecoveries) {
  v1::JobRecovery recovery;
  recovery.set_step(57);
  Recovery::NoteResumePoint(/*first_step=*/50, /*made=*/55, recovery);
  EXPECT_EQ(recovery.resumed_step(), 50);
  EXPECT_EQ(recovery.steps_again(), 7);
  Recovery::NoteResumePoint(40, 58, recovery);
  EXPECT_EQ(recovery.resumed_step(), 50) << "a resumption after a suspension is no recovery";

  recovery.clear_resumed_step();
  Recovery::NoteResumePoint(50, 58, recovery);
  EXPECT_EQ(recovery.steps_again(), 7 + 8) << "a member reported one more step";
  recovery.clear_resumed_step();
  Recovery::NoteResumePoint(59, 59, recovery);
  EXPECT_EQ(recovery.steps_again(), 7 + 8);
  EXPECT_EQ(recovery.resumed_step(), 59);
}

TEST_F(RecoveryTest, FirstRecoveryDoesNotWaitAndLaterOnesBackOff) {
  v1::RestartSpec policy;
  auto backoff = [&](int in_row) {
    v1::JobRecovery recovery;
    recovery.set_in_row(in_row);
    return Recovery::Backoff(recovery, policy);
  };
  EXPECT_EQ(backoff(1), absl::ZeroDuration());
  EXPECT_EQ(backoff(2), Recovery::kFirstBackoff);
  EXPECT_EQ(backoff(3), 2 * Recovery::kFirstBackoff);
  EXPECT_EQ(backoff(1000), Recovery::kBackoffMax);

  policy.mutable_backoff()->set_seconds(7);
  EXPECT_EQ(backoff(1), absl::ZeroDuration());
  EXPECT_EQ(backoff(3), absl::Seconds(14));
  EXPECT_EQ(backoff(1000), Recovery::kBackoffMax);
  policy.mutable_backoff()->set_seconds(60);
  EXPECT_EQ(backoff(2), absl::Seconds(60));
  EXPECT_EQ(backoff(1000), absl::Seconds(60));
  policy.mutable_backoff()->set_seconds(0);
  EXPECT_EQ(backoff(1000), absl::ZeroDuration());
}

TEST_F(RecoveryTest, ResumesAtTheCommonVersionOnceAllMembersHaveStopped) {
  recovery_.Begin(/*carries=*/true, absl::Seconds(2), now_);
  Report("w-0", v1::MEMBER_HALTED, 0, 7);
  Report("p-0", v1::MEMBER_HALTED, 6, 7);
  EXPECT_FALSE(recovery_.NoteStopped(plan_, members_, now_));
  now_ += absl::Seconds(1);
  Report("p-1", v1::MEMBER_HALTED, 7, 8);
  EXPECT_FALSE(recovery_.NoteStopped(plan_, members_, now_));
  EXPECT_FALSE(recovery_.ResumesAt(plan_, members_, now_).has_value()) << "the back-off lasts";

  const auto resume_point = recovery_.ResumesAt(plan_, members_, now_ + absl::Seconds(1));

  ASSERT_TRUE(resume_point.has_value());
  EXPECT_TRUE(resume_point->carries);
  EXPECT_EQ(resume_point->first_step, 7);
  EXPECT_EQ(resume_point->since, now_);
}

TEST_F(RecoveryTest, ShardsThatAreTooFarApartAreReleased) {
  recovery_.Begin(/*carries=*/true, absl::ZeroDuration(), now_);
  HaltAll(6, 7);
  Report("p-1", v1::MEMBER_HALTED, 9, 10);
  EXPECT_EQ(DesiredOf("p-0"), v1::Directive::KIND_NOT_SET);

  EXPECT_TRUE(recovery_.NoteStopped(plan_, members_, now_));

  EXPECT_FALSE(recovery_.carries());
  EXPECT_EQ(DesiredOf("p-0"), v1::Directive::kRelease);
  EXPECT_FALSE(recovery_.ResumesAt(plan_, members_, now_)->carries);
}

TEST_F(RecoveryTest, HaltsRunningMembersAndReleasesPreparingOnesWithoutShards) {
  recovery_.Begin(/*carries=*/true, absl::ZeroDuration(), now_);
  Report("w-0", v1::MEMBER_PREPARING);
  Report("p-0", v1::MEMBER_PREPARING);
  Report("p-1", v1::MEMBER_RUNNING);
  EXPECT_EQ(DesiredOf("w-0"), v1::Directive::kRelease);
  EXPECT_EQ(DesiredOf("p-0"), v1::Directive::kHalt);
  EXPECT_EQ(DesiredOf("p-1"), v1::Directive::kHalt);
  recovery_.LoseShards();
  EXPECT_EQ(DesiredOf("p-0"), v1::Directive::kRelease);
  members_.SetLost("p-1");
  EXPECT_EQ(DesiredOf("p-1"), v1::Directive::KIND_NOT_SET);
}

TEST_F(RecoveryTest, PsThatIsBehindPreparesIfItsShardsContinueInPlace) {
  recovery_.Begin(/*carries=*/true, absl::ZeroDuration(), now_);
  members_.Take("p-0", nullptr, now_, /*behind=*/3);
  EXPECT_EQ(DesiredOf("p-0"), v1::Directive::kPrepare);
  members_.Take("p-0", nullptr, now_, /*behind=*/2);
  EXPECT_EQ(DesiredOf("p-0"), v1::Directive::kRelease);
}

}  // namespace
}  // namespace muster::recovery_test
