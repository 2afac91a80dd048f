#include "cli/text/output.h"

#include <string>

#include "absl/time/time.h"
#include "cli/text/job_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::cli::output_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int64_t kNow = 1'800'000'000;

v1::Job RunningJob() {
  v1::Job job;
  job.set_name("jobs/char-gpt-1");
  job.set_state(v1::RUNNING);
  job.mutable_create_time()->set_seconds(kNow - 75);
  job.mutable_spec()->set_name("char-gpt");
  job.mutable_spec()->mutable_resources()->mutable_workers()->set_min(1);
  job.mutable_spec()->mutable_resources()->mutable_workers()->set_max(2);
  job.mutable_spec()->mutable_resources()->set_ps(2);
  for (const char* worker : {"worker-0", "worker-1"}) job.add_workers(worker);
  for (const char* ps : {"ps-0", "ps-1"}) job.add_ps(ps);
  v1::JobProgress& progress = *job.mutable_progress();
  progress.set_step(860);
  progress.set_total_steps(2000);
  progress.set_loss(1.734);
  progress.set_first_loss(5.545);
  progress.set_samples_per_second(812);
  progress.mutable_remaining()->set_seconds(70);
  return job;
}

v1::Job FinishedJob() {
  v1::Job job = RunningJob();
  job.set_state(v1::SUCCEEDED);
  job.mutable_start_time()->set_seconds(kNow - 70);
  job.mutable_end_time()->set_seconds(kNow - 5);
  job.mutable_progress()->set_step(2000);
  job.mutable_progress()->set_loss(1.2);
  job.mutable_progress()->set_evaluation_loss(1.2345678);
  job.mutable_progress()->set_evaluation_accuracy(0.978);
  return job;
}

TEST(OutputTest, ProgressLineHasAllPartsIfThereIsRoom) {
  EXPECT_EQ(ProgressLine(RunningJob(), 120),
            "char-gpt-1 RUNNING  43% step 860/2000  loss 1.734  812 samples/s  eta 00:01:10  "
            "2/2 workers 2/2 ps");
}

TEST(OutputTest, ProgressLineDropsPartsThatDoNotFit) {
  EXPECT_EQ(ProgressLine(RunningJob(), 80),
            "char-gpt-1 RUNNING  43% step 860/2000  loss 1.734  812 samples/s  eta 00:01:10");
  EXPECT_EQ(ProgressLine(RunningJob(), 40), "char-gpt-1 RUNNING  43% step 860/2000");
  EXPECT_EQ(ProgressLine(RunningJob(), 80, /*color=*/true),
            "char-gpt-1 \033[36mRUNNING\033[0m  43% step 860/2000  loss 1.734  812 samples/s  "
            "eta 00:01:10");
}

TEST(OutputTest, ProgressLineOfAWaitingJobShowsTheMembersItNeeds) {
  v1::Job job = RunningJob();
  job.set_state(v1::QUEUED);  // again: `workers` and `ps` are those of the previous generation
  job.clear_progress();

  EXPECT_EQ(ProgressLine(job, 80), "char-gpt-1 QUEUED  0/2 workers 0/2 ps");
}

TEST(OutputTest, TroubleIsInTheProgressLineAndInTheTable) {
  v1::Job job = RunningJob();
  job.mutable_trouble()->set_reason("STORAGE_FULL");
  job.mutable_trouble()->set_message("the checkpoint of step 860 could not be written: disk full");
  EXPECT_EQ(ProgressLine(job, 60), "char-gpt-1 RUNNING  43% step 860/2000  TROUBLE: the checkpoi");
  EXPECT_THAT(ProgressLine(job, 200), HasSubstr("written: disk full  loss 1.734"));
  EXPECT_THAT(JobTable({job}, absl::UnixEpoch()), HasSubstr("RUNNING (STORAGE_FULL)"));
  EXPECT_THAT(DescribeJob(job, {}, absl::UnixEpoch()),
              HasSubstr("\nTrouble            the checkpoint of step 860 could not"));
}

