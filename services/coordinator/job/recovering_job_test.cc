#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"
#include "services/coordinator/job/checkpoint_policy.h"
#include "services/coordinator/job/job.h"
#include "services/coordinator/job/non_finite_watch.h"
#include "services/coordinator/job/recovery/failure_detector.h"
#include "services/coordinator/job/recovery/recovery.h"
#include "services/coordinator/testing/job_fixture.h"

namespace muster::recovering_job_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class RecoveringJobTest : public JobTest {
 protected:
  RecoveringJobTest() { Begin(Record()); }

  static v1::Job Record() {
    v1::Job record = JobTest::Record();
    record.mutable_spec()->mutable_restart()->set_max_restarts(3);
    return record;
  }
  void Begin(const v1::Job& record) { job_ = Job(record, nullptr, /*term=*/1, now_); }

  // Returns the steps as one worker reports them. The loss of the whole batch is 1.
  v1::JobReport Steps(v1::MemberJobState state, int64_t first, int64_t count) const {
    v1::JobReport report = Say(state, first + count);
    for (int64_t step = first; step < first + count; ++step) {
      report.add_steps()->set_step(step);
      report.mutable_steps()->rbegin()->set_loss_share(0.5);
    }
    return report;
  }
  void Tell(const std::string& member, const v1::JobReport& report) {
    job_.Report(member, &report, now_);
  }
  v1::JobReport NotFinite(int64_t step, const std::string& reason = "LOSS_NOT_FINITE") const {
    v1::JobReport report = Say(v1::MEMBER_FAILED, step);
    v1::MemberError& error = *report.mutable_error();
    error.set_code(static_cast<int>(absl::StatusCode::kOutOfRange));
    error.set_reason(reason);
    error.set_step(step);
    error.set_message(absl::StrCat("the loss of step ", step,
                                   " is nan; the gradients of 1 of 1 parameters are not finite"));
    return report;
  }
  void SayHalted(const std::string& ps, int64_t oldest, int64_t newest) {
    v1::JobReport report = Say(v1::MEMBER_HALTED, newest);
    report.set_oldest_version(oldest);
    Tell(ps, report);
  }
  // Runs until both workers have reported all steps before this one.
  void RunTo(int64_t step) {
    Run();
    for (const char* name : {"w-0", "w-1"}) Tell(name, Steps(v1::MEMBER_RUNNING, 0, step));
    for (const char* name : {"p-0", "p-1"}) Report(name, v1::MEMBER_RUNNING, step);
    TakeEffects();
  }
  // Halts the three members that remain after the loss of w-1.
  void HaltAll(int64_t oldest, int64_t newest) {
    Report("w-0", v1::MEMBER_HALTED, newest);
    SayHalted("p-0", oldest, newest);
    SayHalted("p-1", newest, newest + 1);
  }
  // Returns the report of a worker with another data set.
  v1::JobReport SayOtherData(int64_t next_step = 0) const {
    v1::JobReport report = Say(v1::MEMBER_PREPARED, next_step);
    report.mutable_dataset()->set_samples(999);
    return report;
  }
  // Loses w-1 at step 3. Another process takes its name and rank.
  void ReplaceWorker() {
    job_.MemberLost("w-1", "gone", now_);
    HaltAll(3, 3);
    TakeEffects();
    Schedule(job_.ResumesAt(now_)->first_step, "", job_.plan());
  }
  // Continues from the halted shards, or from the checkpoint, with all members.
  void GoOn() {
    TakeEffects();
    const std::optional<Job::ResumePoint> resume_point = job_.ResumesAt(now_);
    ASSERT_TRUE(resume_point.has_value());
    Schedule(resume_point->first_step, "", resume_point->carries ? job_.plan() : nullptr,
             resume_point->shards);
    ReportAll(v1::MEMBER_PREPARED, v1::MEMBER_PREPARED, resume_point->first_step);
    ASSERT_EQ(job_.state(), v1::RUNNING);
    ReportAll(v1::MEMBER_RUNNING, v1::MEMBER_RUNNING, resume_point->first_step);
  }
};

// Worker 0 waits for the result, and trains no step meanwhile.
TEST_F(RecoveringJobTest, AnEvaluationDoesNotWaitForAWorkerThatJoinsAtItsStep) {
  v1::Job record = Record();
  record.mutable_spec()->mutable_model()->mutable_external();
  Begin(record);
  RunTo(3);
  ReplaceWorker();
  ReportAll(v1::MEMBER_PREPARED, v1::MEMBER_PREPARED, 3);
  ReportAll(v1::MEMBER_RUNNING, v1::MEMBER_RUNNING, 3);
  TakeEffects();

  v1::JobReport report = Say(v1::MEMBER_RUNNING, 3);
  report.add_evaluations()->set_step(3);
  report.mutable_evaluations(0)->set_samples(5);
  Tell("w-0", report);

  std::vector<std::string> told;
  for (const Job::Outgoing& out : job_.TakeEffects().directives) {
    if (!out.directive.acknowledge().has_evaluation()) continue;
    told.push_back(absl::StrCat(out.member, ": ", out.directive.acknowledge().evaluation().step()));
  }
  EXPECT_THAT(told, UnorderedElementsAre("w-0: 3", "w-1: 3"));
}

TEST_F(RecoveringJobTest, ALostWorkerHaltsTheOthersAndTheJobContinuesAtTheStepOfAllShards) {
  Run();
  ReportAll(v1::MEMBER_RUNNING, v1::MEMBER_RUNNING, 7);
  TakeEffects();

  job_.MemberLost("w-1", "its lease ran out", now_);

  EXPECT_EQ(job_.state(), v1::RECOVERING);
  EXPECT_EQ(job_.record().reason(), "MEMBER_LOST");
  EXPECT_EQ(job_.record().message(),
            "w-1 (worker, rank 1) was lost at step 7: its lease ran out; 1 worker waits for its "
            "gradients");
  EXPECT_EQ(job_.record().recovery().count(), 1);
  EXPECT_FALSE(job_.Uses("w-1"));
  EXPECT_THAT(Sent(), UnorderedElementsAre("w-0 halt", "p-0 halt", "p-1 halt"));
  EXPECT_FALSE(job_.ResumesAt(now_).has_value()) << "no member has stopped";

  Report("w-0", v1::MEMBER_HALTED, 8);
  SayHalted("p-0", 7, 8);
  EXPECT_FALSE(job_.ResumesAt(now_).has_value());
  SayHalted("p-1", 8, 9);
  const std::optional<Job::ResumePoint> resume_point = job_.ResumesAt(now_);
  ASSERT_TRUE(resume_point.has_value());
  EXPECT_TRUE(resume_point->carries);
  EXPECT_EQ(resume_point->first_step, 8);
  EXPECT_THAT(Sent(), IsEmpty());

  GoOn();
  EXPECT_EQ(job_.plan()->carries(), 1);
  EXPECT_EQ(job_.record().generation(), 2);
  EXPECT_TRUE(job_.Uses("w-1"));
}

TEST_F(RecoveringJobTest, WithoutTheShardsOfALostPsItContinuesFromTheCheckpoint) {
  Run();
  job_.MemberLost("p-1", "gone", now_);
  EXPECT_THAT(Sent(), UnorderedElementsAre("w-0 halt", "w-1 halt", "p-0 halt"));
  EXPECT_FALSE(job_.KeepsShards());
  EXPECT_TRUE(job_.HoldsMemory());
  Report("w-0", v1::MEMBER_HALTED);
  Report("w-1", v1::MEMBER_HALTED);
  EXPECT_FALSE(job_.ResumesAt(now_).has_value());
  EXPECT_TRUE(job_.HoldsMemory()) << "its ps has not halted";
  SayHalted("p-0", 3, 4);
  EXPECT_THAT(Sent(), ElementsAre("p-0 release")) << "its shards are not needed";
  EXPECT_FALSE(job_.HoldsMemory());
  ASSERT_TRUE(job_.ResumesAt(now_).has_value());
  EXPECT_FALSE(job_.ResumesAt(now_)->carries);
}

// A job that lost w-1. The next process of that name failed its warm-up, and there is no other
// worker.
class ExcludedJobTest : public RecoveringJobTest {
 protected:
  ExcludedJobTest() {
    v1::Job record = Record();
    record.mutable_spec()->mutable_resources()->mutable_workers()->set_min(2);
    Begin(record);
    RunTo(3);
    job_.MemberLost("w-1", "gone", now_);
    job_.BeginWarmUp(*job_.plan(), {"w-1"}, now_);
    v1::JobPlan warmed_up;
    EXPECT_TRUE(warmed_up.ParseFromString(*job_.warm_up().plan()));
    v1::JobReport report = CannotPrepare();
    report.set_rehearsal(warmed_up.rehearsal());
    Tell("w-1", report);
    HaltAll(3, 3);
    TakeEffects();
    ScheduleAgain();
  }
  v1::JobReport CannotPrepare() const {
    v1::JobReport report = Say(v1::MEMBER_FAILED);
    report.mutable_error()->set_code(static_cast<int>(absl::StatusCode::kNotFound));
    report.mutable_error()->set_message("no such file");
    return report;
  }
  void ScheduleAgain() {
    const std::optional<Job::ResumePoint> resume_point = job_.ResumesAt(now_);
    ASSERT_TRUE(resume_point.has_value());
    Schedule(resume_point->first_step, "", job_.plan(), resume_point->shards);
  }
};

TEST_F(ExcludedJobTest, ANewTrialOfAnExcludedWorkerIsAnEventWithItsEarlierFailure) {
  const v1::JobEvent event = TakeEffects().events.back();
  EXPECT_EQ(event.reason(), "WORKER_TRIED_AGAIN");
  EXPECT_EQ(event.message(),
            "w-1 takes part though it could not before (no such file): there are 1 other "
            "workers, and the job needs 2");
  ReportAll(v1::MEMBER_PREPARED, v1::MEMBER_PREPARED, 3);
  ASSERT_EQ(job_.state(), v1::RUNNING);
  EXPECT_EQ(job_.exclusions().Why("w-1"), nullptr) << "its trial succeeded";
}

TEST_F(ExcludedJobTest, AFailedTrialDoesNotFailTheJob) {
  Tell("w-1", CannotPrepare());
  EXPECT_EQ(job_.state(), v1::RECOVERING) << job_.record().message();
  EXPECT_FALSE(job_.Uses("w-1"));
  Tell("w-1", CannotPrepare());
  EXPECT_THAT(Sent(), Contains("w-1 release"));
  EXPECT_NE(job_.exclusions().Why("w-1"), nullptr);
}

TEST_F(ExcludedJobTest, AnotherProcessOfThatNameIsNotExcluded) {
  job_.Replaced("w-1");
  EXPECT_EQ(job_.exclusions().Why("w-1"), nullptr);
}

TEST_F(RecoveringJobTest, AFailureOfASubstituteDoesNotFailTheJob) {
  RunTo(3);
  job_.MemberLost("w-1", "gone", now_);
  HaltAll(3, 3);
  TakeEffects();
  Schedule(3, "", job_.plan(), job_.ResumesAt(now_)->shards);
  TakeEffects();
  v1::JobReport failed = Say(v1::MEMBER_FAILED);
  failed.mutable_error()->set_code(static_cast<int>(absl::StatusCode::kNotFound));
  failed.mutable_error()->set_reason("DATA_NOT_FOUND");
  failed.mutable_error()->set_message("no such file");
  Tell("w-1", failed);
  EXPECT_EQ(job_.state(), v1::RECOVERING) << job_.record().message();
  EXPECT_EQ(job_.record().reason(), "DATA_NOT_FOUND");
  EXPECT_FALSE(job_.Uses("w-1"));
  EXPECT_TRUE(job_.KeepsShards());
  EXPECT_THAT(Sent(), Contains("w-1 release"));
  ASSERT_NE(job_.exclusions().Why("w-1"), nullptr);
  EXPECT_EQ(*job_.exclusions().Why("w-1"), "no such file");
}

TEST_F(RecoveringJobTest, ASubstituteThatHasNotTrainedStaysASubstitute) {
  RunTo(3);
  job_.MemberLost("w-1", "gone", now_);
  HaltAll(3, 3);
  TakeEffects();
  Schedule(3, "", job_.plan(), job_.ResumesAt(now_)->shards);
  Report("w-1", v1::MEMBER_PREPARED);
  job_.MemberLost("w-0", "gone, too", now_);
  Report("w-1", v1::MEMBER_HALTED);
  HaltAll(3, 3);
  TakeEffects();
  now_ += absl::Minutes(1);
  Schedule(3, "", job_.plan(), job_.ResumesAt(now_)->shards);
  Tell("w-1", Say(v1::MEMBER_FAILED));
  EXPECT_EQ(job_.state(), v1::RECOVERING) << job_.record().message();
}

TEST_F(RecoveringJobTest, AFailureOfAMemberThatTrainedFailsTheJob) {
  RunTo(3);
  job_.MemberLost("w-1", "gone", now_);
  HaltAll(3, 3);
  TakeEffects();
  Schedule(3, "", job_.plan(), job_.ResumesAt(now_)->shards);
  v1::JobReport failed = Say(v1::MEMBER_FAILED);
  failed.mutable_error()->set_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
  Tell("w-0", failed);
  EXPECT_EQ(job_.state(), v1::FAILED);
}

TEST_F(ExcludedJobTest, AnEndedJobForgetsExcludedWorkers) {
  ASSERT_TRUE(job_.Cancel(now_).ok());
  EXPECT_EQ(job_.exclusions().Why("w-1"), nullptr);
}

// Two shards, each with its replica on the ps of the other.
class ReplicatedJobTest : public RecoveringJobTest {
 protected:
  ReplicatedJobTest() {
    v1::Job record = Record();
    record.mutable_spec()->mutable_resources()->set_ps(2);
    record.mutable_spec()->mutable_resources()->set_ps_replication(2);
    Begin(record);
  }

