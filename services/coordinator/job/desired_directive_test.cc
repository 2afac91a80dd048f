#include "services/coordinator/job/desired_directive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/time/time.h"

namespace muster::desired_directive_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const absl::Time kNow = absl::FromUnixSeconds(1000);

// A job of two workers and two ps, each of which has the replica of the other's shard.
class DesiredDirectiveTest : public ::testing::Test {
 protected:
  DesiredDirectiveTest() {
    for (const char* name : {"w-0", "w-1"}) plan_.add_workers()->set_member(name);
    for (const char* name : {"p-0", "p-1"}) plan_.add_shards()->set_member(name);
    plan_.mutable_shards(0)->mutable_backup()->set_member("p-1");
    plan_.mutable_shards(1)->mutable_backup()->set_member("p-0");
    for (int shard = 0; shard < 2; ++shard) plan_.add_chunks()->set_shard(shard);
    members_.Enlist(plan_, kNow);
    checkpoints_.Begin(plan_, kNow);
  }

  void Report(const std::string& name, v1::MemberJobState state, const std::string& address = "") {
    v1::JobReport report;
    report.set_state(state);
    report.set_next_step(7);
    report.set_address(address);
    for (int shard = 0; state == v1::MEMBER_HALTED && shard < 2; ++shard) {
      v1::HeldBackup& replica = *report.add_backups();
      replica.set_shard(shard);
      replica.set_newest_version(7);
    }
    members_.Take(name, &report, kNow);
  }
  void AskForCheckpoint() {
    ASSERT_TRUE(checkpoints_.Ask({.newest_step = 7, .total_steps = total_steps_}));
  }
  std::optional<v1::Directive> Wanted(const std::string& name) const {
    return DesiredDirective(name, {.state = state_,
                                   .suspend_requested = suspend_requested_,
                                   .total_steps = total_steps_,
                                   .plan = plan_,
                                   .members = members_,
                                   .checkpoints = checkpoints_,
                                   .recovery = recovery_});
  }
  v1::Directive::KindCase Kind(const std::string& name) const {
    const auto wanted = Wanted(name);
    return wanted ? wanted->kind_case() : v1::Directive::KIND_NOT_SET;
  }

  v1::JobState state_ = v1::RUNNING;
  bool suspend_requested_ = false;
  int64_t total_steps_ = 100;
  v1::JobPlan plan_;
  JobMembers members_;
  CheckpointPolicy checkpoints_{/*first_snapshot=*/1, /*committed_step=*/-1};
  Recovery recovery_;
};

TEST_F(DesiredDirectiveTest, AMemberWithoutTheGenerationPreparesItWhileTheJobPrepares) {
  state_ = v1::PREPARING;
  Report("w-0", v1::MEMBER_PREPARING);
  EXPECT_EQ(Kind("w-0"), v1::Directive::KIND_NOT_SET);
  EXPECT_EQ(Kind("p-0"), v1::Directive::kPrepare);

  state_ = v1::RUNNING;
  EXPECT_EQ(Kind("p-0"), v1::Directive::KIND_NOT_SET) << "it has forgotten the job";
}

TEST_F(DesiredDirectiveTest, APreparedMemberStartsUpToTheLastStep) {
  Report("w-0", v1::MEMBER_PREPARED);
  Report("p-0", v1::MEMBER_RUNNING);
  ASSERT_EQ(Kind("w-0"), v1::Directive::kStart);
  EXPECT_EQ(Wanted("w-0")->start().total_steps(), 100);
  EXPECT_THAT(Wanted("w-0")->start().addresses(), IsEmpty());
  EXPECT_EQ(Kind("p-0"), v1::Directive::KIND_NOT_SET);
}

TEST_F(DesiredDirectiveTest, WithAllreduceNoWorkerStartsBeforeAllAddressesAreKnown) {
  plan_.mutable_spec()->mutable_sync()->set_mode(v1::ALLREDUCE);
  for (int rank = 0; rank < 2; ++rank) {
    plan_.mutable_shards(rank)->clear_backup();
    plan_.mutable_shards(rank)->set_member(plan_.workers(rank).member());
  }
  members_.Enlist(plan_, kNow);
  Report("w-0", v1::MEMBER_PREPARED, "of w-0");
  EXPECT_EQ(Kind("w-0"), v1::Directive::KIND_NOT_SET);
  Report("w-1", v1::MEMBER_RUNNING, "of w-1");
  ASSERT_EQ(Kind("w-0"), v1::Directive::kStart);
  EXPECT_THAT(Wanted("w-0")->start().addresses(), ElementsAre("of w-0", "of w-1"));
}