TEST(OutputTest, ShowsALossWithItsDigitsAsSoonAsThereIsOne) {
  v1::Job job = RunningJob();
  job.mutable_progress()->set_loss(5.6e-5);
  EXPECT_THAT(ProgressLine(job, 200), HasSubstr("  loss 5.6e-05  "));
  job.set_state(v1::QUEUED);  // it starts from the checkpoint of another job
  job.mutable_progress()->set_loss(0);
  job.mutable_progress()->set_first_loss(0);
  EXPECT_THAT(ProgressLine(job, 200), testing::Not(HasSubstr("loss")));
}

TEST(OutputTest, AProgramMayTellMetricsAndNoLoss) {
  v1::Job job = RunningJob();
  job.mutable_progress()->clear_loss();
  job.mutable_progress()->clear_first_loss();
  *job.mutable_progress()->mutable_update_time() = job.create_time();
  (*job.mutable_progress()->mutable_metrics())["top1\n"] = 0.75;
  EXPECT_THAT(ProgressLine(job, 200), testing::Not(HasSubstr("loss")));
  EXPECT_THAT(JobTable({job}, absl::FromUnixSeconds(kNow)), HasSubstr("860/2000  -  "));
  const std::string text = DescribeJob(job, {}, absl::FromUnixSeconds(kNow));
  EXPECT_THAT(text, testing::Not(HasSubstr("\nLoss ")));
  EXPECT_THAT(text, HasSubstr("\nMetric top1"));
  EXPECT_THAT(text, HasSubstr(" 0.75\nLearning rate"));
  EXPECT_THAT(JobSummary(job, ""), testing::Not(HasSubstr("loss")));
}

TEST(OutputTest, JobTable) {
  v1::Job queued;
  queued.set_name("jobs/line-12");
  queued.set_state(v1::QUEUED);
  queued.mutable_create_time()->set_seconds(kNow - 3600 * 5);

  EXPECT_EQ(JobTable({RunningJob(), queued}, absl::FromUnixSeconds(kNow)),
            "NAME        STATE    STEP      LOSS   WORKERS  PS   AGE\n"
            "char-gpt-1  RUNNING  860/2000  1.734  2/2      2/2  75s\n"
            "line-12     QUEUED   0         -      0/1      0/1  5h\n");
}

TEST(OutputTest, CheckpointTable) {
  v1::Checkpoint checkpoint;
  checkpoint.set_job("char-gpt-1");
  checkpoint.set_step(1000);
  checkpoint.set_size_bytes(3'355'443);
  checkpoint.mutable_create_time()->set_seconds(kNow - 300);
  checkpoint.set_directory("/var/lib/muster/step-00001000");

  EXPECT_EQ(CheckpointTable({checkpoint}, absl::FromUnixSeconds(kNow)),
            "JOB         STEP  SIZE     AGE  DIRECTORY\n"
            "char-gpt-1  1000  3.2 MiB  5m   /var/lib/muster/step-00001000\n");
}

TEST(OutputTest, JobSummary) {
  EXPECT_EQ(JobSummary(FinishedJob(), "/tmp/step-00002000"),
            "SUCCEEDED  char-gpt-1  2000 steps in 00:01:05\n"
            "first loss         5.545\n"
            "last loss          1.2\n"
            "evaluation loss    1.235\n"
            "accuracy           97.80 %\n"
            "checkpoint         /tmp/step-00002000\n");
  v1::Job short_job = FinishedJob();
  short_job.mutable_progress()->set_step(1);
  EXPECT_THAT(JobSummary(short_job, ""), HasSubstr("  1 step in 00:01:05\n"));
}