  void SayHalted(const std::string& ps, int64_t oldest, int64_t newest, int64_t in_replica) {
    v1::JobReport report = Say(v1::MEMBER_HALTED, newest);
    report.set_oldest_version(oldest);
    v1::HeldBackup& replica = *report.add_backups();
    replica.set_shard(ps == "p-0" ? 1 : 0);
    replica.set_oldest_version(in_replica - 1);
    replica.set_newest_version(in_replica);
    Tell(ps, report);
  }
};

TEST_F(ReplicatedJobTest, AReplicaReplacesALostPsAtMostAStepBack) {
  Run();
  ReportAll(v1::MEMBER_RUNNING, v1::MEMBER_RUNNING, 7);
  job_.MemberLost("p-1", "gone", now_);
  EXPECT_TRUE(job_.KeepsShards());
  Report("w-0", v1::MEMBER_HALTED);
  Report("w-1", v1::MEMBER_HALTED);
  TakeEffects();
  SayHalted("p-0", 7, 8, /*in_replica=*/7);
  EXPECT_THAT(Sent(), IsEmpty()) << "its shards are needed";
  const std::optional<Job::ResumePoint> resume_point = job_.ResumesAt(now_);
  ASSERT_TRUE(resume_point.has_value());
  EXPECT_TRUE(resume_point->carries);
  EXPECT_EQ(resume_point->first_step, 7);
  ASSERT_EQ(resume_point->shards.size(), 2u);
  for (const v1::PlanShard& shard : resume_point->shards) {
    EXPECT_EQ(shard.member(), "p-0");
    EXPECT_FALSE(shard.has_backup());
  }

  GoOn();  // p-1 has reattached
  for (const v1::PlanShard& shard : job_.plan()->shards()) {
    EXPECT_EQ(shard.backup().member(), "p-1");
    EXPECT_FALSE(shard.backup().carries());
  }
  EXPECT_EQ(job_.plan()->restore(), "");
  EXPECT_THAT(job_.record().ps(), ElementsAre("p-0", "p-1"));
}

TEST_F(ReplicatedJobTest, IfShardAndReplicaAreLostItContinuesFromTheCheckpoint) {
  Run();
  job_.MemberLost("p-1", "gone", now_);
  Report("w-0", v1::MEMBER_HALTED);
  Report("w-1", v1::MEMBER_HALTED);
  job_.MemberLost("p-0", "gone, too", now_);
  ASSERT_TRUE(job_.ResumesAt(now_).has_value());
  EXPECT_FALSE(job_.ResumesAt(now_)->carries);
}

TEST_F(ReplicatedJobTest, AnIncompleteReplicaDoesNotCount) {
  Run();
  job_.MemberLost("p-1", "gone", now_);
  Report("w-0", v1::MEMBER_HALTED);
  Report("w-1", v1::MEMBER_HALTED);
  EXPECT_TRUE(job_.KeepsShards()) << "the replica has not reported yet";
  RecoveringJobTest::SayHalted("p-0", 0, 1);
  EXPECT_FALSE(job_.KeepsShards());
  EXPECT_FALSE(job_.ResumesAt(now_)->carries);
}

TEST_F(ReplicatedJobTest, ShardsAreLostIfTheirPsDiesBeforeTheNextReplicasAreFilled) {
  Run();
  job_.MemberLost("p-1", "gone", now_);
  Report("w-0", v1::MEMBER_HALTED);
  Report("w-1", v1::MEMBER_HALTED);
  SayHalted("p-0", 3, 4, /*in_replica=*/4);
  TakeEffects();
  Schedule(4, "", job_.plan(), job_.ResumesAt(now_)->shards);
  job_.MemberLost("p-0", "gone", now_);
  EXPECT_FALSE(job_.KeepsShards());
}

TEST_F(ReplicatedJobTest, APsThatCannotHoldNewReplicasIsExcluded) {
  Run();
  job_.MemberLost("p-1", "gone", now_);
  Report("w-0", v1::MEMBER_HALTED);
  Report("w-1", v1::MEMBER_HALTED);
  SayHalted("p-0", 3, 4, /*in_replica=*/4);
  TakeEffects();
  Schedule(4, "", job_.plan(), job_.ResumesAt(now_)->shards);
  v1::JobReport failed = Say(v1::MEMBER_FAILED);
  failed.mutable_error()->set_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
  failed.mutable_error()->set_reason("MEMORY_EXHAUSTED");
  failed.mutable_error()->set_message("no memory");
  Tell("p-1", failed);
  EXPECT_EQ(job_.state(), v1::RECOVERING) << job_.record().message();
  EXPECT_TRUE(job_.KeepsShards());
  EXPECT_FALSE(job_.Uses("p-1"));
  EXPECT_NE(job_.exclusions().Why("p-1"), nullptr) << "it gets no replicas for now";
  const auto wait = [&](absl::Duration time) {
    now_ += time;
    // The first call may decide on a failure, and then does nothing else.
    for (int i = 0; i < 2; ++i) job_.Tick(/*writing=*/false, now_);
  };
  wait(absl::Minutes(59));
  EXPECT_NE(job_.exclusions().Why("p-1"), nullptr);
  wait(absl::Minutes(1));
  EXPECT_EQ(job_.exclusions().Why("p-1"), nullptr) << "it may have memory by now";
}

TEST_F(ReplicatedJobTest, ASlowPsMayHoldReplicasAgainSoon) {
  Run();
  job_.MemberLost("w-1", "gone", now_);
  Report("w-0", v1::MEMBER_HALTED);
  SayHalted("p-0", 3, 4, /*in_replica=*/4);
  const auto wait = [&](absl::Duration time) {
    now_ += time;
    job_.Tick(/*writing=*/false, now_);
  };
  wait(FailureDetector::kHaltMax);
  ASSERT_NE(job_.exclusions().Why("p-1"), nullptr) << "it has not halted";
  wait(FailureDetector::kSlowExcluded - absl::Seconds(1));
  EXPECT_NE(job_.exclusions().Why("p-1"), nullptr);
  wait(absl::Seconds(1));
  EXPECT_EQ(job_.exclusions().Why("p-1"), nullptr);
}

TEST_F(ReplicatedJobTest, AfterTheLossOfAWorkerReplicasContinueInPlace) {
  Run();
  job_.MemberLost("w-1", "gone", now_);
  Report("w-0", v1::MEMBER_HALTED);
  SayHalted("p-0", 7, 8, /*in_replica=*/7);
  SayHalted("p-1", 7, 8, /*in_replica=*/8);
  const std::optional<Job::ResumePoint> resume_point = job_.ResumesAt(now_);
  ASSERT_TRUE(resume_point.has_value());
  EXPECT_EQ(resume_point->first_step, 7) << "all have it";
  for (const v1::PlanShard& shard : resume_point->shards) EXPECT_TRUE(shard.backup().carries());
}

TEST_F(ReplicatedJobTest, AJobWithoutReplicasReportsItAndIsHaltedForThem) {
  Run();
  EXPECT_FALSE(job_.TakesReplicas(now_ + Job::kReplicasJoinAfter)) << "it has them";
  job_.MemberLost("p-1", "gone", now_);
  Report("w-0", v1::MEMBER_HALTED);
  Report("w-1", v1::MEMBER_HALTED);
  SayHalted("p-0", 7, 8, /*in_replica=*/8);
  const auto shards = job_.ResumesAt(now_)->shards;
  PlanRequest request{
      .job = job_.record(), .first_step = 8, .carried = job_.plan(), .shards = shards};
  request.ps.emplace_back().set_member("p-0");
  request.ps[0].add_addresses("address");
  for (const char* name : {"w-0", "w-1"}) request.workers.emplace_back().set_member(name);
  TakeEffects();
  job_.Schedule(MakePlan(std::move(request)), now_);
  const Job::Effects effects = job_.TakeEffects();
  ASSERT_FALSE(effects.events.empty());
  EXPECT_EQ(effects.events.back().reason(), "NO_BACKUP");
  EXPECT_THAT(effects.events.back().message(), HasSubstr("2 of 2 shards"));

  for (const char* name : {"w-0", "w-1", "p-0"}) Report(name, v1::MEMBER_PREPARED, 8);
  ASSERT_EQ(job_.state(), v1::RUNNING);
  EXPECT_FALSE(job_.TakesReplicas(now_));
  ASSERT_TRUE(job_.TakesReplicas(now_ + Job::kReplicasJoinAfter));
  const int recoveries = job_.record().recovery().count();
  job_.LetReplicasJoin(now_ + Job::kReplicasJoinAfter);
  EXPECT_EQ(job_.state(), v1::RECOVERING);
  EXPECT_EQ(job_.record().reason(), "BACKUPS_JOIN");
  EXPECT_EQ(job_.record().recovery().count(), recoveries) << "no member was lost";
}

TEST_F(RecoveringJobTest, ShardsAtDistantVersionsOrLostDoNotContinueInPlace) {
  Run();
  job_.MemberLost("w-1", "gone", now_);
  Report("w-0", v1::MEMBER_HALTED);
  SayHalted("p-0", 3, 4);
  TakeEffects();
  SayHalted("p-1", 5, 6);
  ASSERT_TRUE(job_.ResumesAt(now_).has_value());
  EXPECT_FALSE(job_.ResumesAt(now_)->carries);
  EXPECT_FALSE(job_.KeepsShards());
  EXPECT_THAT(Sent(), UnorderedElementsAre("p-0 release", "p-1 release"));

  Begin(Record());
  Run();
  job_.MemberLost("w-1", "gone", now_);
  Report("w-0", v1::MEMBER_HALTED);
  SayHalted("p-0", 4, 5);
  SayHalted("p-1", 4, 5);
  EXPECT_TRUE(job_.ResumesAt(now_)->carries);
  TakeEffects();
  job_.MemberLost("p-0", "gone too", now_);
  ASSERT_TRUE(job_.ResumesAt(now_).has_value());
  EXPECT_FALSE(job_.ResumesAt(now_)->carries);
  EXPECT_THAT(Sent(), ElementsAre("p-1 release"));
}

TEST_F(RecoveringJobTest, APsThatForgotTheJobHoldsNoShards) {
  Run();
  for (const char* name : {"w-0", "w-1", "p-0", "p-1"}) job_.Report(name, nullptr, now_);
  ASSERT_EQ(job_.state(), v1::RECOVERING);
  ASSERT_TRUE(job_.ResumesAt(now_).has_value());
  EXPECT_FALSE(job_.ResumesAt(now_)->carries);
  EXPECT_FALSE(job_.KeepsShards());
}

// The Prepare directive for p-1 is on its way, or was lost with its stream.
TEST_F(RecoveringJobTest, APsThatMissedAGenerationKeepsItsShards) {
  Run();
  job_.MemberLost("w-1", "crashed", now_);
  HaltAll(4, 5);
  v1::JobReport behind = Say(v1::MEMBER_HALTED, 5);
  behind.set_oldest_version(4);
  Schedule(5, "", job_.plan());
  Report("p-0", v1::MEMBER_PREPARED, 5);
  Report("w-0", v1::MEMBER_PREPARING, 5);
  job_.MemberLost("w-1", "crashed again", now_);
  job_.Report("w-0", nullptr, now_);
  SayHalted("p-0", 5, 5);
  now_ += absl::Seconds(3);
  TakeEffects();
  Tell("p-1", behind);
  EXPECT_FALSE(job_.ResumesAt(now_).has_value());
  EXPECT_THAT(Sent(), Contains("p-1 prepare"));
  Report("p-1", v1::MEMBER_PREPARED, 5);
  EXPECT_THAT(Sent(), ElementsAre("p-1 halt"));
  SayHalted("p-1", 5, 5);
  EXPECT_TRUE(job_.ResumesAt(now_)->carries);
}

TEST_F(RecoveringJobTest, TheJobContinuesWithoutAMemberThatDoesNotHalt) {
  Run();
  job_.MemberLost("w-1", "crashed", now_);
  SayHalted("p-0", 4, 5);
  SayHalted("p-1", 5, 5);
  Report("w-0", v1::MEMBER_RUNNING, 5);
  TakeEffects();
  Pass(FailureDetector::kHaltMax);
  EXPECT_FALSE(job_.Uses("w-0"));
  EXPECT_THAT(Sent(), Contains("w-0 release")) << "the directive may still arrive";
  EXPECT_TRUE(job_.ResumesAt(now_)->carries);
  ASSERT_NE(job_.exclusions().Why("w-0"), nullptr);
  EXPECT_EQ(*job_.exclusions().Why("w-0"), "it did not halt for 2m");
  EXPECT_EQ(job_.exclusions().Why("w-1"), nullptr) << "a crash does not exclude it";
}

// The worker gave up waiting for the coordinator. Its present step has not ended yet.
TEST_F(RecoveringJobTest, AWorkerThatHaltedByItselfHasForgottenTheJob) {
  Run();
  Report("w-0", v1::MEMBER_HALTED, 5);
  EXPECT_EQ(job_.state(), v1::RECOVERING);
  EXPECT_EQ(job_.record().reason(), "MEMBER_FORGOT_JOB");
}

TEST_F(RecoveringJobTest, TheMessageSaysWhatHappenedAndWhatTheJobWaitsFor) {
  RunTo(5);
  job_.MemberLost("w-1", "gone", now_);
  const std::string happened = job_.record().message();
  for (int i = 0; i < 2; ++i) {
    job_.WaitFor(JobPhase::kWaitsForMembers, "members: it has 1 worker", now_);
    EXPECT_EQ(job_.record().message(), happened + "; waits for members: it has 1 worker");
    job_ = Job(job_.record(), job_.plan(), /*term=*/2, now_);
    job_.WaitFor(JobPhase::kWaitsForMemory, "memory of ps", now_);
    EXPECT_EQ(job_.record().message(), happened + "; waits for memory of ps");
  }
}

