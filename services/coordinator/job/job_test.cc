#include "services/coordinator/job/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"
#include "services/coordinator/common/proto_time.h"
#include "services/coordinator/job/checkpoint_policy.h"
#include "services/coordinator/job/non_finite_watch.h"
#include "services/coordinator/job/recovery/failure_detector.h"
#include "services/coordinator/job/recovery/job_members.h"
#include "services/coordinator/scheduling/job_plan.h"
#include "services/coordinator/testing/job_fixture.h"

namespace muster::job_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

TEST_F(JobTest, TheEventOfAPlanHasTheLogicalWorkersOfEachWorker) {
  v1::Job record = Record();
  record.mutable_spec()->mutable_resources()->mutable_workers()->set_logical(3);
  job_ = Job(record, nullptr, /*term=*/1, now_);
  Schedule();
  EXPECT_THAT(job_.record().message(),
              HasSubstr("generation 1 on 2 workers (3 logical: 2, 1) and 2 ps, from step 0"));
}

// A job without ps.
class AllreduceJobTest : public JobTest {
 protected:
  AllreduceJobTest() {
    v1::Job record = Record();
    record.mutable_spec()->mutable_sync()->set_mode(v1::ALLREDUCE);
    job_ = Job(record, nullptr, /*term=*/1, now_);
  }
  void ReportFrom(const std::string& member, const std::string& address,
                  v1::MemberJobState state = v1::MEMBER_PREPARED) {
    v1::JobReport report = Say(state);
    report.set_address(address);
    job_.Report(member, &report, now_);
  }
};

TEST_F(AllreduceJobTest, StartHasTheAddressesOfAllWorkersInRankOrder) {
  Schedule();
  EXPECT_THAT(job_.record().ps(), IsEmpty());
  EXPECT_THAT(job_.record().message(), HasSubstr("2 workers and no ps"));
  EXPECT_THAT(Sent(), UnorderedElementsAre("w-0 prepare", "w-1 prepare"));
  ReportFrom("w-1", "of w-1");
  ReportFrom("w-0", "of w-0");

  const Job::Effects effects = job_.TakeEffects();

  EXPECT_EQ(job_.state(), v1::RUNNING);
  ASSERT_EQ(effects.directives.size(), 2);
  for (const Job::Outgoing& out : effects.directives) {
    EXPECT_THAT(out.directive.start().addresses(), ElementsAre("of w-0", "of w-1"));
    EXPECT_EQ(out.directive.start().total_steps(), 100);
  }
}

TEST_F(AllreduceJobTest, AfterARestartStartWaitsForAllAddresses) {
  Schedule();
  ReportFrom("w-0", "of w-0");
  ReportFrom("w-1", "of w-1");
  Job restarted(job_.record(), job_.plan(), /*term=*/2, now_);
  job_ = restarted;

  ReportFrom("w-0", "of w-0");
  EXPECT_THAT(Sent(), IsEmpty());
  ReportFrom("w-1", "of w-1", v1::MEMBER_RUNNING);
  EXPECT_THAT(Sent(), IsEmpty());
  ReportFrom("w-0", "of w-0");

  EXPECT_THAT(Sent(), ElementsAre("w-0 start"));
}

TEST_F(AllreduceJobTest, WorkersGetTheSnapshotDirectives) {
  Schedule();
  for (const auto state : {v1::MEMBER_PREPARED, v1::MEMBER_RUNNING}) {
    ReportFrom("w-0", "of w-0", state);
    ReportFrom("w-1", "of w-1", state);
  }
  job_.TakeEffects();

  ASSERT_TRUE(job_.RequestCheckpoint(now_).ok());

  EXPECT_THAT(Sent(), UnorderedElementsAre("w-0 snapshot", "w-1 snapshot"));
  Answer("w-0", 0, snapshot_.snapshot(), v1::SNAPSHOT_TAKEN);
  Pass(Outbox::kResend);
  Report("w-0", v1::MEMBER_RUNNING);
  Report("w-1", v1::MEMBER_RUNNING);
  EXPECT_THAT(Sent(), ElementsAre("w-1 snapshot"));
}

// A job whose workers are at different steps.
class StalenessJobTest : public JobTest {
 protected:
  explicit StalenessJobTest(v1::SyncMode mode = v1::SSP, int64_t every = 0) {
    v1::Job record = Record();
    record.mutable_spec()->mutable_sync()->set_mode(mode);
    record.mutable_spec()->mutable_sync()->set_every(every);
    job_ = Job(record, nullptr, /*term=*/1, now_);
  }

  // Makes both workers report all steps before `step`.
  void RecordStepsBefore(int64_t step) {
    v1::JobReport report = Say(v1::MEMBER_RUNNING, step);
    for (int64_t s = 0; s < step; ++s) report.add_steps()->set_step(s);
    for (const char* name : {"w-0", "w-1"}) job_.Report(name, &report, now_);
  }
};
class LocalSgdJobTest : public StalenessJobTest {
 protected:
  LocalSgdJobTest() : StalenessJobTest(v1::LOCAL_SGD, /*every=*/7) {}
};

TEST_F(StalenessJobTest, SuspendsAtACheckpointAheadOfItsWorkersWithoutPausingThem) {
  Run();
  Report("w-0", v1::MEMBER_RUNNING, 20);
  Report("w-1", v1::MEMBER_RUNNING, 17);
  job_.TakeEffects();
  ASSERT_TRUE(job_.Suspend(now_).ok());

  EXPECT_THAT(Sent(), UnorderedElementsAre("p-0 snapshot", "p-1 snapshot"));
  EXPECT_GT(snapshot_.step(), 20);
  EXPECT_EQ(job_.state(), v1::RUNNING);
  Commit(snapshot_.step());
  RecordStepsBefore(snapshot_.step());
  TakeEffects();
  EXPECT_EQ(job_.state(), v1::RUNNING) << "an evaluation may follow";
  RecordStepsBefore(snapshot_.step() + 1);
  EXPECT_EQ(job_.state(), v1::RUNNING) << "the records are not durable yet";
  TakeEffects();

  EXPECT_EQ(job_.state(), v1::SUSPENDED);
  EXPECT_THAT(job_.record().message(), HasSubstr(absl::StrCat("at step ", snapshot_.step())));
  const std::vector<std::string> sent = Sent();
  for (const char* released : {"w-0 release", "w-1 release", "p-0 release", "p-1 release"}) {
    EXPECT_THAT(sent, Contains(released));
  }
}