TEST(OutputTest, DescriptionHasSpecAndEvents) {
  v1::JobEvent event;
  event.mutable_time()->set_seconds(kNow);
  event.set_state(v1::RUNNING);
  event.set_reason("STARTED");
  event.set_message("2 workers, 2 ps");

  const std::string text = DescribeJob(RunningJob(), {event}, absl::FromUnixSeconds(kNow));

  EXPECT_THAT(text, HasSubstr("Name               char-gpt-1\nState              RUNNING\n"));
  EXPECT_THAT(text, HasSubstr("Workers            worker-0, worker-1\n"));
  EXPECT_THAT(text, HasSubstr("Spec\n  name: char-gpt\n  resources:\n    workers:\n"));
  EXPECT_THAT(text, HasSubstr("Events\n  TIME                     STATE    REASON   MESSAGE\n"
                              "  2027-01-15 08:00:00 UTC  RUNNING  STARTED  2 workers, 2 ps\n"));
}

TEST(OutputTest, SomeEventsAreWarnings) {
  v1::JobEvent event;
  event.set_state(v1::RUNNING);
  event.set_reason("OTHER_DATA");
  event.set_message("the files differ");
  EXPECT_EQ(WarningLine(event), "warning: OTHER_DATA: the files differ");
  event.set_reason("DEVICE_KIND_CHANGED");
  EXPECT_EQ(WarningLine(event), "warning: DEVICE_KIND_CHANGED: the files differ");
  event.set_state(v1::FAILED);
  EXPECT_EQ(WarningLine(event), "") << "the job has the reason";
  event.set_state(v1::RUNNING);
  event.set_reason("CHECKPOINT_COMMITTED");
  EXPECT_EQ(WarningLine(event), "");
}

TEST(OutputTest, ShowsTheTimeLimitsThatAreRunning) {
  v1::Job job = RunningJob();
  const absl::Time now = absl::FromUnixSeconds(kNow);
  EXPECT_THAT(DescribeJob(job, {}, now), Not(HasSubstr("Active  ")));
  job.mutable_spec()->mutable_active_deadline()->set_seconds(7200);
  job.mutable_spec()->mutable_start_timeout()->set_seconds(60);
  job.mutable_spec()->mutable_ttl_after_finished()->set_seconds(3600);
  job.mutable_active_before()->set_seconds(60);
  job.mutable_active_since()->set_seconds(kNow - 600);
  EXPECT_THAT(DescribeJob(job, {}, now),
              AllOf(HasSubstr("Active             11m of 2h (active_deadline)\n"),
                    Not(HasSubstr("Waits  "))));

  job.set_state(v1::RECOVERING);
  job.mutable_waits_since()->set_seconds(kNow - 5);
  job.mutable_stop_cause()->set_reason("START_TIMEOUT");
  job.mutable_stop_cause()->set_message("it has waited");
  EXPECT_THAT(DescribeJob(job, {}, now),
              AllOf(HasSubstr("Waits              5s of 1m (start_timeout)\n"),
                    HasSubstr("Stops              at its next checkpoint: it has waited (")));

  job.set_state(v1::FAILED);
  job.mutable_end_time()->set_seconds(kNow);
  EXPECT_THAT(DescribeJob(job, {}, now),
              HasSubstr("Deleted            2027-01-15 09:00:00 UTC (ttl_after_finished)\n"));
  job.set_checkpoint("jobs/char-gpt-1/checkpoints/5");
  EXPECT_THAT(DescribeJob(job, {}, now), HasSubstr("not by ttl_after_finished"));
}

TEST(OutputTest, ShowsRecoveriesWithTheirCost) {
  v1::Job job = RunningJob();
  EXPECT_THAT(DescribeJob(job, {}, absl::FromUnixSeconds(kNow)), Not(HasSubstr("Recoveries")));
  v1::JobRecovery& recovery = *job.mutable_recovery();
  recovery.set_count(3);
  recovery.set_in_row(2);
  recovery.set_step(170);
  recovery.set_steps_again(71);
  EXPECT_THAT(
      DescribeJob(job, {}, absl::FromUnixSeconds(kNow)),
      HasSubstr("Recoveries         3, the last 2 in a row without a new step; the last one "
                "at step 170; 71 steps were repeated in total\n"));
  recovery.set_resumed_step(100);
  recovery.set_rollbacks(2);
  recovery.add_left_out_batches(57);
  recovery.add_left_out_batches(81);
  EXPECT_THAT(
      DescribeJob(job, {}, absl::FromUnixSeconds(kNow)),
      AllOf(HasSubstr("at step 170, resumed at step 100; "),
            HasSubstr("Rollbacks          2, without these batches of the data: 57, 81\n")));
  recovery.clear_rollbacks();
  EXPECT_THAT(DescribeJob(job, {}, absl::FromUnixSeconds(kNow)),
              HasSubstr("Left out           these batches of the data, as in the job that it "
                        "continues: 57, 81\n"));
}