TEST_F(RecoveringJobTest, SuspendingDuringARecoverySavesTheShardsFirst) {
  Run();
  job_.MemberLost("w-1", "crashed", now_);
  HaltAll(4, 5);
  Schedule(5, "", job_.plan());
  ASSERT_TRUE(job_.Suspend(now_).ok());
  EXPECT_EQ(job_.state(), v1::PREPARING);
  ReportAll(v1::MEMBER_PREPARED, v1::MEMBER_PREPARED, 5);
  ReportAll(v1::MEMBER_PAUSED, v1::MEMBER_RUNNING, 5);
  EXPECT_EQ(job_.state(), v1::RUNNING) << "step 5 is in no checkpoint";
  Commit(5);
  TakeEffects();
  EXPECT_EQ(job_.state(), v1::SUSPENDED);
}

// A correct member never sends this. The coordinator must not believe it, and must not fail the
// job.
TEST_F(RecoveringJobTest, AFailureReportAfterHaltedDoesNotFailTheJob) {
  Run();
  job_.MemberLost("w-1", "crashed", now_);
  HaltAll(4, 5);
  ASSERT_TRUE(job_.ResumesAt(now_)->carries);
  Report("p-0", v1::MEMBER_FAILED, 5);
  EXPECT_FALSE(job_.ResumesAt(now_).has_value());
  SayHalted("p-0", 4, 5);
  EXPECT_TRUE(job_.ResumesAt(now_)->carries);
}

TEST_F(RecoveringJobTest, OnlyBspContinuesInPlace) {
  for (const auto mode : {v1::SSP, v1::ASP, v1::LOCAL_SGD}) {
    v1::Job record = Record();
    record.mutable_spec()->mutable_sync()->set_mode(mode);
    record.mutable_spec()->mutable_sync()->set_every(2);
    Begin(record);
    Run();
    job_.MemberLost("w-1", "gone", now_);
    EXPECT_THAT(Sent(), UnorderedElementsAre("w-0 halt", "p-0 halt", "p-1 halt"));
    EXPECT_FALSE(job_.KeepsShards());
  }
}

TEST_F(RecoveringJobTest, AMemberWithoutStreamAndLinksIsLostAtOnce) {
  Run();
  Report("w-1", v1::MEMBER_RUNNING, 3);
  v1::JobReport report = Say(v1::MEMBER_RUNNING, 3);
  report.add_lost_links("w-1");
  Tell("p-0", report);
  EXPECT_EQ(job_.state(), v1::RUNNING) << "it still has its stream";
  job_.StreamBroken("w-0", now_);
  EXPECT_EQ(job_.state(), v1::RUNNING) << "it may reattach within its lease";
  job_.Reattached("w-0");
  job_.StreamBroken("w-1", now_);
  EXPECT_EQ(job_.state(), v1::RECOVERING);
  EXPECT_THAT(job_.record().message(), HasSubstr("w-1 (worker, rank 1) was lost at step 3"));
}

TEST_F(RecoveringJobTest, AnAccusedMemberWithoutAStreamIsLostAtOnce) {
  Run();
  v1::JobReport report = Say(v1::MEMBER_FAILED, 3);
  report.mutable_error()->set_reason("PS_UNREACHABLE");
  report.mutable_error()->set_culprit("p-1");
  report.mutable_error()->set_step(3);
  report.mutable_error()->set_message("connection reset");
  job_.StreamBroken("p-1", now_);
  Tell("w-0", report);
  EXPECT_EQ(job_.state(), v1::RECOVERING);
  EXPECT_THAT(job_.record().message(), HasSubstr("p-1 (ps, shard 1) was lost at step 3"));
  EXPECT_THAT(job_.record().message(), HasSubstr("w-0: connection reset"));
}

TEST_F(RecoveringJobTest, AFailureThatWouldRepeatFailsTheJob) {
  Run();
  v1::JobReport report = Say(v1::MEMBER_FAILED, 3);
  report.mutable_error()->set_code(static_cast<int>(absl::StatusCode::kNotFound));
  report.mutable_error()->set_reason("DATA_NOT_FOUND");
  Tell("w-0", report);
  EXPECT_EQ(job_.state(), v1::FAILED);
}

TEST_F(RecoveringJobTest, ANonFiniteLossFailsTheJobAndNamesItsLastCheckpoint) {
  Run();
  Commit(50);
  Tell("w-0", NotFinite(57));
  EXPECT_EQ(job_.state(), v1::FAILED);
  EXPECT_EQ(job_.record().reason(), "LOSS_NOT_FINITE");
  EXPECT_THAT(job_.record().message(),
              AllOf(HasSubstr("the loss of step 57 is nan; the gradients of 1 of 1 parameters"),
                    HasSubstr("Try a lower learning rate"),
                    HasSubstr("--set checkpoint.resume_from=net-1@50")));
}

TEST_F(RecoveringJobTest, NonFiniteDataFailTheJobOrRollItBack) {
  Run();
  Tell("w-0", NotFinite(57, "DATA_NOT_FINITE"));
  EXPECT_EQ(job_.state(), v1::FAILED);
  EXPECT_EQ(job_.record().reason(), "DATA_NOT_FINITE");
  EXPECT_THAT(job_.record().message(),
              AllOf(HasSubstr("Correct that row"), HasSubstr("It has no checkpoint")));

  v1::Job record = Record();
  record.mutable_spec()->set_on_non_finite(v1::NON_FINITE_ROLLBACK);
  Begin(record);
  Run();
  Tell("w-0", NotFinite(57, "DATA_NOT_FINITE"));
  EXPECT_EQ(job_.state(), v1::RECOVERING);
  EXPECT_EQ(job_.record().recovery().rollbacks(), 1);
}

TEST_F(RecoveringJobTest, ANonFiniteLossRollsTheJobBackAFewTimes) {
  v1::Job record = Record();
  record.mutable_spec()->set_on_non_finite(v1::NON_FINITE_ROLLBACK);
  Begin(record);
  Run();
  Commit(50);
  auto roll_back = [this](int64_t step) {
    Tell("w-0", NotFinite(step));
    for (const char* name : {"w-0", "w-1", "p-0", "p-1"}) job_.Report(name, nullptr, now_);
    TakeEffects();
  };
  roll_back(57);
  ASSERT_EQ(job_.state(), v1::RECOVERING);
  EXPECT_EQ(job_.record().reason(), "LOSS_NOT_FINITE");
  EXPECT_THAT(job_.record().message(),
              HasSubstr("goes back to net-1@50, without batch 57 of the data"));
  ASSERT_TRUE(job_.ResumesAt(now_).has_value());
  EXPECT_FALSE(job_.ResumesAt(now_)->carries);
  EXPECT_EQ(job_.record().recovery().count(), 0) << "no member was lost";
  Run(50, "jobs/net-1/checkpoints/50");
  EXPECT_THAT(job_.plan()->left_out_batches(), ElementsAre(57));

  roll_back(57);  // this step trained on batch 58
  Run(50, "jobs/net-1/checkpoints/50");
  roll_back(51);
  Run(50, "jobs/net-1/checkpoints/50");
  EXPECT_THAT(job_.plan()->left_out_batches(), ElementsAre(51, 57, 58));

  for (int i = 3; i < NonFiniteWatch::kRollbacksMax; ++i) {
    roll_back(60);
    ASSERT_EQ(job_.state(), v1::RECOVERING) << i;
    Run(50, "jobs/net-1/checkpoints/50");
  }
  roll_back(60);
  EXPECT_EQ(job_.state(), v1::FAILED);
  EXPECT_THAT(job_.record().message(), HasSubstr("it was rolled back 8 times"));
}

// The records of repeated steps are known, and are not stored again. The progress shows the
// repeated steps all the same.
TEST_F(RecoveringJobTest, ProgressFollowsRepeatedSteps) {
  RunTo(60);
  Commit(50);
  job_.MemberLost("p-1", "gone", now_);
  Report("w-0", v1::MEMBER_HALTED, 60);
  Report("w-1", v1::MEMBER_HALTED, 60);
  Run(50, "jobs/net-1/checkpoints/50");
  EXPECT_EQ(job_.record().progress().step(), 50);
  TakeEffects();
  Tell("w-0", Steps(v1::MEMBER_RUNNING, 50, 8));
  EXPECT_EQ(job_.record().progress().step(), 50) << "the other worker has not made them";
  Tell("w-1", Steps(v1::MEMBER_RUNNING, 50, 6));
  EXPECT_EQ(job_.record().progress().step(), 56);
  EXPECT_DOUBLE_EQ(job_.record().progress().progress_percentage(), 56);
  EXPECT_THAT(TakeEffects().steps, IsEmpty());

  ASSERT_TRUE(job_.Suspend(now_).ok());
  for (const char* name : {"w-0", "w-1"}) Report(name, v1::MEMBER_PAUSED, 58);
  Commit(58);
  ASSERT_EQ(job_.state(), v1::SUSPENDED);
  EXPECT_EQ(job_.record().progress().step(), 58);
}

TEST_F(RecoveringJobTest, TheShownLossIsThatOfRepeatedSteps) {
  RunTo(60);
  Commit(50);
  job_.MemberLost("p-1", "gone", now_);
  Report("w-0", v1::MEMBER_HALTED, 60);
  Report("w-1", v1::MEMBER_HALTED, 60);
  Run(50, "jobs/net-1/checkpoints/50");
  for (const char* name : {"w-0", "w-1"}) {
    v1::JobReport report = Steps(v1::MEMBER_RUNNING, 50, 3);
    for (v1::StepRecord& step : *report.mutable_steps()) step.set_loss_share(0.25 * step.step());
    Tell(name, report);
  }
  EXPECT_EQ(job_.record().progress().step(), 53);
  EXPECT_DOUBLE_EQ(job_.record().progress().loss(), 26);
  EXPECT_THAT(TakeEffects().steps, IsEmpty()) << "the log has them already";
}

TEST_F(RecoveringJobTest, ARestartedCoordinatorShowsTheStepOfTheJobNotTheEndOfItsLog) {
  RunTo(60);
  Commit(50);
  job_.MemberLost("p-1", "gone", now_);
  Report("w-0", v1::MEMBER_HALTED, 60);
  Report("w-1", v1::MEMBER_HALTED, 60);
  Run(50, "jobs/net-1/checkpoints/50");
  job_ = Job(job_.record(), job_.plan(), /*term=*/2, now_);
  job_.Restore({.edges = {{.step = 0, .loss = 4}, {.step = 59, .loss = 2}}});
  Tell("w-0", Steps(v1::MEMBER_RUNNING, 50, 3));
  Tell("w-1", Steps(v1::MEMBER_RUNNING, 50, 3));
  EXPECT_EQ(job_.record().progress().step(), 53);
  Tell("w-0", Steps(v1::MEMBER_RUNNING, 53, 2));
  Tell("w-1", Steps(v1::MEMBER_RUNNING, 53, 2));
  EXPECT_EQ(job_.record().progress().step(), 55);

  ASSERT_TRUE(job_.Cancel(now_).ok());
  job_ = Job(job_.record(), nullptr, /*term=*/3, now_);
  job_.Restore({.edges = {{.step = 0, .loss = 4}, {.step = 59, .loss = 2}}});
  EXPECT_EQ(job_.record().progress().step(), 55);
}

// The shards contain the result of the faulty step, so they must not continue in place. Yet their
// ps halt and report them as in any other recovery.
TEST_F(RecoveringJobTest, ARestartedCoordinatorContinuesARollback) {
  v1::Job record = Record();
  record.mutable_spec()->set_on_non_finite(v1::NON_FINITE_ROLLBACK);
  Begin(record);
  Run();
  Commit(50);
  Tell("w-0", NotFinite(57));
  ASSERT_EQ(job_.state(), v1::RECOVERING);
  job_ = Job(job_.record(), job_.plan(), /*term=*/2, now_);
  for (const char* name : {"w-0", "w-1"}) Report(name, v1::MEMBER_HALTED, 57);
  for (const char* name : {"p-0", "p-1"}) SayHalted(name, 57, 58);
  ASSERT_TRUE(job_.ResumesAt(now_).has_value());
  EXPECT_FALSE(job_.ResumesAt(now_)->carries);

  // The batch is left out. From here on the job is like any other.
  Run(50, "jobs/net-1/checkpoints/50");
  job_.MemberLost("w-1", "gone", now_);
  job_ = Job(job_.record(), job_.plan(), /*term=*/3, now_);
  EXPECT_TRUE(job_.KeepsShards());
}

TEST_F(RecoveringJobTest, FrozenTimeDoesNotCountTowardsTheHaltTimeout) {
  Run();
  job_.MemberLost("w-1", "gone", now_);
  const absl::Duration nearly = FailureDetector::kHaltMax - absl::Seconds(1);
  now_ += nearly;
  job_.WentOn(now_);
  Pass(nearly);
  EXPECT_TRUE(job_.Uses("p-0"));
  EXPECT_EQ(job_.record().reason(), "MEMBER_LOST");
  Pass(absl::Seconds(2));
  EXPECT_FALSE(job_.Uses("p-0")) << "one member after the other";
}

TEST_F(RecoveringJobTest, NoMemberLeavesAJobThatIsTrainedAndSaved) {
  Run();
  ReportAll(v1::MEMBER_RUNNING, v1::MEMBER_RUNNING, 100);
  Commit(100);  // while an evaluation is still under way
  for (const char* name : {"p-1", "w-1"}) {
    job_.MemberLeaves(name, now_);
    EXPECT_EQ(job_.state(), v1::RUNNING) << name;
  }
}

