#include "services/coordinator/job/job_deadlines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/coordinator/common/proto_time.h"
#include "services/coordinator/job/checkpoint_policy.h"
#include "services/coordinator/job/job.h"
#include "services/coordinator/job/recovery/failure_detector.h"
#include "services/coordinator/testing/job_fixture.h"

namespace muster::job_deadlines_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

class JobDeadlinesTest : public JobTest {
 protected:
  JobDeadlinesTest() {
    v1::Job record = Record();
    *record.mutable_create_time() = ToProto(now_);
    record.mutable_spec()->mutable_restart()->set_max_restarts(3);
    record.mutable_spec()->mutable_active_deadline()->set_seconds(100);
    record.mutable_spec()->mutable_start_timeout()->set_seconds(60);
    job_ = Job(record, nullptr, /*term=*/1, now_);
  }

  void RestartCoordinator() { job_ = Job(job_.record(), job_.plan(), /*term=*/2, now_); }
  // Runs until both workers have reported the steps before step 5.
  void RunToStepFive() {
    Run();
    for (const char* name : {"w-0", "w-1"}) {
      v1::JobReport report = Say(v1::MEMBER_RUNNING, 5);
      for (int64_t step = 0; step < 5; ++step) report.add_steps()->set_step(step);
      job_.Report(name, &report, now_);
    }
    TakeEffects();
  }
  absl::Duration ActiveTime() const { return JobDeadlines::ActiveTime(job_.record(), now_); }
  void SayHalted(const std::string& ps, int64_t oldest, int64_t newest) {
    v1::JobReport report = Say(v1::MEMBER_HALTED, newest);
    report.set_oldest_version(oldest);
    job_.Report(ps, &report, now_);
  }
  // Loses w-1. The others halt, and the shards hold step 5.
  void LoseWorker() {
    job_.MemberLost("w-1", "crashed", now_);
    Report("w-0", v1::MEMBER_HALTED, 5);
    SayHalted("p-0", 4, 5);
    SayHalted("p-1", 5, 5);
    job_.TakeEffects();
  }
};

TEST_F(JobDeadlinesTest, TimeCountsFromTheFirstStepThroughRecoveriesButNotWhileSuspended) {
  now_ += absl::Seconds(20);
  Schedule();
  now_ += absl::Seconds(20);
  EXPECT_EQ(ActiveTime(), absl::ZeroDuration()) << "it has not run yet";
  ReportAll(v1::MEMBER_PREPARED, v1::MEMBER_PREPARED);
  ASSERT_EQ(job_.state(), v1::RUNNING);
  ReportAll(v1::MEMBER_RUNNING, v1::MEMBER_RUNNING, 5);
  now_ += absl::Seconds(10);
  LoseWorker();
  ASSERT_EQ(job_.state(), v1::RECOVERING);
  now_ += absl::Seconds(10);
  Schedule(5, "", job_.plan());
  now_ += absl::Seconds(10);
  EXPECT_EQ(ActiveTime(), absl::Seconds(30));
  RestartCoordinator();
  EXPECT_EQ(ActiveTime(), absl::Seconds(30));

  ReportAll(v1::MEMBER_PREPARED, v1::MEMBER_PREPARED, 5);
  ASSERT_TRUE(job_.Suspend(now_).ok());
  ReportAll(v1::MEMBER_PAUSED, v1::MEMBER_RUNNING, 5);
  Commit(5);
  ASSERT_EQ(job_.state(), v1::SUSPENDED);
  now_ += absl::Hours(1);
  ASSERT_TRUE(job_.Resume(nullptr, now_).ok());
  now_ += absl::Hours(1);
  EXPECT_EQ(ActiveTime(), absl::Seconds(30));
  Run(5, "jobs/net-1/checkpoints/5");
  now_ += absl::Seconds(5);
  EXPECT_EQ(ActiveTime(), absl::Seconds(35));
  now_ -= absl::Hours(10);
  EXPECT_EQ(ActiveTime(), absl::Seconds(30)) << "the clock was set back";
}