TEST_F(StalenessJobTest, ASuspensionAimsFurtherAheadAfterAMissedSnapshot) {
  Run();
  Report("w-0", v1::MEMBER_RUNNING, 10);
  job_.TakeEffects();
  ASSERT_TRUE(job_.Suspend(now_).ok());
  Sent();
  const int64_t first = snapshot_.step();
  Answer("p-1", 1, snapshot_.snapshot(), v1::SNAPSHOT_MISSED);
  Sent();
  EXPECT_GT(snapshot_.step(), first);

  job_.CheckpointFailed(snapshot_.step(), snapshot_.snapshot(), absl::UnavailableError("disk"),
                        now_);
  Pass(absl::Minutes(1));
  EXPECT_THAT(Sent(), UnorderedElementsAre("p-0 snapshot", "p-1 snapshot"));
  Commit(snapshot_.step());
  RecordStepsBefore(snapshot_.step() + 1);
  TakeEffects();
  EXPECT_EQ(job_.state(), v1::SUSPENDED);
}

TEST_F(LocalSgdJobTest, SnapshotsAreTakenAtTheEndOfARound) {
  Run();
  Report("w-0", v1::MEMBER_RUNNING, 10);
  job_.TakeEffects();
  const auto asked = job_.RequestCheckpoint(now_);
  ASSERT_TRUE(asked.ok()) << asked.status();
  EXPECT_EQ(asked->step % 7, 0);
  EXPECT_GT(asked->step, 10);
}

TEST_F(JobTest, IsSavedWhenItsTimeHasPassed) {
  v1::Job record = Record();
  record.mutable_spec()->mutable_checkpoint()->mutable_every()->set_seconds(60);
  job_ = Job(record, nullptr, /*term=*/1, now_);
  Run();
  Pass(absl::Seconds(59));
  ReportAll(v1::MEMBER_RUNNING, v1::MEMBER_RUNNING, /*next_step=*/7);
  EXPECT_THAT(Sent(), IsEmpty());
  Pass(absl::Seconds(1));
  EXPECT_THAT(Sent(), UnorderedElementsAre("p-0 snapshot", "p-1 snapshot"));
  Commit(snapshot_.step());
  Pass(absl::Seconds(1));
  EXPECT_THAT(Sent(), IsEmpty());
}

TEST_F(JobTest, AFailedCheckpointIsTroubleUntilOneIsWritten) {
  Run();
  EXPECT_FALSE(job_.trouble().has_value());
  job_.CheckpointFailed(50, /*snapshot=*/0,
                        WithReason(absl::ResourceExhaustedError("disk full"), "STORAGE_FULL"),
                        now_);
  ASSERT_TRUE(job_.trouble().has_value());
  EXPECT_EQ(job_.trouble()->reason(), "STORAGE_FULL");
  EXPECT_EQ(job_.trouble()->message(),
            "the checkpoint of step 50 could not be written: disk full; the job tries again");
  Commit(50);
  EXPECT_FALSE(job_.trouble().has_value());
}

TEST_F(JobTest, ScheduleSendsPrepareToEveryMember) {
  Schedule();

  EXPECT_EQ(job_.state(), v1::PREPARING);
  EXPECT_EQ(job_.record().generation(), 1);
  EXPECT_THAT(job_.record().workers(), ElementsAre("w-0", "w-1"));
  EXPECT_THAT(job_.record().ps(), ElementsAre("p-0", "p-1"));
  EXPECT_THAT(Sent(),
              UnorderedElementsAre("w-0 prepare", "w-1 prepare", "p-0 prepare", "p-1 prepare"));
}

TEST_F(JobTest, PrepareIsResentUntilAMemberReportsTheJob) {
  Schedule();
  Sent();

  job_.Report("w-0", nullptr, now_);
  EXPECT_THAT(Sent(), IsEmpty()) << "too soon";
  now_ += Outbox::kResend;
  job_.Report("w-0", nullptr, now_);
  EXPECT_THAT(Sent(), ElementsAre("w-0 prepare"));
  job_.Reattached("w-1");
  job_.Report("w-1", nullptr, now_);
  EXPECT_THAT(Sent(), ElementsAre("w-1 prepare"));
  now_ += Outbox::kResend;
  Report("w-0", v1::MEMBER_PREPARING);
  EXPECT_THAT(Sent(), IsEmpty());
}

TEST_F(JobTest, StartsOnceTheLastMemberIsPrepared) {
  Schedule();
  Sent();
  for (const char* name : {"w-0", "w-1", "p-0"}) Report(name, v1::MEMBER_PREPARED);
  EXPECT_EQ(job_.state(), v1::PREPARING);

  Report("p-1", v1::MEMBER_PREPARED);

  EXPECT_EQ(job_.state(), v1::RUNNING);
  EXPECT_EQ(job_.record().progress().total_steps(), 100);
  EXPECT_THAT(Sent(), UnorderedElementsAre("w-0 start", "w-1 start", "p-0 start", "p-1 start"));
}

TEST_F(JobTest, FailsWhenWorkersSeeDifferentData) {
  Schedule();
  v1::JobReport other = Say(v1::MEMBER_PREPARED);
  other.mutable_dataset()->set_samples(7);
  job_.Report("w-1", &other, now_);
  for (const char* name : {"w-0", "p-0", "p-1"}) Report(name, v1::MEMBER_PREPARED);

  EXPECT_EQ(job_.state(), v1::FAILED);
  EXPECT_EQ(job_.record().reason(), "DATASET_MISMATCH");
}