TEST(OutputTest, AnAllreduceJobHasNoPs) {
  v1::Job job = RunningJob();
  job.clear_ps();
  job.mutable_spec()->mutable_sync()->set_mode(v1::ALLREDUCE);

  EXPECT_THAT(DescribeJob(job, {}, absl::FromUnixSeconds(kNow)),
              HasSubstr("Parameter servers  none: workers own the parameters (allreduce)\n"));
  EXPECT_THAT(JobTable({job}, absl::FromUnixSeconds(kNow)), HasSubstr("  2/2      no  75s\n"));
  job.set_state(v1::QUEUED);
  job.clear_progress();
  EXPECT_EQ(ProgressLine(job, 80), "char-gpt-1 QUEUED  0/2 workers no ps");
}

TEST(OutputTest, JsonAndYamlUseTheFieldNamesOfTheProto) {
  v1::Checkpoint checkpoint;
  checkpoint.set_job("char-gpt-1");
  checkpoint.set_size_bytes(7);
  checkpoint.add_files()->set_name("model.safetensors");

  EXPECT_EQ(ToJson(checkpoint),
            "{\n \"job\": \"char-gpt-1\",\n \"size_bytes\": \"7\",\n \"files\": [\n  {\n"
            "   \"name\": \"model.safetensors\"\n  }\n ]\n}\n");
  EXPECT_EQ(ToYamlText(checkpoint),
            "job: char-gpt-1\nsize_bytes: 7\nfiles:\n  - name: model.safetensors\n");
}