// Time does not count while steps cannot be recorded, or while the coordinator is partitioned.
TEST_F(JobDeadlinesTest, FrozenTimeDoesNotCountTowardsDeadlines) {
  RunToStepFive();
  Pass(absl::Seconds(90));
  for (int i = 0; i < 30; ++i) {
    now_ += absl::Seconds(1);
    job_.WentOn(now_);
    Pass(absl::ZeroDuration());
  }
  now_ += absl::Hours(1);
  job_.WentOn(now_);
  Pass(absl::ZeroDuration());
  EXPECT_FALSE(job_.record().suspend_requested());
  EXPECT_EQ(ActiveTime(), absl::Seconds(90));
  LoseWorker();
  now_ += absl::Hours(1);
  job_.WentOn(now_);
  EXPECT_EQ(JobDeadlines::WaitingTime(job_.record(), now_), absl::ZeroDuration());
  Pass(absl::Seconds(9));
  EXPECT_FALSE(job_.record().suspend_requested());
  Pass(absl::Seconds(1));
  EXPECT_TRUE(job_.record().suspend_requested());
}

TEST_F(JobDeadlinesTest, AtItsDeadlineTheJobWritesACheckpointAndFails) {
  Run();
  ReportAll(v1::MEMBER_RUNNING, v1::MEMBER_RUNNING, 20);
  Sent();
  Pass(absl::Seconds(99));
  EXPECT_EQ(job_.state(), v1::RUNNING);
  EXPECT_FALSE(job_.record().suspend_requested());

  Pass(absl::Seconds(1));

  EXPECT_EQ(job_.state(), v1::RUNNING) << "its steps are in no checkpoint";
  EXPECT_THAT(Sent(), IsSupersetOf({"w-0 pause", "w-1 pause"}));
  const uint64_t revision = job_.record().revision();
  Pass(absl::Seconds(1));
  EXPECT_EQ(job_.record().revision(), revision) << "reported once";
  RestartCoordinator();
  ReportAll(v1::MEMBER_PAUSED, v1::MEMBER_RUNNING, 21);
  EXPECT_THAT(Sent(), IsSupersetOf({"p-0 snapshot", "p-1 snapshot"}));
  Commit(21);
  EXPECT_EQ(job_.state(), v1::FAILED);
  EXPECT_EQ(job_.record().reason(), "ACTIVE_DEADLINE");
  EXPECT_THAT(job_.record().message(), AllOf(HasSubstr("active for 1m40s (active_deadline: 1m40s)"),
                                             HasSubstr("of 100"), HasSubstr("stopped at step 21"),
                                             HasSubstr("--set checkpoint.resume_from=net-1@21")));
  EXPECT_FALSE(job_.record().suspend_requested());
}

TEST_F(JobDeadlinesTest, AJobWithACheckpointOfItsStepWritesNoOther) {
  Run();
  Commit(50);
  Pass(absl::Seconds(100));
  Sent();
  ReportAll(v1::MEMBER_PAUSED, v1::MEMBER_RUNNING, 50);
  EXPECT_EQ(job_.state(), v1::FAILED);
}

TEST_F(JobDeadlinesTest, ADeadlineDoesNotWaitForeverForACheckpoint) {
  Run();
  ReportAll(v1::MEMBER_RUNNING, v1::MEMBER_RUNNING, 20);
  Pass(absl::Seconds(100));
  Pass(JobDeadlines::kStopPatience - absl::Seconds(1));
  EXPECT_EQ(job_.state(), v1::RUNNING);
  Pass(absl::Seconds(1));
  EXPECT_EQ(job_.state(), v1::FAILED);
  EXPECT_THAT(job_.record().message(), HasSubstr("no checkpoint of that could be written in 10m"));
}

TEST_F(JobDeadlinesTest, AJobThatHasNeverRunFailsAfterItsStartTimeout) {
  now_ += absl::Seconds(59);
  EXPECT_FALSE(job_.WaitsTooLong(now_));
  RestartCoordinator();
  now_ += absl::Seconds(1);
  ASSERT_TRUE(job_.WaitsTooLong(now_));
  job_.StopWaiting("members: it needs 2 workers", now_);
  EXPECT_EQ(job_.state(), v1::FAILED);
  EXPECT_EQ(job_.record().reason(), "START_TIMEOUT");
  EXPECT_THAT(job_.record().message(),
              HasSubstr("waited for 1m (start_timeout: 1m) for members: it needs 2 workers"));
}