TEST_F(JobTest, FailsIfItsDataHasChangedSinceItsCheckpoint) {
  fingerprint_ = "34cd";
  trained_ = {.fingerprint = "34cd", .is_own = true};
  Run(50, "jobs/net-1/checkpoints/50");
  EXPECT_EQ(job_.state(), v1::RUNNING);
  EXPECT_EQ(job_.data_fingerprint(), "34cd");

  job_ = Job(Record(), nullptr, /*term=*/1, now_);
  trained_.fingerprint = "12ab";
  Run(50, "jobs/net-1/checkpoints/50");
  EXPECT_EQ(job_.state(), v1::FAILED);
  EXPECT_EQ(job_.record().reason(), "DATA_CHANGED");
}

TEST_F(JobTest, MayTrainOnOtherDataThanTheJobThatItStartsFrom) {
  fingerprint_ = "34cd";
  trained_ = {.fingerprint = "12ab", .is_own = false};
  Schedule(50, "jobs/net-0/checkpoints/50");
  ReportAll(v1::MEMBER_PREPARED, v1::MEMBER_PREPARED);

  EXPECT_EQ(job_.state(), v1::RUNNING);
  std::vector<std::string> reasons;
  for (const v1::JobEvent& event : job_.TakeEffects().events) reasons.push_back(event.reason());
  EXPECT_THAT(reasons, ::testing::Contains("OTHER_DATA"));
  EXPECT_EQ(job_.data_fingerprint(), "34cd");
}

TEST_F(JobTest, ARestartedCoordinatorLearnsTheDataFromReports) {
  fingerprint_ = "34cd";
  Run();
  job_ = Job(job_.record(), job_.plan(), /*term=*/2, now_);
  EXPECT_EQ(job_.data_fingerprint(), "");
  Report("w-1", v1::MEMBER_RUNNING);
  EXPECT_EQ(job_.data_fingerprint(), "34cd");
}

TEST_F(JobTest, SucceedsOnceWorkersAreDoneAndTheLastCheckpointIsCommitted) {
  Run();
  ReportAll(v1::MEMBER_DONE, v1::MEMBER_RUNNING, 100);
  EXPECT_EQ(job_.state(), v1::RUNNING);

  Commit(100);

  EXPECT_EQ(job_.state(), v1::SUCCEEDED);
  EXPECT_EQ(job_.record().checkpoint(), "jobs/net-1/checkpoints/100");
  EXPECT_TRUE(job_.record().has_end_time());
  EXPECT_THAT(Sent(),
              UnorderedElementsAre("w-0 release", "w-1 release", "p-0 release", "p-1 release"));
}

TEST_F(JobTest, AnEventHasTheNumberOfReplacedSamples) {
  for (const int64_t replaced : {0, 3}) {
    job_ = Job(Record(), nullptr, /*term=*/1, now_);
    Run();
    for (const char* name : {"w-0", "w-1"}) {
      v1::JobReport report = Say(v1::MEMBER_RUNNING, 10);
      report.mutable_timing()->mutable_input()->set_samples(20);
      report.mutable_timing()->mutable_input()->set_substituted(replaced);
      job_.Report(name, &report, now_);
    }
    ReportAll(v1::MEMBER_DONE, v1::MEMBER_RUNNING, 100);
    Commit(100);

    ASSERT_EQ(job_.state(), v1::SUCCEEDED);
    std::vector<std::string> messages;
    for (const v1::JobEvent& event : job_.TakeEffects().events) {
      if (event.reason() == "SAMPLES_REPLACED") messages.push_back(event.message());
    }
    if (replaced == 0) {
      EXPECT_THAT(messages, IsEmpty());
    } else {
      EXPECT_THAT(messages, ElementsAre(HasSubstr("replaced 6 of 40 samples that they read since "
                                                  "step 0, because they are damaged")));
    }
  }
}

TEST_F(JobTest, AMemberThatStillReportsAnEndedJobIsReleasedAgain) {
  Run();
  ASSERT_TRUE(job_.Cancel(now_).ok());
  Sent();

  Report("p-0", v1::MEMBER_RUNNING);

  EXPECT_THAT(Sent(), ElementsAre("p-0 release"));
}

TEST_F(JobTest, AMembersFailureNamesTheMemberAndItsStep) {
  Run();
  v1::JobReport report = Say(v1::MEMBER_FAILED);
  report.mutable_error()->set_reason("MEMORY_EXHAUSTED");
  report.mutable_error()->set_message("no room\x1b[2J\nfor more");
  report.mutable_error()->set_step(57);

  job_.Report("p-1", &report, now_);

  EXPECT_EQ(job_.state(), v1::FAILED);
  EXPECT_EQ(job_.record().reason(), "MEMORY_EXHAUSTED");
  EXPECT_EQ(job_.record().message(), "p-1 failed at step 57: no room\\x1b[2J\\nfor more")
      << "escaped, so that it cannot forge log lines or control a terminal";
}

TEST_F(JobTest, AnAccusedMemberThatIsLostIsTheCulprit) {
  Run();
  v1::JobReport report = Say(v1::MEMBER_FAILED);
  report.mutable_error()->set_reason("PS_UNREACHABLE");
  report.mutable_error()->set_message("push of chunk 3 failed");
  report.mutable_error()->set_step(57);
  report.mutable_error()->set_culprit("p-1");

  job_.Report("w-0", &report, now_);
  EXPECT_EQ(job_.state(), v1::RUNNING) << "the accused member may still report";
  job_.MemberLost("p-1", "its lease ran out", now_);

  EXPECT_EQ(job_.record().reason(), "MEMBER_LOST");
  EXPECT_THAT(job_.record().message(), HasSubstr("p-1 (ps, shard 1) was lost at step 57"));
  EXPECT_THAT(job_.record().message(), HasSubstr("push of chunk 3 failed"));
}

TEST_F(JobTest, AnAccusationIsBelievedAfterAWhile) {
  Run();
  v1::JobReport report = Say(v1::MEMBER_FAILED);
  report.mutable_error()->set_reason("PS_UNREACHABLE");
  report.mutable_error()->set_step(57);
  report.mutable_error()->set_culprit("p-1");
  job_.Report("w-0", &report, now_);

  Pass(FailureDetector::kAccusationSettles);

  EXPECT_EQ(job_.state(), v1::FAILED);
  EXPECT_THAT(job_.record().message(),
              HasSubstr("p-1 (ps, shard 1) is at fault at step 57, says w-0"));
}