// For example, a member ends at its --drain_timeout while the last evaluation is under way.
TEST_F(RecoveringJobTest, TheLossOfALeavingMemberIsNotARecovery) {
  v1::Job record = Record();
  record.mutable_spec()->mutable_restart()->set_max_restarts(0);
  Begin(record);
  Run();
  ReportAll(v1::MEMBER_RUNNING, v1::MEMBER_RUNNING, 100);
  Commit(100);
  job_.MemberLeaves("w-1", now_);
  ASSERT_EQ(job_.state(), v1::RUNNING);
  job_.MemberLost("w-1", "it has left", now_);
  EXPECT_EQ(job_.state(), v1::RECOVERING) << job_.record().message();
  EXPECT_FALSE(job_.record().has_recovery());

  record.mutable_spec()->mutable_restart()->set_max_restarts(9);
  record.mutable_recovery()->set_count(3);
  record.mutable_recovery()->set_in_row(3);
  Begin(record);
  Run();
  ReportAll(v1::MEMBER_RUNNING, v1::MEMBER_RUNNING, 100);
  Commit(100);
  job_.MemberLeaves("w-1", now_);
  job_.MemberLost("w-1", "it has left", now_);
  EXPECT_EQ(job_.record().recovery().in_row(), 3);
  HaltAll(99, 100);
  EXPECT_TRUE(job_.ResumesAt(now_).has_value()) << "no failure, so no back-off";
}

TEST_F(RecoveringJobTest, AWorkerDoesNotLeaveAfterAnotherIsDone) {
  Run();
  ReportAll(v1::MEMBER_RUNNING, v1::MEMBER_RUNNING, 99);
  Report("w-0", v1::MEMBER_DONE, 100);
  job_.MemberLeaves("w-1", now_);
  EXPECT_EQ(job_.state(), v1::RUNNING) << "the final checkpoint is being written";
}

// A loss may be infinite although its gradient is finite. Then the step was applied, and training
// continued.
TEST_F(RecoveringJobTest, ARollbackToACheckpointAfterTheStepLeavesOutNoBatch) {
  v1::Job record = Record();
  record.mutable_spec()->set_on_non_finite(v1::NON_FINITE_ROLLBACK);
  Begin(record);
  Run();
  Commit(50);
  Tell("w-0", NotFinite(49));
  EXPECT_EQ(job_.state(), v1::RECOVERING);
  EXPECT_EQ(job_.record().recovery().left_out_batches_size(), 0);
}

// The plan worker reads the checkpoint again. It then uses the previous one, or fails the job.
TEST_F(RecoveringJobTest, ACheckpointThatAMemberFindsDamagedCausesARecovery) {
  Schedule(50, "jobs/net-1/checkpoints/50");
  v1::JobReport report = Say(v1::MEMBER_FAILED, 50);
  report.mutable_error()->set_code(static_cast<int>(absl::StatusCode::kDataLoss));
  report.mutable_error()->set_reason("CHECKPOINT_DAMAGED");
  Tell("p-0", report);
  ASSERT_EQ(job_.state(), v1::RECOVERING);
  EXPECT_EQ(job_.record().reason(), "CHECKPOINT_DAMAGED");
  for (const char* name : {"w-0", "w-1", "p-0", "p-1"}) job_.Report(name, nullptr, now_);

  const auto resume_point = job_.ResumesAt(now_);

  ASSERT_TRUE(resume_point.has_value());
  EXPECT_FALSE(resume_point->carries);
}

TEST_F(RecoveringJobTest, ABelievedAccusationCausesARecoveryWithAllMembers) {
  Run();
  v1::JobReport report = Say(v1::MEMBER_FAILED, 3);
  report.mutable_error()->set_reason("PS_UNREACHABLE");
  report.mutable_error()->set_culprit("p-1");
  Tell("w-0", report);
  Pass(FailureDetector::kAccusationSettles);
  EXPECT_EQ(job_.state(), v1::RECOVERING);
  EXPECT_TRUE(job_.Uses("p-1"));
  Report("w-0", v1::MEMBER_HALTED);
  Report("w-1", v1::MEMBER_HALTED);
  SayHalted("p-0", 2, 3);
  SayHalted("p-1", 3, 3);
  EXPECT_TRUE(job_.ResumesAt(now_)->carries);
}

// The unreported records of the lost worker are lost. The records of the others are kept and
// acknowledged at once, because a worker can hold only a limited number.
TEST_F(RecoveringJobTest, StepsAreRecordedFromTheRemainingWorkers) {
  Run();
  Tell("w-0", Steps(v1::MEMBER_RUNNING, 0, 2));
  Tell("w-1", Steps(v1::MEMBER_RUNNING, 0, 1));
  EXPECT_EQ(TakeEffects().steps.size(), 1);
  job_.MemberLost("w-1", "gone", now_);
  TakeEffects();
  Tell("w-0", Steps(v1::MEMBER_HALTED, 1, 3));  // step 3 was computed, but not applied
  const Job::Effects effects = TakeEffects();
  ASSERT_EQ(effects.steps.size(), 2);
  for (const StepSummary& step : effects.steps) EXPECT_EQ(step.loss, 1) << "from the known records";
  EXPECT_EQ(effects.steps[1].step, 2);
  HaltAll(2, 3);
  GoOn();

  Tell("w-0", Steps(v1::MEMBER_RUNNING, 3, 1));
  Tell("w-1", Steps(v1::MEMBER_RUNNING, 3, 1));
  EXPECT_EQ(TakeEffects().steps.at(0).step, 3) << "both computed it again";
}

TEST_F(RecoveringJobTest, RecordsAreDurableBeforeTheJobResumes) {
  Run();
  job_.MemberLost("w-1", "gone", now_);
  TakeEffects();
  HaltAll(2, 3);
  Tell("w-0", Steps(v1::MEMBER_HALTED, 0, 3));
  EXPECT_FALSE(job_.ResumesAt(now_).has_value());
  TakeEffects();
  EXPECT_TRUE(job_.ResumesAt(now_).has_value());
}

TEST_F(RecoveringJobTest, RecoveriesWithoutANewStepBackOffAndThenFailTheJob) {
  Run();
  absl::Duration backoff = absl::ZeroDuration();
  for (int i = 0; i < 3; ++i) {
    job_.MemberLost("w-1", "crashed", now_);
    HaltAll(0, 0);
    SayHalted("p-1", 0, 0);
    EXPECT_EQ(job_.record().recovery().in_row(), i + 1);
    EXPECT_EQ(job_.ResumesAt(now_).has_value(), i == 0);
    now_ += backoff;
    GoOn();
    backoff = i == 0 ? Recovery::kFirstBackoff : 2 * backoff;
  }
  job_.MemberLost("w-1", "crashed", now_);
  EXPECT_EQ(job_.state(), v1::FAILED);
  EXPECT_THAT(job_.record().message(),
              HasSubstr("3 recoveries in a row have brought no new step (restart.max_restarts)"));
}

TEST_F(RecoveringJobTest, RepeatedStepsAreCountedOnceTheResumePointIsKnown) {
  Run();
  Tell("w-0", Steps(v1::MEMBER_RUNNING, 0, 8));
  Tell("w-1", Steps(v1::MEMBER_RUNNING, 0, 8));
  job_.MemberLost("w-1", "crashed", now_);
  EXPECT_EQ(job_.record().recovery().step(), 8);
  EXPECT_FALSE(job_.record().recovery().has_resumed_step());
  Tell("w-0", Steps(v1::MEMBER_HALTED, 8, 1));
  HaltAll(7, 8);
  GoOn();
  EXPECT_EQ(job_.record().recovery().resumed_step(), 8);
  EXPECT_EQ(job_.record().recovery().steps_again(), 0);

  Commit(5);
  job_.MemberLost("p-0", "crashed", now_);
  EXPECT_FALSE(job_.record().recovery().has_resumed_step());
  for (const char* name : {"w-0", "w-1", "p-1"}) job_.Report(name, nullptr, now_);
  now_ += Recovery::kFirstBackoff;
  TakeEffects();
  Schedule(5, "jobs/net-1/checkpoints/5");
  EXPECT_EQ(job_.record().recovery().resumed_step(), 5);
  EXPECT_EQ(job_.record().recovery().steps_again(), 3);
}

TEST_F(RecoveringJobTest, ARecoveryWithANewStepResetsTheCount) {
  Run();
  for (int64_t step = 0; step < 8; ++step) {
    Tell("w-0", Steps(v1::MEMBER_RUNNING, step, 1));
    Tell("w-1", Steps(v1::MEMBER_RUNNING, step, 1));
    job_.MemberLost("w-1", "crashed", now_);
    EXPECT_EQ(job_.record().recovery().in_row(), 1);
    HaltAll(step, step + 1);
    GoOn();
  }
  EXPECT_EQ(job_.record().recovery().count(), 8);
}

TEST_F(RecoveringJobTest, AMemberLostDuringARecoveryInPlaceHaltsTheShardsAgain) {
  Run();
  job_.MemberLost("w-1", "crashed", now_);
  HaltAll(4, 5);
  Schedule(5, "", job_.plan());
  Report("p-0", v1::MEMBER_PREPARED, 5);
  Report("p-1", v1::MEMBER_PREPARING, 5);
  Report("w-0", v1::MEMBER_PREPARING, 5);
  TakeEffects();
  job_.TakeEffects();
  job_.MemberLost("w-1", "crashed again", now_);
  EXPECT_EQ(job_.state(), v1::RECOVERING);
  EXPECT_THAT(Sent(), UnorderedElementsAre("w-0 release", "p-0 halt", "p-1 halt"));
  job_.Report("w-0", nullptr, now_);
  SayHalted("p-0", 5, 5);
  SayHalted("p-1", 5, 5);
  now_ += Recovery::kFirstBackoff;
  EXPECT_TRUE(job_.ResumesAt(now_)->carries);
}

TEST_F(RecoveringJobTest, AMemberLostBeforeTheFirstStepIsReplaced) {
  Schedule();
  Report("p-0", v1::MEMBER_PREPARED);
  Report("w-0", v1::MEMBER_PREPARING);
  job_.TakeEffects();
  job_.MemberLost("w-1", "crashed", now_);
  EXPECT_EQ(job_.state(), v1::RECOVERING);
  EXPECT_THAT(Sent(), UnorderedElementsAre("w-0 release", "p-0 halt"));
}

TEST_F(RecoveringJobTest, ARestartedCoordinatorContinuesTheRecovery) {
  Run();
  job_.MemberLost("w-1", "crashed", now_);
  job_ = Job(job_.record(), job_.plan(), /*term=*/2, now_);
  EXPECT_EQ(job_.state(), v1::RECOVERING);
  SayHalted("p-0", 4, 5);
  SayHalted("p-1", 5, 5);
  Report("w-0", v1::MEMBER_HALTED);
  EXPECT_FALSE(job_.ResumesAt(now_).has_value()) << "w-1 may still reattach";
  Pass(FailureDetector::kRestartGrace);
  EXPECT_TRUE(job_.ResumesAt(now_)->carries);
}

TEST_F(RecoveringJobTest, MembersThatDoNotReattachToARestartedCoordinatorAreLost) {
  Run();
  job_ = Job(job_.record(), job_.plan(), /*term=*/2, now_);
  Report("w-0", v1::MEMBER_RUNNING, 5);
  Report("p-0", v1::MEMBER_RUNNING, 5);
  Pass(FailureDetector::kRestartGrace);
  EXPECT_EQ(job_.state(), v1::RECOVERING);
  Pass(absl::Milliseconds(1));
  Report("w-0", v1::MEMBER_HALTED, 5);
  SayHalted("p-0", 4, 5);
  EXPECT_FALSE(job_.Uses("w-1"));
  EXPECT_FALSE(job_.Uses("p-1"));
  ASSERT_TRUE(job_.ResumesAt(now_).has_value());
  EXPECT_FALSE(job_.ResumesAt(now_)->carries);
}

TEST_F(RecoveringJobTest, TheRecoveryWaitsForTheLastRecordsOfAWorker) {
  Run();
  job_.MemberLost("w-1", "crashed", now_);
  SayHalted("p-0", 0, 5000);
  SayHalted("p-1", 0, 5000);
  Tell("w-0", Steps(v1::MEMBER_HALTED, 0, limits::kStepRecordsReportedMax));
  EXPECT_FALSE(job_.ResumesAt(now_).has_value());
  Tell("w-0", Steps(v1::MEMBER_HALTED, limits::kStepRecordsReportedMax, 1));
  TakeEffects();
  EXPECT_TRUE(job_.ResumesAt(now_).has_value());
}

// The norm is not reported: the gradients of a skipped step are not finite.
TEST_F(RecoveringJobTest, AStepWithoutANormDoesNotBlockLaterSteps) {
  Run();
  job_.MemberLost("w-1", "crashed", now_);
  SayHalted("p-0", 0, 5000);
  SayHalted("p-1", 0, 5000);
  v1::JobReport page = Steps(v1::MEMBER_HALTED, 0, limits::kStepRecordsReportedMax);
  page.mutable_steps(10)->set_gradient_norm(std::numeric_limits<double>::quiet_NaN());
  Tell("w-0", page);
  const int64_t last = limits::kStepRecordsReportedMax - 1;  // w-1 may have reported it
  EXPECT_EQ(TakeEffects().records->steps, last);
  EXPECT_FALSE(job_.ResumesAt(now_).has_value());
  page = Steps(v1::MEMBER_HALTED, last, 2);
  page.mutable_steps(1)->set_gradient_norm(std::numeric_limits<double>::quiet_NaN());
  Tell("w-0", page);
  TakeEffects();
  EXPECT_TRUE(job_.ResumesAt(now_).has_value());
}