TEST_F(DesiredDirectiveTest, RunningWorkersPauseInModesWhereAllCanStopAtOneStep) {
  suspend_requested_ = true;
  for (const char* name : {"w-0", "w-1", "p-0"}) Report(name, v1::MEMBER_RUNNING);
  Report("w-1", v1::MEMBER_PAUSED);
  EXPECT_EQ(Kind("w-0"), v1::Directive::kPause);
  EXPECT_EQ(Kind("w-1"), v1::Directive::KIND_NOT_SET);
  EXPECT_EQ(Kind("p-0"), v1::Directive::KIND_NOT_SET);

  for (const auto mode : {v1::SSP, v1::ASP, v1::LOCAL_SGD}) {
    plan_.mutable_spec()->mutable_sync()->set_mode(mode);
    EXPECT_EQ(Kind("w-0"), v1::Directive::KIND_NOT_SET) << v1::SyncMode_Name(mode);
  }
  plan_.mutable_spec()->mutable_sync()->set_mode(v1::BSP);
  EXPECT_EQ(Kind("w-0"), v1::Directive::kPause);
  plan_.mutable_spec()->mutable_sync()->set_backup_workers(1);
  EXPECT_EQ(Kind("w-0"), v1::Directive::KIND_NOT_SET) << "one worker misses each step";
}

TEST_F(DesiredDirectiveTest, EveryShardGetsASnapshotDirectiveUntilItAnswers) {
  for (const char* name : {"w-0", "p-0", "p-1"}) Report(name, v1::MEMBER_RUNNING);
  EXPECT_EQ(Kind("p-0"), v1::Directive::KIND_NOT_SET);
  AskForCheckpoint();
  EXPECT_EQ(Kind("w-0"), v1::Directive::KIND_NOT_SET) << "it has no shard";
  ASSERT_EQ(Kind("p-0"), v1::Directive::kSnapshot);
  EXPECT_EQ(Wanted("p-0")->snapshot().step(), checkpoints_.asked_step());
  EXPECT_THAT(Wanted("p-0")->snapshot().backups(), IsEmpty());

  checkpoints_.Answered(0);
  EXPECT_EQ(Kind("p-0"), v1::Directive::KIND_NOT_SET);
  EXPECT_EQ(Kind("p-1"), v1::Directive::kSnapshot);
}

TEST_F(DesiredDirectiveTest, ARunningMemberOfARecoveringJobIsHaltedBeforeASnapshot) {
  state_ = v1::RECOVERING;
  recovery_.Begin(/*carries=*/true, absl::ZeroDuration(), kNow);
  Report("p-0", v1::MEMBER_RUNNING);
  ASSERT_TRUE(checkpoints_.AskHalted(7, kNow));
  EXPECT_EQ(Kind("p-0"), v1::Directive::kHalt);
}

TEST_F(DesiredDirectiveTest, TheReplicaOfALostShardIsSavedByItsPs) {
  state_ = v1::RECOVERING;
  recovery_.Begin(/*carries=*/true, absl::ZeroDuration(), kNow);
  for (const char* name : {"w-0", "w-1", "p-0", "p-1"}) Report(name, v1::MEMBER_HALTED);
  ASSERT_TRUE(checkpoints_.AskHalted(7, kNow));
  ASSERT_EQ(Kind("p-0"), v1::Directive::kSnapshot);
  EXPECT_THAT(Wanted("p-0")->snapshot().backups(), IsEmpty()) << "p-1 has its own shard";

  members_.SetLost("p-1");
  ASSERT_EQ(Kind("p-0"), v1::Directive::kSnapshot);
  EXPECT_THAT(Wanted("p-0")->snapshot().backups(), ElementsAre(1));
  EXPECT_EQ(Kind("p-1"), v1::Directive::KIND_NOT_SET);
  checkpoints_.Answered(0);
  EXPECT_EQ(Kind("p-0"), v1::Directive::kSnapshot) << "it must answer for the replica, too";
  checkpoints_.Answered(1);
  EXPECT_EQ(Kind("p-0"), v1::Directive::KIND_NOT_SET);
}

}  // namespace
}  // namespace muster::desired_directive_test