TEST_F(JobTest, AMemberThatForgetsARunningJobFailsIt) {
  Run();

  job_.Report("w-1", nullptr, now_);

  EXPECT_EQ(job_.state(), v1::FAILED);
  EXPECT_EQ(job_.record().reason(), "MEMBER_FORGOT_JOB");
  EXPECT_THAT(job_.record().message(), HasSubstr("w-1"));
}

TEST_F(JobTest, LosingAMemberOfNoJobChangesNothing) {
  Run();
  job_.MemberLost("w-9", "gone", now_);
  EXPECT_EQ(job_.state(), v1::RUNNING);
}

TEST_F(JobTest, StepsOfAllRanksAddUpAndAreAcknowledgedOnceTheyAreDurable) {
  Run();
  auto report = [&](const std::string& name, double share) {
    v1::JobReport r = Say(v1::MEMBER_RUNNING, 1);
    v1::StepRecord& step = *r.add_steps();
    step.set_loss_share(share);
    job_.Report(name, &r, now_);
  };

  report("w-0", 1.5);
  report("w-1", 2.5);
  const Job::Effects effects = job_.TakeEffects();

  ASSERT_EQ(effects.steps.size(), 1);
  EXPECT_EQ(effects.steps[0].loss, 4.0);
  EXPECT_TRUE(effects.directives.empty());
  ASSERT_TRUE(effects.records.has_value());
  EXPECT_EQ(effects.records->steps, 1);
  EXPECT_EQ(job_.record().progress().step(), 1);
  EXPECT_EQ(job_.record().progress().loss(), 4.0);

  job_.RecordsDurable(*effects.records, now_);
  const auto told = job_.TakeEffects().directives;
  ASSERT_EQ(told.size(), 2);
  for (const Job::Outgoing& out : told) {
    EXPECT_EQ(out.directive.acknowledge().steps_before(), 1) << out.member;
  }

  report("w-0", 1.5);  // as if the acknowledgement was lost
  EXPECT_THAT(Sent(), ElementsAre("w-0 acknowledge"));
}

TEST_F(JobTest, AllWorkersOfAProgramLearnTheResultOfItsEvaluation) {
  UseExternalModel();
  Run();
  const auto evaluate = [&](const std::string& name, double top1, int seconds) {
    v1::JobReport report = Say(v1::MEMBER_RUNNING);
    v1::EvaluationRecord& record = *report.add_evaluations();
    record.set_samples(4);
    record.mutable_time()->set_seconds(seconds);
    (*record.mutable_metric_sums())["top1"] = 4 * top1;
    job_.Report(name, &report, now_);
  };
  const auto told = [&] {
    std::vector<std::string> told;
    Job::Effects effects = TakeEffects();
    for (const Job::Outgoing& out : effects.directives) {
      const v1::EvaluationResult& result = out.directive.acknowledge().evaluation();
      if (!out.directive.acknowledge().has_evaluation()) continue;
      told.push_back(absl::StrCat(out.member, " ", result.step(), " ", result.samples(), " ",
                                  result.metrics().at("top1")));
    }
    return told;
  };

  evaluate("w-0", 0.5, 1);
  EXPECT_THAT(told(), IsEmpty());
  evaluate("w-1", 1, 2);
  EXPECT_THAT(told(), ElementsAre("w-0 0 8 0.75", "w-1 0 8 0.75"));
  told();  // the directives for durable records
  EXPECT_EQ(job_.record().progress().evaluation_step(), 0);
  EXPECT_FALSE(job_.record().progress().has_evaluation_loss());

  evaluate("w-1", 1, 2);  // as if the acknowledgement was lost
  EXPECT_THAT(told(), ElementsAre("w-1 0 8 0.75"));

  evaluate("w-0", 0.75, 3);  // the program evaluates the same version again
  EXPECT_THAT(told(), IsEmpty());
  evaluate("w-1", 0.75, 3);
  EXPECT_THAT(told(), ElementsAre("w-0 0 8 0.75", "w-1 0 8 0.75"));
}

TEST_F(JobTest, AWorkerMayWaitForItsProgramForever) {
  UseExternalModel();
  Schedule();
  ReportAll(v1::MEMBER_PREPARING, v1::MEMBER_PREPARED);
  const auto wait = [&](v1::MemberJobState state, bool attached, absl::Duration time) {
    v1::JobReport report = Say(state);
    report.mutable_program_wait()->set_attached(attached);
    *report.mutable_program_wait()->mutable_time() = ToProto(time);
    job_.Report("w-1", &report, now_);
    return job_.trouble() ? absl::StrCat(job_.trouble()->reason(), ": ", job_.trouble()->message())
                          : "";
  };
  Report("w-0", v1::MEMBER_PREPARED);
  EXPECT_EQ(wait(v1::MEMBER_PREPARING, false, absl::Minutes(2)), "");
  for (int minutes = 3; minutes < 30; ++minutes) {
    Pass(absl::Minutes(1));
    EXPECT_EQ(wait(v1::MEMBER_PREPARING, false, absl::Minutes(minutes)),
              absl::StrCat("PROGRAM_ABSENT: w-1 has waited ", minutes,
                           " min for its program; start it or see its log"));
  }
  EXPECT_EQ(job_.state(), v1::PREPARING);

  Report("w-1", v1::MEMBER_PREPARED);
  ASSERT_EQ(job_.state(), v1::RUNNING);
  EXPECT_FALSE(job_.trouble());
  EXPECT_EQ(wait(v1::MEMBER_RUNNING, true, absl::Minutes(12)),
            "PROGRAM_SLOW: w-1 has been in user code for 12 min");
  Report("w-1", v1::MEMBER_RUNNING);
  EXPECT_FALSE(job_.trouble());
}

TEST_F(JobTest, AWorkerThatWaitsForNoProgramMustMakeProgress) {
  UseExternalModel();
  Schedule();
  ReportAll(v1::MEMBER_PREPARING, v1::MEMBER_PREPARED);
  Pass(FailureDetector::kPrepareStallMax);
  EXPECT_NE(job_.state(), v1::PREPARING);
}