TEST_F(JobDeadlinesTest, AJobThatHasRunIsSavedAndSuspendedAfterItsStartTimeout) {
  Run();
  ReportAll(v1::MEMBER_RUNNING, v1::MEMBER_RUNNING, 5);
  now_ += absl::Seconds(10);
  LoseWorker();
  now_ += absl::Seconds(59);
  EXPECT_FALSE(job_.WaitsTooLong(now_)) << "the wait began with the recovery";
  now_ += absl::Seconds(1);
  ASSERT_TRUE(job_.WaitsTooLong(now_));

  job_.StopWaiting("members: it has 1 worker and needs 2", now_);

  EXPECT_TRUE(job_.RecoversToStop()) << "step 5 is in no checkpoint";
  RestartCoordinator();
  EXPECT_TRUE(job_.RecoversToStop());
  Report("w-0", v1::MEMBER_HALTED, 5);
  SayHalted("p-0", 4, 5);
  SayHalted("p-1", 5, 5);
  Schedule(5, "", job_.plan());
  ReportAll(v1::MEMBER_PREPARED, v1::MEMBER_PREPARED, 5);
  ReportAll(v1::MEMBER_RUNNING, v1::MEMBER_RUNNING, 5);
  ReportAll(v1::MEMBER_PAUSED, v1::MEMBER_RUNNING, 5);
  EXPECT_EQ(job_.state(), v1::RUNNING) << "its checkpoint is not committed yet";
  Commit(5);
  TakeEffects();
  EXPECT_EQ(job_.state(), v1::SUSPENDED);
  EXPECT_EQ(job_.record().reason(), "START_TIMEOUT");
  EXPECT_THAT(job_.record().message(),
              AllOf(HasSubstr("for members: it has 1 worker and needs 2; stopped at step 5"),
                    HasSubstr("`muster resume net-1`")));
  ASSERT_TRUE(job_.Resume(nullptr, now_).ok());
  EXPECT_EQ(job_.state(), v1::QUEUED);
  EXPECT_FALSE(job_.WaitsTooLong(now_)) << "a new wait";
  now_ += absl::Seconds(60);
  job_.StopWaiting("members", now_);
  EXPECT_EQ(job_.state(), v1::SUSPENDED) << "it has run, and does not fail";
}

TEST_F(JobDeadlinesTest, AWaitingJobIsSuspendedOnceItsShardsAreSaved) {
  RunToStepFive();
  Commit(4);
  LoseWorker();
  now_ += absl::Seconds(60);
  job_.Wait(JobPhase::kWaitsForMembers, "it has 1 worker and needs 2", now_);
  job_.TakeEffects();

  job_.StopWaiting("members: it has 1 worker and needs 2", now_);

  EXPECT_EQ(job_.state(), v1::RECOVERING);
  EXPECT_EQ(job_.record().stop_cause().reason(), "START_TIMEOUT");
  const Job::Effects effects = job_.TakeEffects();
  ASSERT_EQ(effects.events.size(), 1u);
  EXPECT_EQ(effects.events[0].reason(), "START_TIMEOUT");
  EXPECT_THAT(effects.events[0].message(),
              AllOf(HasSubstr("has waited for 1m"), HasSubstr("step 5, which its shards hold")));
  EXPECT_EQ(effects.directives.size(), 2u) << "a snapshot of each shard";
  EXPECT_FALSE(job_.ResumesAt(now_).has_value());
  Pass(absl::Seconds(1));
  EXPECT_EQ(job_.state(), v1::RECOVERING) << "the save is under way";
  Commit(5);
  EXPECT_EQ(job_.state(), v1::SUSPENDED);
  EXPECT_EQ(job_.record().reason(), "START_TIMEOUT");
  EXPECT_THAT(job_.record().message(),
              AllOf(HasSubstr("for members: it has 1 worker and needs 2; stopped at step 5"),
                    HasSubstr("`muster resume net-1`")));
  EXPECT_EQ(job_.record().checkpoint(), "jobs/net-1/checkpoints/5");
  EXPECT_THAT(Sent(), IsSupersetOf({"w-0 release", "p-0 release", "p-1 release"}));
}