TEST(OutputTest, AMessageThatHasNoJsonFormPrintsAnError) {
  v1::Job job;
  job.mutable_spec()->mutable_start_timeout()->set_nanos(2'000'000'000);

  EXPECT_THAT(ToJson(job), StartsWith("{\n \"error\": \"muster.v1.Job cannot be shown as JSON: "));
  EXPECT_THAT(ToYamlText(job), StartsWith("error: \"muster.v1.Job cannot be shown as JSON: "));
}

TEST(OutputTest, NumbersAndTimes) {
  EXPECT_EQ(FormatCount(0.25), "0.25");
  EXPECT_EQ(FormatCount(812.4), "812");
  EXPECT_EQ(FormatCount(1234567), "1,234,567");
  EXPECT_EQ(FormatCount(-1234), "-1,234");
  EXPECT_EQ(FormatClock(absl::Hours(26)), "26:00:00");
  EXPECT_EQ(FormatClock(absl::InfiniteDuration()), "--:--:--");
  EXPECT_EQ(FormatAge(absl::Seconds(119)), "119s");
  EXPECT_EQ(FormatAge(absl::Hours(49)), "2d");
}

v1::Job WaitingJob() {
  v1::Job job;
  job.set_name("jobs/bert-2");
  job.set_number(2);
  job.set_state(v1::QUEUED);
  job.mutable_create_time()->set_seconds(kNow - 30);
  job.mutable_spec()->set_priority(5);
  (*job.mutable_spec()->mutable_labels())["team"] = "vision";
  (*job.mutable_spec()->mutable_labels())["env"] = "prod";
  job.mutable_waiting()->set_reason("WAITS_FOR_WORKERS");
  job.mutable_waiting()->set_message("needs 4 workers, 1 free of the 3 attached");
  job.mutable_waiting()->set_position(1);
  job.mutable_waiting()->set_queue_length(3);
  return job;
}

TEST(OutputTest, TheWideTableSaysWhyAJobWaits) {
  EXPECT_EQ(
      WideJobTable({RunningJob(), WaitingJob()}, absl::FromUnixSeconds(kNow)),
      "NAME        STATE    STEP      LOSS   WORKERS  PS   AGE  PRIORITY  LABELS            "
      "    CHECKPOINT  WHY\n"
      "char-gpt-1  RUNNING  860/2000  1.734  2/2      2/2  75s  0         -                 "
      "    -\n"
      "bert-2      QUEUED   0         -      0/1      0/1  30s  5         "
      "env=prod,team=vision  -           needs 4 workers, 1 free of the 3 attached (1 of 3 in "
      "the queue)\n");
  EXPECT_THAT(DescribeJob(WaitingJob(), {}, absl::FromUnixSeconds(kNow)),
              AllOf(HasSubstr("Waits              needs 4 workers, 1 free of the 3 attached (1 of"),
                    HasSubstr("Labels             env=prod,team=vision\n")));
}

TEST(OutputTest, SortsJobsByAnyColumnInBothDirections) {
  std::vector<v1::Job> jobs = {RunningJob(), WaitingJob()};
  auto order = [&](const std::string& column) {
    EXPECT_TRUE(SortJobs(column, jobs).ok()) << column;
    return jobs[0].name();
  };
  EXPECT_EQ(order("name"), "jobs/bert-2");
  EXPECT_EQ(order("-name"), "jobs/char-gpt-1");
  EXPECT_EQ(order("-priority"), "jobs/bert-2");
  EXPECT_EQ(order("-step"), "jobs/char-gpt-1");
  EXPECT_THAT(std::string(SortJobs("size", jobs).message()),
              HasSubstr("the columns are age, loss, name"));
}

// JSON and YAML have the keys in the order of the field numbers in the proto.
TEST(OutputTest, KeysHaveTheOrderOfTheProto) {
  v1::Job job = WaitingJob();
  job.mutable_spec()->clear_labels();
  job.mutable_waiting()->clear_message();
  EXPECT_EQ(ToYamlText(job),
            "name: jobs/bert-2\n"
            "number: 2\n"
            "spec:\n"
            "  priority: 5\n"
            "state: QUEUED\n"
            "create_time: 2027-01-15T07:59:30Z\n"
            "waiting:\n"
            "  reason: WAITS_FOR_WORKERS\n"
            "  position: 1\n"
            "  queue_length: 3\n");
}

TEST(OutputTest, JsonPathPicksFields) {
  v1::ListJobsResponse list;
  *list.add_jobs() = RunningJob();
  *list.add_jobs() = WaitingJob();
  EXPECT_EQ(ToJsonPath(list, "{.jobs[*].name}"), "jobs/char-gpt-1 jobs/bert-2\n");
  EXPECT_EQ(ToJsonPath(list, "{.jobs[1].spec.labels.team}: {.jobs[1].state}!"),
            "vision: QUEUED!\n");
  EXPECT_EQ(ToJsonPath(list, "{.jobs[0].progress.loss}"), "1.734\n");
  EXPECT_EQ(ToJsonPath(list, "{.jobs[0].workers}"), "[\"worker-0\",\"worker-1\"]\n");
  EXPECT_EQ(ToJsonPath(list, "{.jobs[7].name}{.none}"), "\n");
  EXPECT_EQ(ToJsonPath(list.jobs(0).spec().resources(), "{.}"),
            "{\"workers\":{\"min\":1,\"max\":2},\"ps\":2}\n");
  for (const char* faulty : {"", "{jobs}", "{.jobs", "{.jobs[x]}", "{.jobs[-1]}", "{.a..b}"}) {
    EXPECT_FALSE(CheckJsonPath(faulty).ok()) << faulty;
  }
}

}  // namespace
}  // namespace muster::cli::output_test