TEST_F(JobTest, AJobEndsOnceItsStepsAreDurable) {
  Run();
  Commit(100);
  for (const char* name : {"w-0", "w-1"}) {
    v1::JobReport report = Say(v1::MEMBER_DONE, 100);
    report.add_steps()->set_loss_share(1);
    job_.Report(name, &report, now_);
  }
  EXPECT_EQ(job_.state(), v1::RUNNING);

  job_.RecordsDurable(*job_.TakeEffects().records, now_);

  EXPECT_EQ(job_.state(), v1::SUCCEEDED);
}

TEST_F(JobTest, WaitsForTheLastRecordsOfAWorkerThatIsDone) {
  Run();
  Commit(100);
  v1::JobReport report = Say(v1::MEMBER_DONE, 100);
  Report("w-0", v1::MEMBER_DONE, 100);
  for (int step = 0; step < limits::kStepRecordsReportedMax; ++step) {
    report.add_steps()->set_step(step);
  }
  job_.Report("w-1", &report, now_);
  EXPECT_EQ(job_.state(), v1::RUNNING);

  Report("w-1", v1::MEMBER_DONE, 100);

  EXPECT_EQ(job_.state(), v1::SUCCEEDED);
}

TEST_F(JobTest, ASuspensionWaitsForTheLastRecordsOfAWorker) {
  Run();
  ASSERT_TRUE(job_.Suspend(now_).ok());
  v1::JobReport full = Say(v1::MEMBER_PAUSED, 34);
  for (int step = 0; step < limits::kStepRecordsReportedMax; ++step) full.add_steps();
  job_.Report("w-0", &full, now_);
  Report("w-1", v1::MEMBER_PAUSED, 34);
  Commit(34);
  EXPECT_EQ(job_.state(), v1::RUNNING);

  Report("w-0", v1::MEMBER_PAUSED, 34);

  EXPECT_EQ(job_.state(), v1::SUSPENDED);
}

TEST_F(JobTest, ARestartDuringASuspensionRepeatsNoRecords) {
  v1::Job record = Record();
  record.set_state(v1::SUSPENDED);
  record.set_generation(0);
  job_ = Job(record, nullptr, /*term=*/2, now_);
  job_.Restore({.edges = {{.step = 0, .loss = 2}, {.step = 40, .loss = 1}}});
  ASSERT_TRUE(job_.Resume(nullptr, now_).ok());
  Run(/*first_step=*/30, "jobs/net-1/checkpoints/30");

  for (const char* name : {"w-0", "w-1"}) {
    v1::JobReport report = Say(v1::MEMBER_RUNNING, 43);
    for (int64_t step = 30; step < 43; ++step) report.add_steps()->set_step(step);
    job_.Report(name, &report, now_);
  }

  const Job::Effects effects = job_.TakeEffects();
  ASSERT_EQ(effects.steps.size(), 2);
  EXPECT_EQ(effects.steps[0].step, 41);
}

TEST_F(JobTest, FrozenTimeDoesNotCountAgainstMembers) {
  Schedule();
  const absl::Duration nearly = FailureDetector::kPrepareStallMax - absl::Seconds(1);
  now_ += nearly;
  job_.WentOn(now_);
  Pass(nearly);
  EXPECT_EQ(job_.state(), v1::PREPARING);
  Pass(absl::Seconds(2));
  EXPECT_EQ(job_.state(), v1::FAILED);
}

TEST_F(JobTest, LostStepRecordsAreAnEvent) {
  Run();
  for (const char* name : {"w-0", "w-1"}) {
    v1::JobReport report = Say(v1::MEMBER_RUNNING, 6);
    report.add_steps()->set_step(5);
    job_.Report(name, &report, now_);
  }
  const Job::Effects effects = job_.TakeEffects();
  ASSERT_EQ(effects.events.size(), 1);
  EXPECT_EQ(effects.events[0].reason(), "STEPS_LOST");
  EXPECT_THAT(effects.events[0].message(), HasSubstr("steps 0 to 4"));
  EXPECT_EQ(effects.steps.size(), 1);
}

TEST_F(JobTest, TenSkippedStepsInARowAreAnAlarmWithAdvice) {
  Run();
  auto step = [&](int64_t number, bool skipped) {
    for (const char* name : {"w-0", "w-1"}) {
      v1::JobReport report = Say(v1::MEMBER_RUNNING, number + 1);
      v1::StepRecord& record = *report.add_steps();
      record.set_step(number);
      record.set_loss_share(skipped ? std::nan("") : 1);
      record.set_loss_scale(64);
      record.set_skipped(skipped);
      job_.Report(name, &report, now_);
    }
    return job_.TakeEffects().events;
  };
  for (int64_t number = 0; number < 9; ++number) EXPECT_THAT(step(number, true), IsEmpty());
  EXPECT_THAT(step(9, false), IsEmpty());
  for (int64_t number = 10; number < 19; ++number) EXPECT_THAT(step(number, true), IsEmpty());

  const std::vector<v1::JobEvent> events = step(19, true);

  ASSERT_EQ(events.size(), 1);
  EXPECT_EQ(events[0].reason(), "STEPS_SKIPPED");
  EXPECT_THAT(events[0].message(), HasSubstr("steps 10 to 19 were skipped"));
  EXPECT_EQ(job_.state(), v1::RUNNING);
  EXPECT_THAT(step(20, true), IsEmpty()) << "reported once";

  const Job alarmed = job_;
  for (int64_t number = 21; number < 10 + NonFiniteWatch::kSkipsMax; ++number) {
    Pass(absl::Milliseconds(1));
    ASSERT_EQ(job_.state(), v1::RUNNING) << number;
    step(number, true);
  }
  Pass(absl::Milliseconds(1));
  EXPECT_EQ(job_.state(), v1::FAILED);
  EXPECT_EQ(job_.record().reason(), "STEPS_SKIPPED");
  EXPECT_THAT(job_.record().message(), HasSubstr("the last 1000 steps were skipped"));
  job_ = alarmed;

  v1::Job half = job_.record();
  half.mutable_spec()->mutable_training()->set_precision(v1::FP16);
  job_ = Job(half, job_.plan(), /*term=*/2, now_);
  job_.Restore({.edges = {{.step = 0, .loss = 2}, {.step = 20, .loss = 2}}});
  for (int64_t number = 21; number < 30; ++number) step(number, true);
  const std::vector<v1::JobEvent> alarm = step(30, true);
  ASSERT_EQ(alarm.size(), 1);
  EXPECT_EQ(alarm[0].reason(), "LOSS_SCALE_ALARM");
  EXPECT_THAT(alarm[0].message(), HasSubstr("the loss scale at 64. Try precision: bf16"));
}