TEST_F(JobDeadlinesTest, IfTheSaveFailsTheMessageNamesTheErrorAndTheCheckpoint) {
  RunToStepFive();
  Commit(4);
  LoseWorker();
  now_ += absl::Seconds(60);
  job_.Wait(JobPhase::kWaitsForMembers, "needs two", now_);
  job_.StopWaiting("members", now_);
  for (int i = 0; i < CheckpointPolicy::kHaltedAttempts; ++i) {
    Sent();
    ASSERT_EQ(job_.state(), v1::RECOVERING);
    job_.CheckpointFailed(5, snapshot_.snapshot(), absl::InternalError("bad sector"), now_);
    Pass(CheckpointPolicy::kPatience);
  }
  EXPECT_EQ(job_.state(), v1::SUSPENDED);
  EXPECT_EQ(job_.record().reason(), "START_TIMEOUT");
  EXPECT_THAT(job_.record().message(), AllOf(HasSubstr("could not be saved (bad sector)"),
                                             HasSubstr("goes back to net-1@4")));
}

TEST_F(JobDeadlinesTest, AtItsDeadlineAWaitingJobIsSavedAndFails) {
  RunToStepFive();
  LoseWorker();
  job_.Wait(JobPhase::kWaitsForMembers, "needs two", now_);
  Pass(absl::Seconds(100));
  EXPECT_EQ(job_.state(), v1::RECOVERING);
  EXPECT_THAT(Sent(), IsSupersetOf({"p-0 snapshot", "p-1 snapshot"}));
  RestartCoordinator();
  job_.Restore({.edges = {{.step = 4}}});
  Report("w-0", v1::MEMBER_HALTED, 5);
  SayHalted("p-0", 4, 5);
  SayHalted("p-1", 5, 5);
  Pass(FailureDetector::kRestartGrace);  // w-1 has not reattached
  Pass(absl::Seconds(1));
  EXPECT_THAT(Sent(), IsSupersetOf({"p-0 snapshot", "p-1 snapshot"}))
      << "the restarted coordinator continues the stop";
  Commit(5);
  EXPECT_EQ(job_.state(), v1::FAILED);
  EXPECT_EQ(job_.record().reason(), "ACTIVE_DEADLINE");
  EXPECT_THAT(job_.record().message(), AllOf(HasSubstr("stopped at step 5"),
                                             HasSubstr("--set checkpoint.resume_from=net-1@5")));
}

TEST_F(JobDeadlinesTest, AStopEndsAtOnceIfItsShardsAreLost) {
  Run();
  ReportAll(v1::MEMBER_RUNNING, v1::MEMBER_RUNNING, 5);
  LoseWorker();
  now_ += absl::Seconds(60);
  job_.StopWaiting("members", now_);
  job_.MemberLost("p-0", "crashed", now_);
  Pass(absl::Seconds(1));
  EXPECT_EQ(job_.state(), v1::SUSPENDED);
}

TEST_F(JobDeadlinesTest, MessagesOfDeadlinesUseWholeSeconds) {
  v1::Job record = Record();
  *record.mutable_create_time() = ToProto(now_);
  record.mutable_spec()->mutable_active_deadline()->set_seconds(100);
  record.mutable_spec()->mutable_start_timeout()->set_seconds(60);
  record.mutable_progress()->set_step(5);
  record.mutable_progress()->set_total_steps(100);
  const v1::StopCause waits =
      JobDeadlines::WaitedTooLong(record, "a ps", now_ + absl::Milliseconds(60500));
  EXPECT_EQ(waits.reason(), JobDeadlines::kStartTimeout);
  EXPECT_EQ(waits.message(), "it has waited for 1m (start_timeout: 1m) for a ps");

  *record.mutable_active_since() = ToProto(now_);
  const v1::StopCause runs = JobDeadlines::PastDeadline(record, now_ + absl::Milliseconds(100900));
  EXPECT_EQ(runs.reason(), kActiveDeadline);
  EXPECT_EQ(runs.message(),
            "it has been active for 1m40s (active_deadline: 1m40s) and has come to step 5 of 100");
}

}  // namespace
}  // namespace muster::job_deadlines_test