// The workers' ps is gone, and their reports are the first sign of it.
TEST_F(RecoveringJobTest, AnAbandonedStepIsRecordedWhenItIsRepeated) {
  Run();
  const auto tell = [&](v1::MemberJobState state, double norm) {
    for (const char* name : {"w-0", "w-1"}) {
      v1::JobReport report = Steps(state, 0, 1);
      report.mutable_steps(0)->set_gradient_norm(norm);
      report.mutable_error()->set_reason("PS_UNREACHABLE");
      report.mutable_error()->set_culprit("p-1");
      Tell(name, report);
    }
  };
  tell(v1::MEMBER_FAILED, std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(TakeEffects().steps, IsEmpty());
  tell(v1::MEMBER_RUNNING, 5);
  const Job::Effects effects = TakeEffects();
  ASSERT_EQ(effects.steps.size(), 1);
  EXPECT_EQ(effects.steps[0].gradient_norm, 5);
}

TEST_F(RecoveringJobTest, AnAbandonedStepIsRecordedIfTheJobEnds) {
  for (const bool recovers : {false, true}) {
    Begin(Record());
    Run();
    v1::JobReport report = Steps(recovers ? v1::MEMBER_HALTED : v1::MEMBER_FAILED, 0, 1);
    report.mutable_steps(0)->set_gradient_norm(std::numeric_limits<double>::quiet_NaN());
    report.mutable_error()->set_culprit("p-1");
    if (recovers) job_.MemberLost("p-1", "crashed", now_);
    for (const char* name : {"w-0", "w-1"}) Tell(name, report);
    EXPECT_THAT(TakeEffects().steps, IsEmpty());
    ASSERT_TRUE(job_.Cancel(now_).ok());
    EXPECT_EQ(TakeEffects().steps.size(), recovers ? 0 : 1) << "the recovered job may repeat it";
    EXPECT_FALSE(job_.record().progress().has_remaining());
  }
}

TEST_F(RecoveringJobTest, ARecoveryAfterTheLastStepWritesTheFinalCheckpoint) {
  Run();
  ReportAll(v1::MEMBER_DONE, v1::MEMBER_RUNNING, 100);
  job_.MemberLost("w-1", "crashed", now_);
  HaltAll(99, 100);
  SayHalted("p-1", 99, 100);
  GoOn();
  TakeEffects();
  ReportAll(v1::MEMBER_DONE, v1::MEMBER_RUNNING, 100);
  EXPECT_THAT(Sent(), ::testing::IsSupersetOf({"p-0 snapshot", "p-1 snapshot"}));
  EXPECT_EQ(snapshot_.step(), 100);
  Commit(100);
  EXPECT_EQ(job_.state(), v1::SUCCEEDED);
}

TEST_F(RecoveringJobTest, CancelReleasesHaltedMembers) {
  Run();
  job_.MemberLost("w-1", "crashed", now_);
  HaltAll(4, 5);
  job_.TakeEffects();
  ASSERT_TRUE(job_.Cancel(now_).ok());
  EXPECT_THAT(Sent(), ::testing::IsSupersetOf({"w-0 release", "p-0 release", "p-1 release"}));
}

// ---------------------------------------------------------------- joining and leaving

TEST_F(RecoveringJobTest, ALeavingWorkerIsReleasedAfterItsLastRecords) {
  Run();
  job_.MemberLeaves("w-1", now_);
  job_.MemberLeaves("w-1", now_);
  EXPECT_EQ(job_.state(), v1::RECOVERING);
  EXPECT_EQ(job_.record().reason(), "MEMBER_LEAVES");
  EXPECT_FALSE(job_.record().has_recovery()) << "no member has failed";
  EXPECT_THAT(Sent(), UnorderedElementsAre("w-0 halt", "w-1 halt", "p-0 halt", "p-1 halt"));
  HaltAll(4, 5);
  Tell("w-1", Steps(v1::MEMBER_HALTED, 0, limits::kStepRecordsReportedMax));
  EXPECT_FALSE(job_.ResumesAt(now_).has_value());
  now_ += absl::Seconds(3);
  Report("w-1", v1::MEMBER_HALTED, 5);
  EXPECT_THAT(Sent(), Contains("w-1 release"));
  job_.Report("w-1", nullptr, now_);
  EXPECT_TRUE(job_.ResumesAt(now_)->carries);
  const uint64_t revision = job_.record().revision();
  job_.MemberLost("w-1", "it left the fleet", now_);
  EXPECT_EQ(job_.record().revision(), revision) << "as reported before";
  EXPECT_TRUE(job_.ResumesAt(now_)->carries);
}

TEST_F(RecoveringJobTest, ALeavingPsIsReleasedAfterACheckpoint) {
  Run();
  ReportAll(v1::MEMBER_RUNNING, v1::MEMBER_RUNNING, 20);
  Commit(10);
  job_.TakeEffects();
  job_.MemberLeaves("p-1", now_);
  EXPECT_EQ(job_.state(), v1::RUNNING);
  EXPECT_THAT(Sent(), UnorderedElementsAre("p-0 snapshot", "p-1 snapshot"));
  EXPECT_GE(snapshot_.step(), 20);
  job_.CheckpointFailed(snapshot_.step(), snapshot_.snapshot(), absl::InternalError("no"), now_);
  Pass(CheckpointPolicy::kPatience);
  EXPECT_THAT(Sent(), UnorderedElementsAre("p-0 snapshot", "p-1 snapshot")) << "again";
  Commit(snapshot_.step());
  EXPECT_EQ(job_.state(), v1::RECOVERING);
  EXPECT_THAT(Sent(), UnorderedElementsAre("w-0 halt", "w-1 halt", "p-0 halt", "p-1 halt"));
  EXPECT_FALSE(job_.KeepsShards());
  EXPECT_FALSE(job_.record().has_recovery());
}

// The job has lost its workers. The step that its ps hold, `step_`, is in no checkpoint.
class WaitingJobTest : public RecoveringJobTest {
 protected:
  WaitingJobTest() { Wait(); }

  void Wait() {
    RunTo(step_);
    job_.MemberLost("w-0", "gone", now_);
    job_.MemberLost("w-1", "gone", now_);
    SayHalted("p-0", step_ - 1, step_);
    SayHalted("p-1", step_, step_ + 1);
    TakeEffects();
    job_.Wait(JobPhase::kWaitsForMembers, "needs two", now_);
    TakeEffects();
  }
  void AnswerHalted(const std::string& ps, int shard, v1::SnapshotOutcome outcome) {
    v1::JobReport report = Say(v1::MEMBER_HALTED, step_);
    report.set_oldest_version(step_);
    v1::SnapshotReport& answer = *report.add_snapshots();
    answer.set_shard(shard);
    answer.set_snapshot(snapshot_.snapshot());
    answer.set_outcome(outcome);
    Tell(ps, report);
  }
  v1::WriteShardHeader Header() const {
    v1::WriteShardHeader header;
    header.set_generation(job_.record().generation());
    header.set_step(snapshot_.step());
    header.set_snapshot(snapshot_.snapshot());
    return header;
  }

  void RestartCoordinator(const v1::Job& stored) {
    job_ = Job(stored, job_.plan(), /*term=*/2, now_);
    job_.Restore({.edges = {{.step = step_ - 1}}});
  }
  // The ps reattach to a restarted coordinator; no other member does.
  void ComeBackHalted() {
    SayHalted("p-0", step_ - 1, step_);
    SayHalted("p-1", step_, step_ + 1);
    Pass(FailureDetector::kRestartGrace);
    for (int i = 0; i < 3; ++i) Pass(absl::Milliseconds(200));
  }

  int64_t step_ = 5;
};

TEST_F(WaitingJobTest, ALeavingPsIsReleasedOnceTheHaltedShardsAreSaved) {
  ASSERT_TRUE(job_.ResumesAt(now_).has_value());
  job_.MemberLeaves("p-1", now_);
  EXPECT_THAT(Sent(), UnorderedElementsAre("p-0 snapshot", "p-1 snapshot"));
  EXPECT_EQ(snapshot_.step(), 5);
  EXPECT_FALSE(job_.ResumesAt(now_).has_value()) << "the shards are being read";
  EXPECT_TRUE(job_.KeepsShards());
  EXPECT_TRUE(job_.AdmitShard(Header()).ok());
  v1::WriteShardHeader periodic = Header();
  periodic.set_snapshot(0);
  EXPECT_FALSE(job_.AdmitShard(periodic).ok());

  AnswerHalted("p-0", 0, v1::SNAPSHOT_TAKEN);
  now_ += absl::Seconds(3);
  Pass(absl::ZeroDuration());
  AnswerHalted("p-0", 0, v1::SNAPSHOT_TAKEN);
  SayHalted("p-1", 5, 6);
  EXPECT_THAT(Sent(), ElementsAre("p-1 snapshot")) << "the directive may have been lost";
  Commit(5);
  EXPECT_THAT(Sent(), UnorderedElementsAre("p-0 release", "p-1 release"));
  EXPECT_EQ(job_.record().checkpoint(), "jobs/net-1/checkpoints/5");
  EXPECT_EQ(job_.record().message(), "p-1 leaves; the job goes on from net-1@5");
  ASSERT_TRUE(job_.ResumesAt(now_).has_value());
  EXPECT_FALSE(job_.ResumesAt(now_)->carries);
  EXPECT_FALSE(job_.KeepsShards());
}

TEST_F(WaitingJobTest, ShardsThatAreInACheckpointAreNotSavedAgain) {
  Commit(5);
  job_.TakeEffects();
  EXPECT_THAT(Sent(), IsEmpty());
  EXPECT_TRUE(job_.ResumesAt(now_)->carries) << "while no member leaves";
  job_.MemberLeaves("p-1", now_);
  EXPECT_THAT(Sent(), UnorderedElementsAre("p-0 release", "p-1 release"));
}

TEST_F(WaitingJobTest, WithoutATrainedStepNothingIsSaved) {
  Begin(Record());
  Run();
  job_.MemberLost("w-0", "gone", now_);
  job_.MemberLost("w-1", "gone", now_);
  SayHalted("p-0", 0, 0);
  SayHalted("p-1", 0, 0);
  job_.Wait(JobPhase::kWaitsForMembers, "needs two", now_);
  TakeEffects();
  job_.MemberLeaves("p-1", now_);
  EXPECT_THAT(Sent(), UnorderedElementsAre("p-0 release", "p-1 release"));
}

// The present members may be enough to continue in place.
TEST_F(WaitingJobTest, NothingIsSavedBeforeTheJobWaitsForMembers) {
  Begin(Record());
  Run();
  job_.MemberLost("w-1", "gone", now_);
  HaltAll(4, 5);
  job_.MemberLeaves("p-1", now_);
  Pass(absl::Seconds(1));
  EXPECT_THAT(Sent(), testing::Not(Contains("p-1 snapshot")));
  EXPECT_TRUE(job_.ResumesAt(now_)->carries);
  job_.Wait(JobPhase::kWaitsForMembers, "needs two", now_);
  Pass(absl::ZeroDuration());
  EXPECT_THAT(Sent(), UnorderedElementsAre("p-0 snapshot", "p-1 snapshot"));
}

// Between two attempts the job may continue in place. It has made its last step, and cannot end
// without a checkpoint of it.
TEST_F(WaitingJobTest, AFailedSaveIsRetriedAndDoesNotFailTheJob) {
  Begin(Record());
  step_ = job_.record().spec().training().steps();
  Wait();
  job_.MemberLeaves("p-1", now_);
  for (int i = 0; i < 2 * CheckpointPolicy::kFinalAttempts; ++i) {
    SCOPED_TRACE(i);
    EXPECT_THAT(Sent(), UnorderedElementsAre("p-0 snapshot", "p-1 snapshot"));
    const uint64_t failed = snapshot_.snapshot();
    switch (i % 3) {
      case 0:  // the disk
        job_.CheckpointFailed(step_, failed, absl::InternalError("no"), now_);
        break;
      case 1:
        AnswerHalted("p-0", 0, v1::SNAPSHOT_FAILED);
        break;
      default:
        AnswerHalted("p-0", 0, v1::SNAPSHOT_MISSED);
    }
    EXPECT_FALSE(job_.AdmitShard(Header()).ok());
    ASSERT_TRUE(job_.ResumesAt(now_).has_value());
    EXPECT_TRUE(job_.ResumesAt(now_)->carries);
    TakeEffects();
    job_.CheckpointFailed(step_, failed, absl::InternalError("late"), now_);
    Pass(CheckpointPolicy::kPatience - absl::Milliseconds(1));
    EXPECT_THAT(Sent(), IsEmpty());
    Pass(absl::Milliseconds(1));
  }
  Commit(step_);
  EXPECT_THAT(Sent(), testing::IsSupersetOf({"p-0 release", "p-1 release"}));
}

// A ps of an older version cannot save halted shards.
TEST_F(WaitingJobTest, ASaveThatNoMemberWritesBlocksTheRecoveryBriefly) {
  job_.MemberLeaves("p-1", now_);
  Pass(CheckpointPolicy::kPatience);
  EXPECT_TRUE(job_.ResumesAt(now_).has_value());
  Pass(CheckpointPolicy::kPatience);
  EXPECT_FALSE(job_.ResumesAt(now_).has_value()) << "another attempt";
  for (int i = 0; i < 3; ++i) {
    now_ += CheckpointPolicy::kPatience;
    job_.Tick(/*writing=*/true, now_);
    EXPECT_FALSE(job_.ResumesAt(now_).has_value()) << "a member writes";
  }
}

TEST_F(WaitingJobTest, APsThatDiesDuringTheSaveEndsIt) {
  job_.MemberLeaves("p-1", now_);
  job_.TakeEffects();
  job_.MemberLost("p-0", "gone", now_);
  EXPECT_THAT(Sent(), ElementsAre("p-1 release"));
  ASSERT_TRUE(job_.ResumesAt(now_).has_value());
  EXPECT_FALSE(job_.ResumesAt(now_)->carries);

  Begin(Record());
  Wait();
  job_.MemberLeaves("p-1", now_);
  job_.TakeEffects();
  job_.Report("p-0", nullptr, now_);  // restarted
  EXPECT_THAT(Sent(), ElementsAre("p-1 release"));
  ASSERT_TRUE(job_.ResumesAt(now_).has_value());
  EXPECT_FALSE(job_.ResumesAt(now_)->carries);
}

// The shards of the leaving ps are lost with it, and the memory of the other ps counts as free.
TEST_F(WaitingJobTest, ALeavingPsThatIsLostReleasesTheOthers) {
  job_.MemberLeaves("p-1", now_);
  TakeEffects();
  job_.MemberLost("p-1", "its --drain_timeout is over", now_);
  EXPECT_FALSE(job_.HoldsMemory());
  EXPECT_THAT(Sent(), ElementsAre("p-0 release"));
}

TEST_F(WaitingJobTest, TheEndOfTheJobEndsTheSave) {
  job_.MemberLeaves("p-1", now_);
  EXPECT_THAT(Sent(), UnorderedElementsAre("p-0 snapshot", "p-1 snapshot"));
  ASSERT_TRUE(job_.Cancel(now_).ok());
  EXPECT_EQ(job_.state(), v1::CANCELLED);
  EXPECT_FALSE(job_.Wants(snapshot_.snapshot()));
}

TEST_F(WaitingJobTest, ARestartedCoordinatorSavesToo) {
  job_.MemberLeaves("p-1", now_);
  job_ = Job(job_.record(), job_.plan(), /*term=*/2, now_);
  job_.MemberLeaves("p-1", now_);
  SayHalted("p-0", 4, 5);
  SayHalted("p-1", 5, 6);
  EXPECT_THAT(Sent(), IsEmpty()) << "the workers may still reattach";
  Pass(FailureDetector::kRestartGrace);
  Pass(absl::Milliseconds(200));
  Pass(absl::Milliseconds(200));
  EXPECT_THAT(Sent(), UnorderedElementsAre("p-0 snapshot", "p-1 snapshot"));
}

// ---------------------------------------------------------------- suspending a waiting job

TEST_F(WaitingJobTest, HaltedShardsAreSavedBeforeTheJobIsSuspended) {
  ASSERT_TRUE(job_.Suspend(now_).ok());
  EXPECT_EQ(job_.state(), v1::RECOVERING);
  EXPECT_TRUE(job_.record().suspend_requested());
  const Job::Effects effects = job_.TakeEffects();
  ASSERT_EQ(effects.events.size(), 1u);
  EXPECT_EQ(effects.events[0].reason(), "SUSPEND_REQUESTED");
  EXPECT_EQ(effects.events[0].message(), "step 5, which its shards hold, is saved first");
  EXPECT_EQ(effects.directives.size(), 2u);
  for (const Job::Outgoing& out : effects.directives) {
    ASSERT_TRUE(out.directive.has_snapshot()) << out.member;
    EXPECT_EQ(out.directive.snapshot().step(), 5);
  }
  EXPECT_FALSE(job_.ResumesAt(now_).has_value()) << "the shards are being read";
  EXPECT_TRUE(job_.KeepsShards());

  ASSERT_TRUE(job_.Suspend(now_).ok());
  EXPECT_THAT(Sent(), IsEmpty()) << "a repeated call";
  EXPECT_THAT(job_.Resume(nullptr, now_).message(), HasSubstr("is being suspended"));
  EXPECT_FALSE(job_.RequestCheckpoint(now_).ok());

  Commit(5);
  EXPECT_EQ(job_.state(), v1::SUSPENDED);
  EXPECT_EQ(job_.record().reason(), "SUSPENDED");
  EXPECT_EQ(job_.record().message(), "suspended at step 5");
  EXPECT_EQ(job_.record().checkpoint(), "jobs/net-1/checkpoints/5");
  EXPECT_FALSE(job_.record().suspend_requested());
  EXPECT_THAT(Sent(), testing::IsSupersetOf({"p-0 release", "p-1 release"}));
  EXPECT_TRUE(job_.Resume(nullptr, now_).ok());
}

TEST_F(WaitingJobTest, WithoutAnythingToSaveASuspensionEndsAtOnce) {
  Commit(5);
  ASSERT_TRUE(job_.Suspend(now_).ok());
  EXPECT_EQ(job_.state(), v1::SUSPENDED);
  EXPECT_EQ(job_.record().message(), "suspended at step 5");

  Begin(Record());
  step_ = 0;  // nothing was trained
  Run();
  job_.MemberLost("w-0", "gone", now_);
  job_.MemberLost("w-1", "gone", now_);
  SayHalted("p-0", 0, 0);
  SayHalted("p-1", 0, 0);
  job_.Wait(JobPhase::kWaitsForMembers, "needs two", now_);
  ASSERT_TRUE(job_.Suspend(now_).ok());
  EXPECT_EQ(job_.state(), v1::SUSPENDED);
}

TEST_F(WaitingJobTest, LostShardsAndModesWithoutInPlaceRecoveryEndASuspensionAtOnce) {
  Commit(4);
  job_.MemberLost("p-0", "gone", now_);
  ASSERT_TRUE(job_.Suspend(now_).ok());
  EXPECT_EQ(job_.state(), v1::SUSPENDED);
  EXPECT_THAT(job_.record().message(), HasSubstr("it goes on from net-1@4"));

  for (const auto mode : {v1::SSP, v1::ASP, v1::LOCAL_SGD, v1::BSP}) {
    v1::Job record = Record();
    record.mutable_spec()->mutable_sync()->set_mode(mode);
    record.mutable_spec()->mutable_sync()->set_every(2);
    record.mutable_spec()->mutable_sync()->set_backup_workers(mode == v1::BSP ? 1 : 0);
    Begin(record);
    Wait();
    ASSERT_TRUE(job_.Suspend(now_).ok());
    EXPECT_EQ(job_.state(), v1::SUSPENDED) << v1::SyncMode_Name(mode);
  }
}

// A job that is suspended before it waits for members stops as soon as it would wait for them.
TEST_F(WaitingJobTest, ARecoveringJobIsSuspendedOnceItWaitsForMembers) {
  Begin(Record());
  RunTo(5);
  job_.MemberLost("w-1", "gone", now_);
  ASSERT_TRUE(job_.Suspend(now_).ok());
  ASSERT_TRUE(job_.RecoversToStop());
  HaltAll(4, 5);
  job_.MemberLost("w-0", "gone", now_);
  TakeEffects();
  Pass(absl::Seconds(1));
  EXPECT_THAT(Sent(), IsEmpty()) << "a worker for the recovery may be free";
  EXPECT_TRUE(job_.ResumesAt(now_).has_value());
  job_.Wait(JobPhase::kWaitsForMembers, "needs one", now_);
  EXPECT_THAT(Sent(), UnorderedElementsAre("p-0 snapshot", "p-1 snapshot"));
  Commit(5);
  EXPECT_EQ(job_.state(), v1::SUSPENDED);
  EXPECT_EQ(job_.record().message(), "suspended at step 5");
}

// Workers that arrive meanwhile do not recover the job, because with a full disk it could not be
// suspended after the recovery either.
TEST_F(WaitingJobTest, ASuspensionWhoseSaveFailsRepeatedlyReturnsToTheCheckpoint) {
  Commit(4);
  ASSERT_TRUE(job_.Suspend(now_).ok());
  for (int i = 0; i < CheckpointPolicy::kHaltedAttempts; ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(job_.state(), v1::RECOVERING);
    EXPECT_THAT(Sent(), testing::IsSupersetOf({"p-0 snapshot", "p-1 snapshot"}));
    if (i == 0) AnswerHalted("p-0", 0, v1::SNAPSHOT_MISSED);
    if (i == 1) AnswerHalted("p-0", 0, v1::SNAPSHOT_FAILED);
    if (i == 2) {
      job_.CheckpointFailed(
          5, snapshot_.snapshot(),
          WithReason(absl::ResourceExhaustedError("no space left"), "STORAGE_FULL"), now_);
    }
    TakeEffects();
    EXPECT_FALSE(job_.ResumesAt(now_).has_value()) << "another attempt follows, or the end";
    if (i < 2) Pass(CheckpointPolicy::kPatience);
  }
  Pass(absl::Milliseconds(200));
  EXPECT_EQ(job_.state(), v1::SUSPENDED);
  EXPECT_EQ(
      job_.record().message(),
      "suspended without the state of its shards, because step 5 could not be saved (no space "
      "left); it goes back to net-1@4");
  EXPECT_THAT(Sent(), testing::IsSupersetOf({"p-0 release", "p-1 release"}));
}

TEST_F(WaitingJobTest, ASuspensionThatNoMemberSavesEndsToo) {
  ASSERT_TRUE(job_.Suspend(now_).ok());
  const absl::Time begin = now_;
  while (job_.state() == v1::RECOVERING && now_ - begin < absl::Minutes(5)) {
    Pass(absl::Milliseconds(200));
    EXPECT_FALSE(job_.ResumesAt(now_).has_value());
  }
  EXPECT_EQ(job_.state(), v1::SUSPENDED);
  EXPECT_LE(now_ - begin, absl::Minutes(1));
  EXPECT_THAT(job_.record().message(), HasSubstr("no shard was written for 10s"));
}

TEST_F(WaitingJobTest, ASuspensionDoesNotCountTheAttemptsForALeavingPs) {
  job_.MemberLeaves("p-1", now_);
  for (int i = 0; i < CheckpointPolicy::kHaltedAttempts; ++i) {
    Pass(CheckpointPolicy::kPatience);
    Pass(CheckpointPolicy::kPatience);
  }
  ASSERT_TRUE(job_.Suspend(now_).ok());
  Pass(CheckpointPolicy::kPatience);
  Pass(CheckpointPolicy::kPatience);
  EXPECT_EQ(job_.state(), v1::RECOVERING);
  Commit(5);
  EXPECT_EQ(job_.state(), v1::SUSPENDED);
}

TEST_F(WaitingJobTest, APsThatDiesDuringTheSaveReturnsTheSuspensionToTheCheckpoint) {
  for (const bool restarted : {false, true}) {
    SCOPED_TRACE(restarted);
    Begin(Record());
    RunTo(5);
    Commit(4);
    job_.MemberLost("w-1", "gone", now_);
    HaltAll(4, 5);
    job_.Wait(JobPhase::kWaitsForMembers, "needs two", now_);
    ASSERT_TRUE(job_.Suspend(now_).ok());
    job_.MemberLost("w-0", "gone", now_);
    Pass(absl::Milliseconds(200));
    EXPECT_EQ(job_.state(), v1::RECOVERING) << "the save needs no worker";
    if (restarted) {
      job_.Report("p-0", nullptr, now_);
    } else {
      job_.MemberLost("p-0", "gone", now_);
    }
    Pass(absl::Milliseconds(200));
    EXPECT_EQ(job_.state(), v1::SUSPENDED);
    EXPECT_EQ(job_.record().message(),
              "suspended without the state of its shards, because no ps holds it any more; it goes "
              "back to net-1@4");
  }
}

TEST_F(WaitingJobTest, APsThatLeavesDuringASuspensionIsReleasedAtItsEnd) {
  job_.MemberLeaves("p-1", now_);
  EXPECT_THAT(Sent(), UnorderedElementsAre("p-0 snapshot", "p-1 snapshot"));
  ASSERT_TRUE(job_.Suspend(now_).ok());
  job_.MemberLeaves("p-0", now_);
  EXPECT_THAT(Sent(), IsEmpty()) << "the save is under way";
  EXPECT_TRUE(job_.Wants(snapshot_.snapshot()));
  Commit(5);
  EXPECT_EQ(job_.state(), v1::SUSPENDED);
  EXPECT_THAT(Sent(), testing::IsSupersetOf({"p-0 release", "p-1 release"}));
}

TEST_F(WaitingJobTest, AJobMayBeCancelledDuringTheSave) {
  ASSERT_TRUE(job_.Suspend(now_).ok());
  EXPECT_THAT(Sent(), UnorderedElementsAre("p-0 snapshot", "p-1 snapshot"));
  ASSERT_TRUE(job_.Cancel(now_).ok());
  EXPECT_EQ(job_.state(), v1::CANCELLED);
  EXPECT_FALSE(job_.Wants(snapshot_.snapshot()));
  EXPECT_THAT(Sent(), testing::IsSupersetOf({"p-0 release", "p-1 release"}));
}

TEST_F(WaitingJobTest, ARestartedCoordinatorContinuesTheSuspension) {
  ASSERT_TRUE(job_.Suspend(now_).ok());
  RestartCoordinator(job_.record());
  EXPECT_EQ(job_.state(), v1::RECOVERING);
  ComeBackHalted();
  EXPECT_THAT(Sent(), testing::IsSupersetOf({"p-0 snapshot", "p-1 snapshot"}));
  v1::Job committed = job_.record();
  Commit(5);
  EXPECT_EQ(job_.state(), v1::SUSPENDED);
  EXPECT_EQ(job_.record().message(), "suspended at step 5");

  // The coordinator died just after the commit.
  committed.set_checkpoint("jobs/net-1/checkpoints/5");
  RestartCoordinator(committed);
  ComeBackHalted();
  EXPECT_THAT(Sent(), testing::Not(Contains("p-0 snapshot")));
  EXPECT_EQ(job_.state(), v1::SUSPENDED);
  EXPECT_EQ(job_.record().message(), "suspended at step 5");
}

TEST_F(WaitingJobTest, ASuspensionEndsIfItsShardsDoNotReattachAfterARestart) {
  Commit(4);
  ASSERT_TRUE(job_.Suspend(now_).ok());
  RestartCoordinator(job_.record());
  SayHalted("p-1", 5, 6);
  Pass(FailureDetector::kRestartGrace);
  for (int i = 0; i < 4; ++i) Pass(absl::Milliseconds(200));
  EXPECT_EQ(job_.state(), v1::SUSPENDED);
  EXPECT_THAT(job_.record().message(), HasSubstr("it goes back to net-1@4"));
}

// The remaining workers have reported all records of these steps that there will be.
TEST_F(WaitingJobTest, RecordsOfStepsBeforeASuspensionAreClosed) {
  Begin(Record());
  Run();
  job_.MemberLost("w-1", "gone", now_);
  Tell("w-0", Steps(v1::MEMBER_HALTED, 0, 5));  // step 4 may not have been applied
  SayHalted("p-0", 4, 5);
  SayHalted("p-1", 5, 6);
  EXPECT_EQ(TakeEffects().steps.size(), 4u);
  job_.Wait(JobPhase::kWaitsForMembers, "needs two", now_);
  ASSERT_TRUE(job_.Suspend(now_).ok());
  const Job::Effects effects = job_.TakeEffects();
  ASSERT_EQ(effects.steps.size(), 1u);
  EXPECT_EQ(effects.steps[0].step, 4);
  Commit(5);
  Pass(absl::Milliseconds(200));
  EXPECT_EQ(job_.state(), v1::RECOVERING) << "the record is not durable yet";
  ASSERT_TRUE(effects.records.has_value());
  job_.RecordsDurable(*effects.records, now_);
  EXPECT_EQ(job_.state(), v1::SUSPENDED);
}

// The checkpoint of step 6 proves that steps 0 to 5 were applied. So the job stops waiting for
// their missing records: it closes step 4 with the record that it has, and reports step 5 as lost.
TEST_F(WaitingJobTest, RecordsOfStepsBeforeACheckpointAreClosedIfNoWorkerHasMore) {
  Begin(Record());
  Run();
  Tell("w-0", Steps(v1::MEMBER_RUNNING, 0, 5));
  Tell("w-1", Steps(v1::MEMBER_RUNNING, 0, 4));
  EXPECT_EQ(TakeEffects().steps.size(), 4u);
  Commit(6);  // no worker has reported its last step
  for (const char* name : {"w-0", "w-1", "p-0"}) job_.MemberLost(name, "gone", now_);
  SayHalted("p-1", 6, 7);
  job_.Wait(JobPhase::kWaitsForMembers, "needs two", now_);
  EXPECT_EQ(TakeEffects().steps.size(), 0u);

  ASSERT_TRUE(job_.Suspend(now_).ok());
  EXPECT_EQ(job_.state(), v1::SUSPENDED);
  const Job::Effects effects = TakeEffects();
  ASSERT_EQ(effects.steps.size(), 1u);
  EXPECT_EQ(effects.steps[0].step, 4);
  EXPECT_EQ(effects.steps[0].loss, 1) << "from the known records";
  ASSERT_EQ(effects.events.size(), 2u);
  EXPECT_EQ(effects.events[0].reason(), "STEPS_LOST");
  EXPECT_THAT(effects.events[0].message(), HasSubstr("the results of steps 5 to 5 are not known"));
  EXPECT_EQ(effects.events[1].reason(), "SUSPENDED");
}

// The coordinator ended before the closed records were durable.
TEST_F(WaitingJobTest, StepsWithoutRecordsAreAnEventWhenTheJobIsResumed) {
  Commit(6);
  job_.MemberLost("p-0", "gone", now_);
  ASSERT_TRUE(job_.Suspend(now_).ok());
  RestartCoordinator(job_.record());
  ASSERT_TRUE(job_.Resume(nullptr, now_).ok());
  TakeEffects();
  Schedule(/*first_step=*/6, "jobs/net-1/checkpoints/6");
  const Job::Effects effects = TakeEffects();
  ASSERT_EQ(effects.events.size(), 2u);
  EXPECT_EQ(effects.events[0].reason(), "STEPS_LOST");
  EXPECT_THAT(effects.events[0].message(), HasSubstr("the results of steps 5 to 5 are not known"));
}

TEST_F(RecoveringJobTest, AJobThatBeginsFromACheckpointHasLostNoSteps) {
  Schedule(/*first_step=*/6, "jobs/other-1/checkpoints/6");
  for (const v1::JobEvent& event : TakeEffects().events) EXPECT_NE(event.reason(), "STEPS_LOST");
}

TEST_F(ReplicatedJobTest, ReplicasThatTookOverAreSaved) {
  RunTo(8);
  Commit(4);
  job_.MemberLost("p-1", "gone", now_);
  job_.MemberLost("w-1", "gone", now_);
  Report("w-0", v1::MEMBER_HALTED, 8);
  SayHalted("p-0", 7, 8, /*in_replica=*/8);
  TakeEffects();
  job_.Wait(JobPhase::kWaitsForMembers, "needs two", now_);
  ASSERT_TRUE(job_.Suspend(now_).ok());
  EXPECT_THAT(Sent(), ElementsAre("p-0 snapshot"));
  EXPECT_EQ(snapshot_.step(), 8);
  EXPECT_THAT(snapshot_.backups(), ElementsAre(1)) << "besides its own shard";
  EXPECT_EQ(job_.WriterOf(1), "p-0");
  v1::WriteShardHeader header;
  header.set_generation(job_.record().generation());
  header.set_step(8);
  header.set_shard(1);
  header.set_snapshot(snapshot_.snapshot());
  EXPECT_TRUE(job_.AdmitShard(header).ok()) << job_.AdmitShard(header);
  v1::JobReport report = Say(v1::MEMBER_HALTED, 8);
  report.set_oldest_version(7);
  v1::SnapshotReport& own = *report.add_snapshots();
  own.set_shard(0);
  own.set_snapshot(snapshot_.snapshot());
  own.set_outcome(v1::SNAPSHOT_TAKEN);
  now_ += Outbox::kResend;
  Tell("p-0", report);
  EXPECT_THAT(Sent(), ElementsAre("p-0 snapshot")) << "the other shard is still missing";
  *report.add_snapshots() = own;
  report.mutable_snapshots(1)->set_shard(1);
  now_ += Outbox::kResend;
  Tell("p-0", report);
  EXPECT_THAT(Sent(), IsEmpty());
  Commit(8);
  EXPECT_EQ(job_.state(), v1::SUSPENDED);
  EXPECT_EQ(job_.record().message(), "suspended at step 8");
}

// The chunks of shard 0 on p-0 are at versions that are too far apart, so p-1 writes its replica.
TEST_F(ReplicatedJobTest, APsWithoutItsOwnShardIsNotAskedForIt) {
  RunTo(8);
  Commit(4);
  job_.MemberLost("w-1", "gone", now_);
  Report("w-0", v1::MEMBER_HALTED, 8);
  SayHalted("p-0", /*oldest=*/9, 8, /*in_replica=*/8);
  SayHalted("p-1", 7, 8, /*in_replica=*/8);
  TakeEffects();
  job_.Wait(JobPhase::kWaitsForMembers, "needs two", now_);
  ASSERT_TRUE(job_.Suspend(now_).ok());
  EXPECT_THAT(Sent(), ElementsAre("p-1 snapshot"));
  EXPECT_THAT(snapshot_.backups(), ElementsAre(0));
  EXPECT_EQ(job_.WriterOf(0), "p-1");

  v1::JobReport report = Say(v1::MEMBER_HALTED, 8);
  report.set_oldest_version(9);
  v1::SnapshotReport& missed = *report.add_snapshots();
  missed.set_shard(0);
  missed.set_snapshot(snapshot_.snapshot());
  missed.set_outcome(v1::SNAPSHOT_MISSED);
  Tell("p-0", report);
  EXPECT_TRUE(job_.Wants(snapshot_.snapshot())) << "another ps writes this shard";
  for (const int none : {-1, 2, 1'000'000}) {
    missed.set_shard(none);
    Tell("p-1", report);
    EXPECT_TRUE(job_.Wants(snapshot_.snapshot())) << none;
  }
  Commit(8);
  EXPECT_EQ(job_.state(), v1::SUSPENDED);
}

TEST_F(ReplicatedJobTest, InARunningJobOnlyTheOwnPsWritesAShard) {
  Run();
  EXPECT_EQ(job_.WriterOf(1), "p-1");
  ASSERT_TRUE(job_.RequestCheckpoint(now_).ok());
  EXPECT_THAT(Sent(), UnorderedElementsAre("p-0 snapshot", "p-1 snapshot"));
  EXPECT_THAT(snapshot_.backups(), IsEmpty());
}

// The save would fail without this ps.
TEST_F(ReplicatedJobTest, APsWithReplicasElsewhereStaysForASuspension) {
  RunTo(8);
  job_.MemberLost("w-0", "gone", now_);
  job_.MemberLost("w-1", "gone", now_);
  SayHalted("p-0", 7, 8, /*in_replica=*/8);
  SayHalted("p-1", 7, 8, /*in_replica=*/8);
  TakeEffects();
  job_.Wait(JobPhase::kWaitsForMembers, "needs two", now_);
  ASSERT_TRUE(job_.Suspend(now_).ok());
  EXPECT_THAT(Sent(), UnorderedElementsAre("p-0 snapshot", "p-1 snapshot"));
  job_.CheckpointFailed(8, snapshot_.snapshot(), absl::InternalError("no"), now_);
  job_.MemberLeaves("p-1", now_);
  Pass(absl::Seconds(1));
  EXPECT_THAT(Sent(), IsEmpty()) << "between two attempts";
  Pass(CheckpointPolicy::kPatience);
  EXPECT_THAT(Sent(), UnorderedElementsAre("p-0 snapshot", "p-1 snapshot"));
  Commit(8);
  EXPECT_EQ(job_.state(), v1::SUSPENDED);
  EXPECT_EQ(job_.record().message(), "suspended at step 8");
}

// No checkpoint is needed. The leaving ps is released once the others have its shards.
TEST_F(ReplicatedJobTest, ALeavingPsHandsOverToTheReplicasOfItsShards) {
  Run();
  ReportAll(v1::MEMBER_RUNNING, v1::MEMBER_RUNNING, 7);
  job_.MemberLeaves("p-1", now_);
  EXPECT_EQ(job_.state(), v1::RECOVERING);
  EXPECT_EQ(job_.record().reason(), "MEMBER_LEAVES");
  EXPECT_EQ(job_.record().message(), "p-1 leaves; the replicas of its shards take their places");
  EXPECT_TRUE(job_.KeepsShards());
  EXPECT_THAT(Sent(), UnorderedElementsAre("w-0 halt", "w-1 halt", "p-0 halt", "p-1 halt"));
  Report("w-0", v1::MEMBER_HALTED, 8);
  Report("w-1", v1::MEMBER_HALTED, 8);
  SayHalted("p-0", 7, 8, /*in_replica=*/8);
  SayHalted("p-1", 7, 8, /*in_replica=*/8);
  EXPECT_THAT(Sent(), IsEmpty()) << "the shards of p-1 are needed until the next plan is stored";
  const std::optional<Job::ResumePoint> resume_point = job_.ResumesAt(now_);
  ASSERT_TRUE(resume_point.has_value());
  EXPECT_TRUE(resume_point->carries);
  EXPECT_EQ(resume_point->first_step, 8);
  for (const v1::PlanShard& shard : resume_point->shards) EXPECT_EQ(shard.member(), "p-0");

  PlanRequest request{.job = job_.record(),
                      .first_step = 8,
                      .carried = job_.plan(),
                      .shards = resume_point->shards};
  request.ps.emplace_back().set_member("p-0");
  request.ps[0].add_addresses("address");
  for (const char* name : {"w-0", "w-1"}) request.workers.emplace_back().set_member(name);
  job_.Schedule(MakePlan(std::move(request)), now_);
  EXPECT_THAT(Sent(),
              UnorderedElementsAre("p-1 release", "w-0 prepare", "w-1 prepare", "p-0 prepare"));
  EXPECT_FALSE(job_.Uses("p-1"));
  EXPECT_FALSE(job_.record().has_recovery()) << "no member has failed";
}

TEST_F(ReplicatedJobTest, ALeavingPsWaitsForItsReplicasToFillOrForACheckpoint) {
  Run();
  ReportAll(v1::MEMBER_RUNNING, v1::MEMBER_RUNNING, 1);
  job_.MemberLeaves("p-1", now_);
  EXPECT_EQ(job_.state(), v1::RUNNING);
  EXPECT_THAT(Sent(), UnorderedElementsAre("p-0 snapshot", "p-1 snapshot"));
  Report("w-0", v1::MEMBER_RUNNING, 2);
  Pass(absl::Milliseconds(100));
  EXPECT_EQ(job_.state(), v1::RECOVERING);
  EXPECT_TRUE(job_.KeepsShards());
}

TEST_F(ReplicatedJobTest, PsThatHoldEachOthersReplicasLeaveAfterACheckpoint) {
  Run();
  ReportAll(v1::MEMBER_RUNNING, v1::MEMBER_RUNNING, 1);
  job_.MemberLeaves("p-0", now_);
  job_.MemberLeaves("p-1", now_);
  ReportAll(v1::MEMBER_RUNNING, v1::MEMBER_RUNNING, 9);
  Pass(absl::Milliseconds(100));
  EXPECT_EQ(job_.state(), v1::RUNNING);
  EXPECT_THAT(Sent(), ::testing::IsSupersetOf({"p-0 snapshot", "p-1 snapshot"}));
  Commit(snapshot_.step());
  EXPECT_EQ(job_.state(), v1::RECOVERING);
  EXPECT_FALSE(job_.KeepsShards());
}

// Only the final checkpoint remains to be written.
TEST_F(ReplicatedJobTest, NoPsHandsOverOnceAWorkerIsDone) {
  Run();
  ReportAll(v1::MEMBER_RUNNING, v1::MEMBER_RUNNING, 99);
  Report("w-0", v1::MEMBER_DONE, 100);
  job_.MemberLeaves("p-1", now_);
  EXPECT_EQ(job_.state(), v1::RUNNING);
}

TEST_F(ReplicatedJobTest, ReplicasTakeOverIfALeavingPsDies) {
  Run();
  ReportAll(v1::MEMBER_RUNNING, v1::MEMBER_RUNNING, 7);
  job_.MemberLeaves("p-1", now_);
  Report("w-0", v1::MEMBER_HALTED, 8);
  Report("w-1", v1::MEMBER_HALTED, 8);
  SayHalted("p-0", 7, 8, /*in_replica=*/7);
  job_.MemberLost("p-1", "gone", now_);
  ASSERT_TRUE(job_.ResumesAt(now_).has_value());
  EXPECT_TRUE(job_.ResumesAt(now_)->carries);
  EXPECT_EQ(job_.ResumesAt(now_)->first_step, 7);
}

// A ps that must leave during a recovery does not stay for another generation.
TEST_F(ReplicatedJobTest, APsThatLeavesDuringARecoveryHandsOver) {
  Run();
  ReportAll(v1::MEMBER_RUNNING, v1::MEMBER_RUNNING, 7);
  job_.MemberLost("w-1", "gone", now_);
  Report("w-0", v1::MEMBER_HALTED, 8);
  SayHalted("p-0", 7, 8, /*in_replica=*/7);
  SayHalted("p-1", 7, 8, /*in_replica=*/8);
  job_.MemberLeaves("p-1", now_);
  const std::optional<Job::ResumePoint> resume_point = job_.ResumesAt(now_);
  ASSERT_TRUE(resume_point.has_value());
  EXPECT_EQ(resume_point->first_step, 7);
  for (const v1::PlanShard& shard : resume_point->shards) {
    EXPECT_EQ(shard.member(), "p-0");
    EXPECT_FALSE(shard.has_backup());
  }
}

// The release needs neither a new worker nor a checkpoint.
TEST_F(ReplicatedJobTest, APsThatLeavesAWaitingJobIsReleasedIfReplicasRemain) {
  Run();
  ReportAll(v1::MEMBER_RUNNING, v1::MEMBER_RUNNING, 7);
  job_.MemberLost("w-0", "gone", now_);
  job_.MemberLost("w-1", "gone", now_);
  SayHalted("p-0", 7, 8, /*in_replica=*/7);
  SayHalted("p-1", 7, 8, /*in_replica=*/8);
  TakeEffects();
  job_.Wait(JobPhase::kWaitsForMembers, "needs two", now_);
  job_.MemberLeaves("p-1", now_);
  EXPECT_THAT(Sent(), ElementsAre("p-1 release"));
  EXPECT_FALSE(job_.Uses("p-1"));
  job_.MemberLost("p-1", "it left the fleet", now_);
  job_.Wait(JobPhase::kWaitsForMembers, "needs two", now_);
  const std::optional<Job::ResumePoint> resume_point = job_.ResumesAt(now_);
  ASSERT_TRUE(resume_point.has_value());
  EXPECT_TRUE(resume_point->carries);
  EXPECT_EQ(resume_point->first_step, 7);
  for (const v1::PlanShard& shard : resume_point->shards) EXPECT_EQ(shard.member(), "p-0");

  job_.MemberLeaves("p-0", now_);
  EXPECT_THAT(Sent(), ElementsAre("p-0 snapshot"));
  EXPECT_EQ(snapshot_.step(), 7);
  EXPECT_THAT(snapshot_.backups(), ElementsAre(1));
  Commit(7);
  EXPECT_THAT(Sent(), ElementsAre("p-0 release"));
}

TEST_F(ReplicatedJobTest, PsThatHoldEachOthersReplicasLeaveAWaitingJobAfterACheckpoint) {
  Run();
  ReportAll(v1::MEMBER_RUNNING, v1::MEMBER_RUNNING, 7);
  job_.MemberLost("w-0", "gone", now_);
  job_.MemberLost("w-1", "gone", now_);
  SayHalted("p-0", 7, 8, /*in_replica=*/8);
  SayHalted("p-1", 7, 8, /*in_replica=*/8);
  TakeEffects();
  job_.MemberLeaves("p-0", now_);
  job_.MemberLeaves("p-1", now_);
  job_.Wait(JobPhase::kWaitsForMembers, "needs two", now_);
  Pass(absl::ZeroDuration());
  EXPECT_THAT(Sent(), UnorderedElementsAre("p-0 snapshot", "p-1 snapshot"));
  EXPECT_EQ(snapshot_.step(), 8);
  Commit(8);
  EXPECT_THAT(Sent(), UnorderedElementsAre("p-0 release", "p-1 release"));
}

TEST_F(RecoveringJobTest, AMemberThatLeavesDuringPreparationLeavesWhenTheJobRuns) {
  Schedule();
  job_.MemberLeaves("w-0", now_);
  EXPECT_EQ(job_.state(), v1::PREPARING);
  ReportAll(v1::MEMBER_PREPARED, v1::MEMBER_PREPARED);
  EXPECT_EQ(job_.state(), v1::RUNNING);
  Pass(absl::Seconds(1));
  EXPECT_EQ(job_.state(), v1::RECOVERING);
}

TEST_F(RecoveringJobTest, WorkersJoinARunningJobBelowItsMaximum) {
  v1::Job record = Record();
  record.mutable_spec()->mutable_resources()->mutable_workers()->set_max(3);
  Begin(record);
  Run();
  EXPECT_FALSE(job_.TakesMoreWorkers(now_)) << "the generation has just begun";
  now_ += Job::kJoinAfter;
  ASSERT_TRUE(job_.TakesMoreWorkers(now_));
  job_.LetWorkersJoin(now_);
  EXPECT_EQ(job_.state(), v1::RECOVERING);
  EXPECT_EQ(job_.record().reason(), "WORKERS_JOIN");
  EXPECT_THAT(Sent(), UnorderedElementsAre("w-0 halt", "w-1 halt", "p-0 halt", "p-1 halt"));
  HaltAll(4, 5);
  Report("w-1", v1::MEMBER_HALTED, 5);
  EXPECT_EQ(job_.ResumesAt(now_)->first_step, 5);
  EXPECT_FALSE(job_.record().has_recovery());
}

TEST_F(RecoveringJobTest, AJoiningWorkerWithOtherDataIsExcluded) {
  Run();
  job_.BeginWarmUp(*job_.plan(), {"w-2"}, now_);
  v1::JobPlan warmed_up;
  ASSERT_TRUE(warmed_up.ParseFromString(*job_.warm_up().plan()));
  v1::JobReport report = SayOtherData();
  report.set_rehearsal(warmed_up.rehearsal());
  TakeEffects();
  Tell("w-2", report);
  EXPECT_EQ(job_.state(), v1::RUNNING);
  EXPECT_TRUE(job_.exclusions().ExcludesNow("w-2"));
  const Job::Effects effects = TakeEffects();
  ASSERT_EQ(effects.events.size(), 1);
  EXPECT_EQ(effects.events[0].reason(), "WORKER_CANNOT_JOIN");
  EXPECT_EQ(effects.events[0].message(),
            "the job goes on without w-2: workers see different data: w-0 has 1000 + 0 samples, "
            "w-2 has 999 + 0");
  ASSERT_EQ(effects.directives.size(), 1);
  EXPECT_TRUE(effects.directives[0].directive.has_release());
}

TEST_F(RecoveringJobTest, ASubstituteWithOtherDataIsExcludedAndTheJobRecovers) {
  RunTo(3);
  ReplaceWorker();
  Report("w-0", v1::MEMBER_PREPARED, 3);
  for (const char* name : {"p-0", "p-1"}) Report(name, v1::MEMBER_PREPARED, 3);
  TakeEffects();
  Tell("w-1", SayOtherData(3));
  EXPECT_EQ(job_.state(), v1::RECOVERING);
  EXPECT_EQ(job_.record().reason(), "DATASET_MISMATCH");
  EXPECT_EQ(job_.record().message(),
            "w-1 (worker, rank 1) cannot join: workers see different data: w-0 has 1000 + 0 "
            "samples, w-1 has 999 + 0");
  EXPECT_FALSE(job_.Uses("w-1"));
  EXPECT_NE(job_.exclusions().Why("w-1"), nullptr) << "other workers are chosen before it";
  EXPECT_TRUE(job_.KeepsShards());
  EXPECT_THAT(Sent(), UnorderedElementsAre("w-1 release", "w-0 halt", "p-0 halt", "p-1 halt"));
}

// w-1 was prepared before any other member was.
TEST_F(RecoveringJobTest, TheWorkerThatNeverTrainedIsAtFaultForOtherData) {
  RunTo(3);
  ReplaceWorker();
  Tell("w-1", SayOtherData(3));
  job_.MemberLost("p-1", "gone", now_);
  for (const char* name : {"w-0", "w-1"}) Report(name, v1::MEMBER_HALTED, 3);
  SayHalted("p-0", 3, 3);
  now_ += absl::Minutes(1);
  TakeEffects();
  Schedule();
  for (const char* name : {"w-0", "p-0", "p-1"}) Report(name, v1::MEMBER_PREPARED);
  Tell("w-1", SayOtherData());
  EXPECT_EQ(job_.state(), v1::RECOVERING) << job_.record().message();
  EXPECT_FALSE(job_.Uses("w-1"));
  EXPECT_TRUE(job_.Uses("w-0"));
}

TEST_F(RecoveringJobTest, ARestartedCoordinatorKnowsWhichMembersTrained) {
  RunTo(3);
  job_ = Job(job_.record(), job_.plan(), /*term=*/2, now_);
  for (const char* name : {"w-0", "p-0", "p-1"}) Report(name, v1::MEMBER_RUNNING, 3);
  ReplaceWorker();
  for (const char* name : {"w-0", "p-0", "p-1"}) Report(name, v1::MEMBER_PREPARED, 3);
  Tell("w-1", SayOtherData(3));
  EXPECT_EQ(job_.state(), v1::RECOVERING) << job_.record().message();
  EXPECT_FALSE(job_.Uses("w-1"));
}

TEST_F(RecoveringJobTest, ACoordinatorRestartedInARecoveryKnowsWhichMembersAreNew) {
  for (const bool is_there_already : {false, true}) {
    Begin(Record());
    RunTo(3);
    job_.MemberLost("w-1", "gone", now_);
    TakeEffects();
    job_ = Job(job_.record(), job_.plan(), /*term=*/2, now_);
    if (is_there_already) {
      job_.Report("w-1", nullptr, now_);
    } else {
      job_.MemberLost("w-1", "gone", now_);
    }
    HaltAll(3, 3);
    TakeEffects();
    Schedule(3, "", job_.plan(), job_.ResumesAt(now_)->shards);
    Tell("w-1", Say(v1::MEMBER_FAILED));
    EXPECT_EQ(job_.state(), v1::RECOVERING) << job_.record().message();
    EXPECT_FALSE(job_.Uses("w-1"));
  }
}

// Until the job is resumed, any process may take the name of a member.
TEST_F(RecoveringJobTest, AfterASuspensionAllMembersCountAsNew) {
  RunTo(3);
  for (const char* name : {"w-1", "p-1"}) job_.MemberLost(name, "gone", now_);
  Report("w-0", v1::MEMBER_HALTED, 3);
  SayHalted("p-0", 3, 3);
  TakeEffects();
  job_.Wait(JobPhase::kWaitsForMembers, "needs two", now_);
  ASSERT_TRUE(job_.Suspend(now_).ok());
  ASSERT_TRUE(job_.Resume(nullptr, now_).ok());
  Schedule();
  Tell("w-1", SayOtherData());
  for (const char* name : {"w-0", "p-0", "p-1"}) Report(name, v1::MEMBER_PREPARED);
  EXPECT_EQ(job_.state(), v1::FAILED);
  EXPECT_EQ(job_.record().reason(), "DATASET_MISMATCH");
}

TEST_F(RecoveringJobTest, AChangedNumberOfStepsIsExplainedByTheChangedDataSet) {
  v1::Job record = Record();
  record.mutable_spec()->mutable_training()->set_epochs(1);
  Begin(record);
  Run();
  EXPECT_EQ(job_.record().message(), "steps 0 to 125");
  job_.MemberLost("w-1", "gone", now_);
  HaltAll(0, 0);
  Schedule(job_.ResumesAt(now_)->first_step, "", job_.plan());
  for (const char* name : {"p-0", "p-1"}) Report(name, v1::MEMBER_PREPARED);
  for (const char* name : {"w-0", "w-1"}) {
    v1::JobReport report = Say(v1::MEMBER_PREPARED);
    report.mutable_dataset()->set_samples(800);
    Tell(name, report);
  }
  EXPECT_EQ(job_.state(), v1::RUNNING);
  EXPECT_EQ(job_.record().message(),
            "steps 0 to 100; it was to end at step 125 before: its data set has another number of "
            "samples now");
}

TEST_F(RecoveringJobTest, OtherDataBeforeTheFirstStepFailTheJob) {
  Schedule();
  for (const char* name : {"w-0", "p-0", "p-1"}) Report(name, v1::MEMBER_PREPARED);
  Tell("w-1", SayOtherData());
  EXPECT_EQ(job_.state(), v1::FAILED);
  EXPECT_EQ(job_.record().reason(), "DATASET_MISMATCH");
}

TEST_F(RecoveringJobTest, ASuspendedJobWaitsTenMinutesForASilentShard) {
  RunTo(3);
  ASSERT_TRUE(job_.Suspend(now_).ok());
  for (const char* name : {"w-0", "w-1"}) Report(name, v1::MEMBER_PAUSED, 3);
  Sent();
  Answer("p-0", 0, snapshot_.snapshot(), v1::SNAPSHOT_TAKEN);
  Pass(absl::Seconds(1));
  now_ += FailureDetector::kPauseMax;
  job_.Tick(/*writing=*/true, now_);
  EXPECT_EQ(job_.state(), v1::RUNNING) << "its writer still writes another shard";
  Pass(absl::Seconds(1));
  Pass(FailureDetector::kPauseMax);
  EXPECT_EQ(job_.state(), v1::RECOVERING);
  EXPECT_EQ(job_.record().reason(), "HALT_TIMEOUT");
  EXPECT_THAT(job_.record().message(), HasSubstr("p-1 (ps, shard 1) was asked for a checkpoint"));
  EXPECT_FALSE(job_.Uses("p-1"));
  EXPECT_TRUE(job_.Uses("p-0"));
}

TEST_F(RecoveringJobTest, AJobThatIsAboutToEndTakesNoMoreWorkers) {
  v1::Job record = Record();
  record.mutable_spec()->mutable_resources()->mutable_workers()->set_max(3);
  Begin(record);
  Run();
  now_ += Job::kJoinAfter;
  Report("w-0", v1::MEMBER_DONE, 100);
  EXPECT_FALSE(job_.TakesMoreWorkers(now_));
}

}  // namespace
}  // namespace muster::recovering_job_test