TEST_F(JobTest, ASucceededJobReportsANonFiniteLastLoss) {
  IgnoreNonFinite();
  Run();
  for (const char* name : {"w-0", "w-1"}) {
    v1::JobReport report = Say(v1::MEMBER_RUNNING, 1);
    report.add_steps()->set_loss_share(std::nan(""));
    job_.Report(name, &report, now_);
  }
  TakeEffects();
  ReportAll(v1::MEMBER_DONE, v1::MEMBER_RUNNING, 100);
  Commit(100);
  EXPECT_EQ(job_.state(), v1::SUCCEEDED);
  EXPECT_EQ(job_.record().reason(), "NONFINITE_LOSS");
  EXPECT_THAT(job_.record().message(), HasSubstr("the last loss is nan"));
}

TEST_F(JobTest, AnIgnoredNonFiniteLossIsReportedOncePerGeneration) {
  IgnoreNonFinite();
  Run();
  auto step = [&](int64_t number, double share) {
    for (const char* name : {"w-0", "w-1"}) {
      v1::JobReport report = Say(v1::MEMBER_RUNNING, number + 1);
      v1::StepRecord& record = *report.add_steps();
      record.set_step(number);
      record.set_loss_share(share);
      job_.Report(name, &report, now_);
    }
    return TakeEffects().events;
  };
  EXPECT_THAT(step(0, 1.0), IsEmpty());

  const std::vector<v1::JobEvent> events = step(1, std::nan(""));

  ASSERT_EQ(events.size(), 1);
  EXPECT_EQ(events[0].reason(), "NONFINITE_LOSS");
  EXPECT_THAT(events[0].message(), HasSubstr("step 1"));
  EXPECT_EQ(job_.state(), v1::RUNNING);
  EXPECT_EQ(job_.record().reason(), "STARTED");
  EXPECT_THAT(step(2, std::numeric_limits<double>::infinity()), IsEmpty());

  Job restarted(job_.record(), job_.plan(), /*term=*/2, now_);
  restarted.Restore({.edges = {{.step = 0, .loss = 2}, {.step = 2, .loss = std::nan("")}}});
  job_ = std::move(restarted);
  EXPECT_THAT(step(3, std::nan("")), IsEmpty()) << "reported before the restart";

  ReportAll(v1::MEMBER_PAUSED, v1::MEMBER_RUNNING, 4);
  ASSERT_TRUE(job_.Suspend(now_).ok());
  Report("w-0", v1::MEMBER_PAUSED, 4);
  Commit(4);
  ASSERT_EQ(job_.state(), v1::SUSPENDED);
  ASSERT_TRUE(job_.Resume(nullptr, now_).ok());
  Run(4, "jobs/net-1/checkpoints/4");
  EXPECT_EQ(step(4, std::nan("")).size(), 1) << "a new generation";
}

TEST_F(JobTest, SuspendingPausesWorkersSnapshotsTheStepAndReleases) {
  Run();
  ASSERT_TRUE(job_.Suspend(now_).ok());
  EXPECT_THAT(Sent(), UnorderedElementsAre("w-0 pause", "w-1 pause"));
  EXPECT_TRUE(job_.record().suspend_requested());

  Report("w-0", v1::MEMBER_PAUSED, 33);
  Report("w-1", v1::MEMBER_PAUSED, 34);
  EXPECT_THAT(Sent(), IsEmpty()) << "a last push is under way";
  Report("w-0", v1::MEMBER_PAUSED, 34);
  EXPECT_THAT(Sent(), UnorderedElementsAre("p-0 snapshot", "p-1 snapshot"));
  EXPECT_EQ(snapshot_.step(), 34);

  Commit(34);
  EXPECT_EQ(job_.state(), v1::SUSPENDED);
  EXPECT_FALSE(job_.record().suspend_requested());
  EXPECT_THAT(Sent(),
              UnorderedElementsAre("w-0 release", "w-1 release", "p-0 release", "p-1 release"));
}

TEST_F(JobTest, SuspendingBeforeALaterCheckpointNeedsNoOther) {
  Run();
  Commit(80);  // of the previous generation, which was further
  ASSERT_TRUE(job_.Suspend(now_).ok());
  for (const char* name : {"w-0", "w-1"}) Report(name, v1::MEMBER_PAUSED, 60);
  EXPECT_EQ(job_.state(), v1::SUSPENDED);
  EXPECT_EQ(job_.record().message(), "suspended at step 80");
}

TEST_F(JobTest, AMissedSnapshotIsRequestedAgainAtThePresentStep) {
  Run();
  ASSERT_TRUE(job_.Suspend(now_).ok());
  for (const char* name : {"w-0", "w-1"}) Report(name, v1::MEMBER_PAUSED, 33);
  Sent();
  const uint64_t first = snapshot_.snapshot();

  Answer("p-0", 0, first, v1::SNAPSHOT_TAKEN);
  Answer("p-1", 1, first, v1::SNAPSHOT_MISSED);
  EXPECT_THAT(Sent(), IsEmpty());
  now_ += absl::Seconds(1);
  for (const char* name : {"w-0", "w-1"}) Report(name, v1::MEMBER_PAUSED, 34);

  EXPECT_THAT(Sent(), UnorderedElementsAre("p-0 snapshot", "p-1 snapshot"));
  EXPECT_EQ(snapshot_.step(), 34);
  EXPECT_GT(snapshot_.snapshot(), first);
}

TEST_F(JobTest, SuspendingAtAPeriodicStepWaitsForItsCheckpointFirst) {
  Run();
  ASSERT_TRUE(job_.Suspend(now_).ok());
  Sent();
  for (const char* name : {"w-0", "w-1"}) Report(name, v1::MEMBER_PAUSED, 50);
  EXPECT_THAT(Sent(), IsEmpty());

  Pass(CheckpointPolicy::kPatience);
  EXPECT_THAT(Sent(), UnorderedElementsAre("p-0 snapshot", "p-1 snapshot"));
  EXPECT_EQ(snapshot_.step(), 50);
}

TEST_F(JobTest, SuspendingBeforeTheFirstStepNeedsNoCheckpoint) {
  Run();
  ASSERT_TRUE(job_.Suspend(now_).ok());

  for (const char* name : {"w-0", "w-1"}) Report(name, v1::MEMBER_PAUSED, 0);

  EXPECT_EQ(job_.state(), v1::SUSPENDED);
}

TEST_F(JobTest, SuspendingARecoveringJobWaitsUntilItRuns) {
  Run();
  v1::Job record = job_.record();
  record.set_state(v1::RECOVERING);
  job_ = Job(record, job_.plan(), /*term=*/2, now_);

  EXPECT_TRUE(job_.Suspend(now_).ok());
  for (const char* name : {"w-0", "w-1"}) Report(name, v1::MEMBER_PAUSED, 34);

  EXPECT_EQ(job_.state(), v1::RECOVERING);
  EXPECT_TRUE(job_.record().suspend_requested());
  EXPECT_EQ(ReasonOf(job_.RequestCheckpoint(now_).status()), "JOB_NOT_RUNNING");
  EXPECT_EQ(ReasonOf(job_.Resume(nullptr, now_)), "JOB_SUSPENDING");
  EXPECT_TRUE(job_.Cancel(now_).ok());
}

TEST_F(JobTest, AcceptsOtherResourcesOnlyWhileSuspended) {
  v1::ResourceSpec larger;
  larger.mutable_workers()->set_min(4);
  Schedule();
  EXPECT_EQ(ReasonOf(job_.Resume(&larger, now_)), "JOB_NOT_SUSPENDED");
  ASSERT_TRUE(job_.Suspend(now_).ok());

  ASSERT_TRUE(job_.Resume(&larger, now_).ok());

  EXPECT_EQ(job_.record().spec().resources().workers().min(), 4);
  EXPECT_EQ(job_.state(), v1::QUEUED);
  EXPECT_TRUE(job_.Resume(&larger, now_).ok()) << "the same call again";
}

TEST_F(JobTest, AResumedJobIsQueuedAndContinuesInANewGeneration) {
  Run();
  ASSERT_TRUE(job_.Suspend(now_).ok());
  for (const char* name : {"w-0", "w-1"}) Report(name, v1::MEMBER_PAUSED, 34);
  EXPECT_EQ(ReasonOf(job_.Resume(nullptr, now_)), "JOB_SUSPENDING");
  Commit(34);

  ASSERT_TRUE(job_.Resume(nullptr, now_).ok());
  EXPECT_EQ(job_.state(), v1::QUEUED);
  EXPECT_TRUE(job_.Resume(nullptr, now_).ok()) << "idempotent";
  Run(34, "jobs/net-1/checkpoints/34");

  EXPECT_EQ(job_.state(), v1::RUNNING);
  EXPECT_EQ(job_.record().generation(), 2);
  EXPECT_EQ(job_.plan()->first_step(), 34);
}

TEST_F(JobTest, UsesThePreviousCheckpointIfTheLastIsDamaged) {
  Run();
  Commit(30);
  Commit(50);
  EXPECT_TRUE(job_.Suspend(now_).ok());
  ReportAll(v1::MEMBER_PAUSED, v1::MEMBER_RUNNING, /*next_step=*/50);
  ASSERT_EQ(job_.state(), v1::SUSPENDED);
  EXPECT_TRUE(job_.Resume(nullptr, now_).ok());
  job_.TakeEffects();

  job_.CheckpointUnusable(Job::Unusable::kDamaged, 50, "step-00000050/manifest.json: is odd", 30,
                          now_);

  EXPECT_EQ(job_.record().checkpoint(), "jobs/net-1/checkpoints/30");
  const Job::Effects effects = job_.TakeEffects();
  ASSERT_EQ(effects.events.size(), 1);
  EXPECT_EQ(effects.events[0].reason(), "CHECKPOINT_DAMAGED");
  EXPECT_EQ(effects.events[0].message(),
            "net-1@50 is damaged and set aside (step-00000050/manifest.json: is "
            "odd); net-1@30 is used instead: steps 30 to 50 are trained again");
  Run(30, "jobs/net-1/checkpoints/30");
  Commit(40);
  EXPECT_EQ(job_.record().checkpoint(), "jobs/net-1/checkpoints/40");
}

TEST_F(JobTest, UsesThePreviousCheckpointIfTheLastIsUnreadable) {
  Run();
  Commit(30);
  Commit(50);
  EXPECT_TRUE(job_.Suspend(now_).ok());
  ReportAll(v1::MEMBER_PAUSED, v1::MEMBER_RUNNING, /*next_step=*/50);
  EXPECT_TRUE(job_.Resume(nullptr, now_).ok());
  job_.TakeEffects();

  job_.CheckpointUnusable(Job::Unusable::kUnreadable, 50, "manifest.json: open: stale file handle",
                          30, now_);

  EXPECT_EQ(job_.record().checkpoint(), "jobs/net-1/checkpoints/30");
  const Job::Effects effects = job_.TakeEffects();
  ASSERT_EQ(effects.events.size(), 1);
  EXPECT_EQ(effects.events[0].reason(), "CHECKPOINT_UNREADABLE");
  EXPECT_EQ(effects.events[0].message(),
            "net-1@50 cannot be used and stays where it is (manifest.json: open: "
            "stale file handle); net-1@30 is used instead: steps 30 to 50 are "
            "trained again");
}

TEST_F(JobTest, ACheckpointOnDemandAimsAheadAndFurtherAfterAMiss) {
  Run();
  ReportAll(v1::MEMBER_RUNNING, v1::MEMBER_RUNNING, 10);
  const auto asked = job_.RequestCheckpoint(now_);
  ASSERT_TRUE(asked.ok());
  EXPECT_GT(asked->step, 10);
  Sent();
  EXPECT_EQ(snapshot_.step(), asked->step);

  Answer("p-0", 0, snapshot_.snapshot(), v1::SNAPSHOT_MISSED);
  EXPECT_THAT(Sent(), UnorderedElementsAre("p-0 snapshot", "p-1 snapshot"));
  EXPECT_GT(snapshot_.step(), asked->step);

  Commit(snapshot_.step());
  Report("p-0", v1::MEMBER_RUNNING, 20);
  EXPECT_THAT(Sent(), IsEmpty());
}

TEST_F(JobTest, ShardsOfAnotherGenerationOrAnAbandonedSnapshotAreRefused) {
  Run();
  v1::WriteShardHeader header;
  header.set_generation(1);
  header.set_step(50);
  EXPECT_TRUE(job_.AdmitShard(header).ok());

  header.set_step(51);
  EXPECT_EQ(ReasonOf(job_.AdmitShard(header)), "CHECKPOINT_NOT_DUE");
  header.set_step(50);
  header.set_shard(2);
  EXPECT_EQ(ReasonOf(job_.AdmitShard(header)), "SHARD_NOT_FOUND");
  header.set_shard(1);
  header.set_generation(0);
  EXPECT_EQ(ReasonOf(job_.AdmitShard(header)), "STALE_GENERATION");
  header.set_generation(1);
  header.set_snapshot(77);
  EXPECT_EQ(ReasonOf(job_.AdmitShard(header)), "STALE_SNAPSHOT");
}

TEST_F(JobTest, AFailedFinalCheckpointIsRetriedThenFailsTheJob) {
  Run();
  ReportAll(v1::MEMBER_DONE, v1::MEMBER_RUNNING, 100);
  const absl::Status full = absl::ResourceExhaustedError("disk full");

  job_.CheckpointFailed(100, 0, full, now_);
  Sent();
  Pass(CheckpointPolicy::kPatience);
  EXPECT_THAT(Sent(), UnorderedElementsAre("p-0 snapshot", "p-1 snapshot"));
  EXPECT_EQ(snapshot_.step(), 100);
  job_.CheckpointFailed(100, snapshot_.snapshot(), full, now_);
  EXPECT_EQ(job_.state(), v1::RUNNING);
  job_.CheckpointFailed(100, 0, full, now_);

  EXPECT_EQ(job_.state(), v1::FAILED);
  EXPECT_EQ(job_.record().reason(), "CHECKPOINT_FAILED");
  EXPECT_THAT(job_.record().message(), HasSubstr("disk full"));
}

TEST_F(JobTest, CancelEndsAJob) {
  Run();
  ASSERT_TRUE(job_.Cancel(now_).ok());
  EXPECT_EQ(job_.state(), v1::CANCELLED);
  EXPECT_EQ(job_.plan(), nullptr) << "the plan may take megabytes and is no longer needed";
  EXPECT_TRUE(job_.Cancel(now_).ok()) << "a no-op";
  EXPECT_EQ(ReasonOf(job_.Suspend(now_)), "JOB_FINISHED");
  EXPECT_EQ(ReasonOf(job_.Resume(nullptr, now_)), "JOB_FINISHED");
}

TEST_F(JobTest, AfterARestartMembersReattachAndTrainingContinues) {
  Run();
  Job restarted(job_.record(), job_.plan(), /*term=*/2, now_);
  restarted.Restore({.edges = {{.step = 0, .loss = 4}, {.step = 29, .loss = 2}}});
  job_ = std::move(restarted);
  EXPECT_EQ(job_.record().progress().step(), 30);
  EXPECT_EQ(job_.record().progress().first_loss(), 4);

  ReportAll(v1::MEMBER_RUNNING, v1::MEMBER_RUNNING, 30);
  Pass(FailureDetector::kRestartGrace);

  EXPECT_EQ(job_.state(), v1::RUNNING);
  EXPECT_THAT(Sent(), IsEmpty());
}

TEST_F(JobTest, AfterARestartAMissingMemberFailsTheJobWhenTheGraceEnds) {
  Run();
  job_ = Job(job_.record(), job_.plan(), /*term=*/2, now_);
  for (const char* name : {"w-0", "w-1", "p-0"}) Report(name, v1::MEMBER_RUNNING, 30);

  Pass(FailureDetector::kRestartGrace - absl::Seconds(1));
  EXPECT_EQ(job_.state(), v1::RUNNING);
  Pass(absl::Seconds(1));

  EXPECT_EQ(job_.state(), v1::FAILED);
  EXPECT_THAT(job_.record().message(), HasSubstr("p-1"));
}

TEST_F(JobTest, AfterARestartASuspensionContinuesWithNewSnapshotIds) {
  Run();
  ASSERT_TRUE(job_.Suspend(now_).ok());
  for (const char* name : {"w-0", "w-1"}) Report(name, v1::MEMBER_PAUSED, 33);
  Sent();
  const uint64_t before = snapshot_.snapshot();

  job_ = Job(job_.record(), job_.plan(), /*term=*/2, now_);
  ReportAll(v1::MEMBER_PAUSED, v1::MEMBER_RUNNING, 33);

  EXPECT_THAT(Sent(), UnorderedElementsAre("p-0 snapshot", "p-1 snapshot"));
  EXPECT_GT(snapshot_.snapshot(), before);
}

TEST_F(JobTest, MembersThatNeverPrepareFailTheJob) {
  Schedule();
  for (const char* name : {"w-0", "w-1", "p-0"}) Report(name, v1::MEMBER_PREPARED);

  Pass(FailureDetector::kPrepareStallMax);

  EXPECT_EQ(job_.record().reason(), "PREPARE_TIMEOUT");
  EXPECT_THAT(job_.record().message(), HasSubstr("p-1"));
}

}  // namespace
}  // namespace muster::job_test
