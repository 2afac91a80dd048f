#include "services/coordinator/operations/checkpointer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "lib/checkpoint/shared_files.h"
#include "lib/status/status.h"
#include "lib/transport/core/crc32c.h"
#include "services/coordinator/scheduling/job_plan.h"
#include "services/coordinator/testing/registry_fixture.h"

namespace muster::checkpointer_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A job with one worker and one shard of four values trains. A checkpoint is due every second step,
// and one is kept.
class CheckpointerTest : public RegistryFixture {
 protected:
  explicit CheckpointerTest(const v1::JobSpec& policy = v1::JobSpec())
      : number_(AddJob(nullptr, policy)) {
    Run();
    registry_->changes().AwaitAll();
  }

  void Run() {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(number_);
    PlanRequest request{.job = entry.job.record(), .workers = {Hello("w-0")}};
    for (int i = 0; i < entry.job.record().spec().resources().ps(); ++i) {
      request.ps.push_back(Hello(absl::StrCat("p-", i)));
    }
    v1::Parameter& parameter = *request.graph.add_parameters();
    parameter.set_name("weight");
    parameter.add_shape(4);
    const std::vector<v1::Hello> ps_of_plan = request.ps;
    const auto plan = MakePlan(std::move(request));
    entry.job.Schedule(plan, now_);
    transaction.Commit(entry, {.plan = plan});
    for (const auto state : {v1::MEMBER_PREPARED, v1::MEMBER_RUNNING}) {
      for (const v1::Hello& ps : ps_of_plan) Report(transaction, entry, ps.member(), state);
      Report(transaction, entry, "w-0", state);
    }
    EXPECT_EQ(entry.job.state(), v1::RUNNING);
  }
  void Report(JobRegistry::Transaction& transaction, JobRegistry::Entry& entry,
              const std::string& member, v1::MemberJobState state, int64_t step = 0) {
    v1::JobReport report;
    report.set_job(JobIdOf(entry.job.record().name()));
    report.set_generation(entry.job.record().generation());
    report.set_state(state);
    report.set_next_step(step);
    report.set_oldest_version(step);
    report.mutable_dataset()->set_samples(64);
    entry.job.Report(member, &report, now_);
    transaction.Commit(entry);
  }
  std::string id() { return JobIdOf(View(number_).name()); }

  v1::WriteShardHeader Header(int64_t step) {
    v1::WriteShardHeader header;
    header.set_job(id());
    header.set_generation(View(number_).generation());
    header.set_step(step);
    return header;
  }
  void KeepLast(int checkpoints) {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(number_);
    v1::JobSpec spec = entry.job.record().spec();
    spec.mutable_checkpoint()->set_keep_last(checkpoints);
    entry.job.Update(spec, now_);
    transaction.Commit(entry);
  }
  absl::Status Save(int64_t step) {
    ASSIGN_OR_RETURN(auto upload, checkpointer_.BeginShard(Header(step)));
    if (!upload) return absl::AlreadyExistsError("committed");
    return checkpointer_.EndShard(*upload, upload->Write(Values(static_cast<float>(step))));
  }
  static v1::ShardSlice Values(float value) {
    const std::vector<float> values(4, value);
    const auto bytes = std::as_bytes(std::span(values));
    v1::ShardSlice slice;
    slice.set_data(bytes.data(), bytes.size());
    slice.set_crc32c(Crc32c(bytes));
    return slice;
  }
  std::vector<int64_t> Steps() {
    std::vector<int64_t> steps;
    const auto checkpoints = checkpointer_.List(absl::StrCat("jobs/", id()));
    EXPECT_TRUE(checkpoints.ok()) << checkpoints.status();
    for (const v1::Checkpoint& checkpoint : *checkpoints) steps.push_back(checkpoint.step());
    return steps;
  }

  Checkpointer checkpointer_{registry_.get(), &series_, &coordinator_metrics_};
  const uint64_t number_;
};

TEST_F(CheckpointerTest, ACheckpointIsInTheStoreWhenItsLastShardIsAccepted) {
  ASSERT_TRUE(Save(2).ok());

  EXPECT_THAT(Steps(), ElementsAre(2));
  EXPECT_EQ(View(number_).checkpoint(), absl::StrCat("jobs/", id(), "/checkpoints/2"));
  EXPECT_TRUE(std::filesystem::exists(checkpointer_.Find({.job = id(), .step = 2})->directory()));
  EXPECT_TRUE(absl::IsAlreadyExists(Save(2))) << "it need not be sent again";
}

TEST_F(CheckpointerTest, RemovesOlderCheckpointsOnlyAfterANewerOne) {
  ASSERT_TRUE(Save(2).ok());
  auto upload = checkpointer_.BeginShard(Header(4));
  ASSERT_TRUE(upload.ok() && upload->has_value()) << upload.status();
  ASSERT_TRUE((*upload)->Write(Values(4)).ok());
  EXPECT_THAT(Steps(), ElementsAre(2));

  ASSERT_TRUE(checkpointer_.EndShard(**upload, absl::OkStatus()).ok());

  EXPECT_THAT(Steps(), ElementsAre(4));
}

TEST_F(CheckpointerTest, CommittingLastsFromTheLastShardUntilTheStoreHasIt) {
  absl::Notification go;
  const auto slow = watches_.Add(number_, "slow", 0,
                                 std::make_shared<StreamWaker>([&] { go.WaitForNotification(); }));
  auto upload = checkpointer_.BeginShard(Header(2));
  ASSERT_TRUE(upload.ok() && upload->has_value()) << upload.status();
  const absl::Status written = (*upload)->Write(Values(2));
  {
    JobRegistry::Transaction transaction(registry_.get());
    EXPECT_FALSE(transaction.FindNumber(number_)->rounds.committing());
  }
  std::thread ends([&] { EXPECT_TRUE(checkpointer_.EndShard(**upload, written).ok()); });
  {
    JobRegistry::Transaction transaction(registry_.get());
    auto commits = [&] { return transaction.FindNumber(number_)->rounds.committing(); };
    transaction.AwaitFor(absl::Condition(&commits), absl::Seconds(30));
    EXPECT_TRUE(commits());
  }
  go.Notify();
  ends.join();
  JobRegistry::Transaction transaction(registry_.get());
  EXPECT_FALSE(transaction.FindNumber(number_)->rounds.committing());
}

TEST_F(CheckpointerTest, ASkippedNewerCheckpointDoesNotReplaceTheLastOne) {
  const std::string folder = registry_->folder().checkpoints(id()) + "/step-00000008";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/manifest.json") << "cannot be read";

  for (const int64_t step : {2, 4}) {
    ASSERT_TRUE(Save(step).ok());
    EXPECT_THAT(Steps(), ElementsAre(step));
    EXPECT_THAT(*ListCheckpointSteps(registry_->folder().checkpoints(id())), ElementsAre(step, 8));
  }
}

// Two ps. Each has the replicas of the other's shards.
class ReplicatedCheckpointTest : public CheckpointerTest {
 protected:
  ReplicatedCheckpointTest() : CheckpointerTest(Policy()) {}
  static v1::JobSpec Policy() {
    v1::JobSpec policy;
    policy.mutable_resources()->set_ps(2);
    policy.mutable_resources()->set_ps_replication(2);
    return policy;
  }
};

TEST_F(ReplicatedCheckpointTest, AReplicaMayWriteTheShardOfALostPsOfAHaltedJob) {
  const Identity replica{Role::kPs, "p-0"}, gone{Role::kPs, "p-1"};
  v1::WriteShardHeader header = Header(2);
  header.set_shard(1);
  EXPECT_TRUE(checkpointer_.BeginShard(header, gone).ok()) << "it runs, and it is its own";
  EXPECT_TRUE(absl::IsPermissionDenied(checkpointer_.BeginShard(header, replica).status()));
  {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(number_);
    for (const char* member : {"p-1", "w-0"}) entry.job.MemberLost(member, "gone", now_);
    v1::JobReport halted;
    halted.set_job(JobIdOf(entry.job.record().name()));
    halted.set_generation(entry.job.record().generation());
    halted.set_state(v1::MEMBER_HALTED);
    halted.set_next_step(3);
    halted.set_oldest_version(3);
    v1::HeldBackup& held = *halted.add_backups();
    held.set_shard(1);
    held.set_oldest_version(3);
    held.set_newest_version(3);
    entry.job.Report("p-0", &halted, now_);
    entry.job.Wait(JobPhase::kWaitsForMembers, "needs one", now_);
    ASSERT_TRUE(entry.job.Suspend(now_).ok());
    const Job::Effects effects = entry.job.TakeEffects();
    ASSERT_TRUE(effects.directives.back().directive.has_snapshot());
    header.set_snapshot(effects.directives.back().directive.snapshot().snapshot());
    header.set_step(3);
  }
  const auto upload = checkpointer_.BeginShard(header, replica);
  EXPECT_TRUE(upload.ok()) << upload.status();
  EXPECT_TRUE(absl::IsPermissionDenied(checkpointer_.BeginShard(header, gone).status()));
}

class CheckpointRetentionTest : public CheckpointerTest {
 protected:
  CheckpointRetentionTest() : CheckpointerTest(Policy()) {}
  static v1::JobSpec Policy() {
    v1::JobSpec policy;
    policy.mutable_training()->set_evaluate_every_steps(2);
    policy.mutable_checkpoint()->set_keep_best(1);
    policy.mutable_checkpoint()->set_keep_every_steps(8);
    return policy;
  }
  void Evaluate(int64_t step, double loss) {
    std::ofstream(registry_->folder().metrics_log(id()), std::ios::app)
        << "{\"step\":" << step << ",\"evaluation_loss\":" << loss << "}\n{\"step\":" << step
        << ",\"loss\":1}\n{\"step\":" << step + 1 << ",\"loss\":1}\n";
  }
};

TEST_F(CheckpointRetentionTest, KeepsTheBestAndWholeMultiples) {
  for (const auto& [step, loss] : {std::pair{2, 1.5}, {4, 0.5}, {6, 0.75}, {8, 0.9}, {10, 0.8}}) {
    ASSERT_TRUE(Save(step).ok());
    Evaluate(step, loss);
  }
  EXPECT_THAT(Steps(), ElementsAre(4, 8, 10));
}

// Each point of the curve of a very long log covers two or more evaluations.
TEST_F(CheckpointRetentionTest, KeepsTheBestOfAVeryLongJob) {
  {
    std::filesystem::create_directories(registry_->folder().job(id()));
    std::ofstream log(registry_->folder().metrics_log(id()), std::ios::app);
    for (int64_t step = 1; step <= 3 * MetricPyramid::kBucketsMax; ++step) {
      log << "{\"step\":" << step << ",\"evaluation_loss\":" << (step == 4 ? 0.5 : 2.0) << "}\n";
    }
    log << "{\"step\":" << 3 * MetricPyramid::kBucketsMax << ",\"loss\":1}\n";
    ASSERT_TRUE(log.flush().good());
  }
  for (const int64_t step : {2, 4, 6, 10}) ASSERT_TRUE(Save(step).ok());
  EXPECT_THAT(Steps(), AllOf(::testing::Contains(4), ::testing::Contains(10),
                             ::testing::Not(::testing::Contains(6))));
}

// The log is written a moment after the evaluation, so a checkpoint may be committed first.
TEST_F(CheckpointRetentionTest, KeepsCheckpointsUntilTheLogHasTheirEvaluation) {
  ASSERT_TRUE(Save(2).ok());
  Evaluate(2, 0.5);
  ASSERT_TRUE(Save(4).ok());
  ASSERT_TRUE(Save(6).ok());
  EXPECT_THAT(Steps(), ElementsAre(2, 4, 6));
  Evaluate(4, 0.4);
  Evaluate(6, 0.6);
  ASSERT_TRUE(Save(8).ok());
  EXPECT_THAT(Steps(), ElementsAre(4, 8));
}

TEST_F(CheckpointerTest, DoesNotPruneWhatASubmissionPins) {
  ASSERT_TRUE(Save(2).ok());
  {
    const auto held = checkpointer_.FindAndPin({.job = id(), .step = 2});
    ASSERT_TRUE(held.ok()) << held.status();
    JobRegistry::Transaction transaction(registry_.get());
    EXPECT_EQ(ReasonOf(checkpointer_.CheckUnneeded(transaction, *transaction.FindNumber(number_))),
              "CHECKPOINT_NEEDED");
  }
  {
    const auto held = checkpointer_.FindAndPin({.job = id(), .step = 2});
    ASSERT_TRUE(Save(4).ok());
    EXPECT_THAT(Steps(), ElementsAre(2, 4));
    EXPECT_TRUE(std::filesystem::exists(held->checkpoint.directory()));
  }
  ASSERT_TRUE(Save(6).ok());
  EXPECT_THAT(Steps(), ElementsAre(6)) << "no submission pins it any more";
  JobRegistry::Transaction transaction(registry_.get());
  EXPECT_TRUE(checkpointer_.CheckUnneeded(transaction, *transaction.FindNumber(number_)).ok());
}

TEST_F(CheckpointerTest, ABrokenStreamCanBeRepeatedButAFailedDiskEndsTheRound) {
  auto broken = checkpointer_.BeginShard(Header(2));
  ASSERT_TRUE(broken.ok() && broken->has_value()) << broken.status();
  const auto round = (*broken)->round();
  v1::ShardSlice wrong = Values(2);
  wrong.set_crc32c(wrong.crc32c() + 1);
  EXPECT_EQ(ReasonOf(checkpointer_.EndShard(**broken, (*broken)->Write(wrong))),
            "CHECKSUM_MISMATCH");
  EXPECT_FALSE(round->AwaitOutcome(absl::ZeroDuration()).has_value()) << "it may be sent again";

  auto unlucky = checkpointer_.BeginShard(Header(2));
  ASSERT_TRUE(unlucky.ok() && unlucky->has_value()) << unlucky.status();
  const absl::Status full = absl::ResourceExhaustedError("no space left");
  EXPECT_EQ(checkpointer_.EndShard(**unlucky, full), full);

  registry_->changes().AwaitAll();
  ASSERT_TRUE(round->AwaitOutcome(absl::ZeroDuration()).has_value());
  EXPECT_EQ(*round->AwaitOutcome(absl::ZeroDuration()), full);
  EXPECT_EQ(ReasonOf(checkpointer_.BeginShard(Header(2)).status()), "CHECKPOINT_ABANDONED");
  EXPECT_TRUE(Save(4).ok()) << "the next one is another";
  EXPECT_THAT(Steps(), ElementsAre(4));
}

TEST_F(CheckpointerTest, CountsFailedCheckpointsByReason) {
  auto count = [&](const char* reason, int times) {
    return HasSubstr(
        absl::StrCat("muster_checkpoint_failures_total{reason=\"", reason, "\"} ", times, "\n"));
  };
  EXPECT_THAT(metrics_.Render(), AllOf(count("STORAGE_FULL", 0), count("STORAGE_FAILED", 0),
                                       count("DIRECT_MISMATCH", 0), count("SNAPSHOT_FAILED", 0),
                                       count("STREAM_STALLED", 0), count("OTHER", 0)))
      << "from the start: an alert is to see the first one";
  const auto fail = [&](int64_t step, const absl::Status& why) {
    auto upload = checkpointer_.BeginShard(Header(step));
    ASSERT_TRUE(upload.ok() && upload->has_value()) << upload.status();
    EXPECT_EQ(checkpointer_.EndShard(**upload, why), why);
  };
  fail(2, WithReason(absl::ResourceExhaustedError("no space left"), "STORAGE_FULL"));
  fail(4, WithReason(absl::DeadlineExceededError("no slice has come"), "STREAM_STALLED"));
  fail(6, WithReason(absl::InternalError("bad luck"), "MADE_UP"));
  fail(8, absl::InternalError("no reason"));
  fail(10, absl::InvalidArgumentError("of the stream, which may be sent again"));
  {
    JobRegistry::Transaction transaction(registry_.get());
    v1::JobReport report;
    report.set_generation(transaction.FindNumber(number_)->job.record().generation());
    v1::SnapshotReport& snapshot = *report.add_snapshots();
    snapshot.set_step(10);
    snapshot.set_outcome(v1::SNAPSHOT_FAILED);
    checkpointer_.TakeFailures(*transaction.FindNumber(number_), "p-0", report);
    transaction.Commit(*transaction.FindNumber(number_));
  }
  EXPECT_THAT(metrics_.Render(), AllOf(count("STORAGE_FULL", 1), count("STORAGE_FAILED", 0),
                                       count("DIRECT_MISMATCH", 0), count("SNAPSHOT_FAILED", 1),
                                       count("STREAM_STALLED", 1), count("OTHER", 2)));
  EXPECT_THAT(metrics_.Render(),
              HasSubstr(absl::StrCat("muster_job_checkpoint_failures_total{job=\"", id(),
                                     "\",reason=\"OTHER\"} 2\n")));
}

// A shard that holds non-finite values abandons its snapshot like this.
TEST_F(CheckpointerTest, CountsASnapshotAbandonedBeforeItsStreamOnce) {
  const auto give_up = [&](int64_t step) {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(number_);
    v1::JobReport report;
    report.set_generation(entry.job.record().generation());
    v1::SnapshotReport& snapshot = *report.add_snapshots();
    snapshot.set_step(step);
    snapshot.set_outcome(v1::SNAPSHOT_FAILED);
    checkpointer_.TakeFailures(entry, "p-0", report);
    transaction.Commit(entry);
  };
  const auto count = [&](int times) {
    return HasSubstr(absl::StrCat("muster_job_checkpoint_failures_total{job=\"", id(),
                                  "\",reason=\"SNAPSHOT_FAILED\"} ", times, "\n"));
  };
  // A member repeats its report until a later snapshot replaces it.
  for (int i = 0; i < 2; ++i) give_up(2);
  EXPECT_THAT(metrics_.Render(), count(1));
  EXPECT_EQ(ReasonOf(checkpointer_.BeginShard(Header(2)).status()), "CHECKPOINT_ABANDONED");

  ASSERT_TRUE(Save(4).ok());
  give_up(4);
  EXPECT_THAT(metrics_.Render(), count(1)) << "it is committed";
  give_up(5);
  EXPECT_THAT(metrics_.Render(), count(1)) << "none is due there";
}

// A member reports only the last snapshot of a shard.
TEST_F(CheckpointerTest, EndsARoundThatAShardHasPassed) {
  // Stands for another shard, which waits for the commit.
  auto upload = checkpointer_.BeginShard(Header(2));
  ASSERT_TRUE(upload.ok() && upload->has_value()) << upload.status();
  CheckpointRound& round = *(*upload)->round();
  const auto is_open_after = [&](int shard, int64_t step) {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(number_);
    v1::JobReport report;
    report.set_generation(entry.job.record().generation());
    v1::SnapshotReport& snapshot = *report.add_snapshots();
    snapshot.set_shard(shard);
    snapshot.set_step(step);
    snapshot.set_outcome(v1::SNAPSHOT_TAKEN);
    checkpointer_.TakeFailures(entry, "p-0", report);
    const bool is_open = entry.rounds.IsOpen(round);
    transaction.Commit(entry);
    return is_open;
  };
  EXPECT_TRUE(is_open_after(0, 2)) << "it may come yet";
  EXPECT_TRUE(is_open_after(1, 4)) << "that one has nothing to write";
  EXPECT_FALSE(is_open_after(0, 4));
  const auto outcome = round.AwaitOutcome(absl::Seconds(30));
  ASSERT_TRUE(outcome.has_value());
  EXPECT_EQ(ReasonOf(*outcome), "SNAPSHOT_FAILED");
  EXPECT_THAT(outcome->message(), HasSubstr("p-0, shard 0"));
  EXPECT_EQ(ReasonOf(checkpointer_.BeginShard(Header(2)).status()), "CHECKPOINT_ABANDONED");
  EXPECT_TRUE(Save(4).ok());
}

TEST_F(CheckpointerTest, ASkippedSnapshotEndsOnlyItsOwnRoundAndIsNotCounted) {
  auto upload = checkpointer_.BeginShard(Header(2));
  ASSERT_TRUE(upload.ok() && upload->has_value()) << upload.status();
  auto next =
      checkpointer_.BeginShard(Header(4));  // stands for another shard, which was not delayed
  ASSERT_TRUE(next.ok() && next->has_value()) << next.status();
  {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(number_);
    v1::JobReport report;
    report.set_generation(entry.job.record().generation());
    v1::SnapshotReport& snapshot = *report.add_snapshots();
    snapshot.set_step(4);
    snapshot.set_outcome(v1::SNAPSHOT_MISSED);
    snapshot.set_message("passed over");
    checkpointer_.TakeFailures(entry, "p-0", report);
    EXPECT_TRUE(entry.rounds.IsOpen(*(*upload)->round()));
    transaction.Commit(entry);
  }
  const auto outcome = (*next)->round()->AwaitOutcome(absl::Seconds(30));
  ASSERT_TRUE(outcome.has_value());
  EXPECT_EQ(ReasonOf(*outcome), "SNAPSHOT_PASSED_OVER");
  EXPECT_THAT(outcome->message(), HasSubstr("p-0, shard 0: passed over"));
  EXPECT_EQ(ReasonOf(checkpointer_.BeginShard(Header(4)).status()), "CHECKPOINT_ABANDONED");
  for (const char* reason : {"SNAPSHOT_FAILED", "OTHER"}) {
    EXPECT_THAT(
        metrics_.Render(),
        HasSubstr(absl::StrCat("muster_checkpoint_failures_total{reason=\"", reason, "\"} 0\n")));
  }
}

// A change of the job must not end this save, although the halt ended the periodic checkpoint.
TEST_F(CheckpointerTest, SavesHaltedShardsWhileTheJobWaitsForMembers) {
  auto periodic = checkpointer_.BeginShard(Header(2));
  ASSERT_TRUE(periodic.ok() && periodic->has_value()) << periodic.status();
  {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(number_);
    entry.job.MemberLost("w-0", "gone", now_);
    Report(transaction, entry, "p-0", v1::MEMBER_HALTED, /*step=*/3);
    EXPECT_FALSE(entry.rounds.IsOpen(*(*periodic)->round())) << "its shards have stopped";
    entry.job.Wait(JobPhase::kWaitsForMembers, "needs one", now_);
    entry.job.MemberLeaves("p-0", now_);
    transaction.Commit(entry);
  }
  EXPECT_EQ(ReasonOf(checkpointer_.BeginShard(Header(4)).status()), "JOB_NOT_RUNNING");
  v1::WriteShardHeader header = Header(3);
  header.set_snapshot((registry_->store().term() << 32) + 1);
  auto upload = checkpointer_.BeginShard(header);
  ASSERT_TRUE(upload.ok() && upload->has_value()) << upload.status();
  {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(number_);
    v1::JobSpec spec = entry.job.record().spec();
    spec.set_priority(7);
    entry.job.Update(spec, now_);
    transaction.Commit(entry);
    EXPECT_TRUE(entry.job.KeepsShards());
  }
  ASSERT_TRUE(checkpointer_.EndShard(**upload, (*upload)->Write(Values(3))).ok());

  EXPECT_THAT(Steps(), ElementsAre(3));
  EXPECT_EQ(View(number_).state(), v1::RECOVERING);
  JobRegistry::Transaction transaction(registry_.get());
  EXPECT_FALSE(transaction.FindNumber(number_)->job.KeepsShards());
}

TEST_F(CheckpointerTest, ShardsOfAnotherGenerationAreRefused) {
  v1::WriteShardHeader header = Header(2);
  header.set_generation(header.generation() + 1);
  EXPECT_EQ(ReasonOf(checkpointer_.BeginShard(header).status()), "STALE_GENERATION");

  v1::ReadShardRequest read;
  read.set_job(id());
  read.set_generation(header.generation());
  EXPECT_EQ(ReasonOf(checkpointer_.FindRestore(read).status()), "STALE_GENERATION");
  read.set_generation(header.generation() - 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(checkpointer_.FindRestore(read).status()))
      << "it starts from initial values";
}

TEST_F(CheckpointerTest, AwaitReturnsTheCheckpointOrTheEndOfTheJob) {
  const auto asked = checkpointer_.Request(id());
  ASSERT_TRUE(asked.ok()) << asked.status();
  EXPECT_FALSE(checkpointer_.Await(id(), *asked, absl::ZeroDuration())->has_value());
  absl::Status outcome;
  std::thread waiting(
      [&] { outcome = checkpointer_.Await(id(), *asked, absl::InfiniteDuration()).status(); });
  {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(number_);
    ASSERT_TRUE(entry.job.Cancel(now_).ok());
    transaction.Commit(entry);
  }
  waiting.join();
  EXPECT_TRUE(absl::IsAborted(outcome)) << outcome;
  EXPECT_EQ(ReasonOf(outcome), "JOB_NOT_RUNNING");
}

TEST_F(CheckpointerTest, NamesAMissingJobOrStep) {
  EXPECT_EQ(ReasonOf(checkpointer_.Find({.job = "nobody-9"}).status()), "JOB_NOT_FOUND");
  const absl::Status none = checkpointer_.Find({.job = id(), .step = 2}).status();
  EXPECT_EQ(ReasonOf(none), "CHECKPOINT_NOT_FOUND");
  EXPECT_THAT(std::string(none.message()), HasSubstr("step 2"));
  EXPECT_THAT(Steps(), IsEmpty());
  EXPECT_EQ(ReasonOf(checkpointer_.Get("//").status()), "INVALID_REQUEST");
}

// A skipped checkpoint may become readable again, so a user can still name it.
TEST_F(CheckpointerTest, TheLastCheckpointIsNotASkippedOne) {
  KeepLast(9);
  for (const int64_t step : {2, 4}) ASSERT_TRUE(Save(step).ok());
  EXPECT_EQ(checkpointer_.Find({.job = id()})->step(), 4);
  {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(number_);
    entry.job.CheckpointUnusable(Job::Unusable::kUnreadable, 4, "too many levels", /*sound_step=*/2,
                                 now_);
    transaction.Commit(entry);
  }
  registry_->changes().AwaitAll();
  EXPECT_EQ(checkpointer_.Find({.job = id()})->step(), 2);
  EXPECT_EQ(checkpointer_.Find({.job = id(), .step = 4})->step(), 4);
}

TEST_F(CheckpointerTest, AnUnneededCheckpointCanBeDeleted) {
  KeepLast(9);
  for (int64_t step : {2, 4, 6}) ASSERT_TRUE(Save(step).ok());
  ASSERT_THAT(Steps(), ElementsAre(2, 4, 6)) << "as many are kept as the job says now";
  const std::string folder = checkpointer_.Find({.job = id(), .step = 4})->directory();

  EXPECT_EQ(ReasonOf(checkpointer_.Delete(absl::StrCat(id(), "@6"))), "CHECKPOINT_NEEDED")
      << "the job continues from it";
  {
    const auto pinned = checkpointer_.FindAndPin({.job = id(), .step = 4});
    ASSERT_TRUE(pinned.ok());
    EXPECT_EQ(ReasonOf(checkpointer_.Delete(absl::StrCat(id(), "@4"))), "CHECKPOINT_NEEDED");
  }
  EXPECT_TRUE(checkpointer_.Delete(absl::StrCat(id(), "@4")).ok());

  EXPECT_THAT(Steps(), ElementsAre(2, 6));
  EXPECT_FALSE(std::filesystem::exists(folder));
  EXPECT_EQ(ReasonOf(checkpointer_.Delete(absl::StrCat(id(), "@4"))), "CHECKPOINT_NOT_FOUND");
  EXPECT_EQ(ReasonOf(checkpointer_.Delete(id())), "INVALID_REQUEST")
      << "the last one is not meant by that";
}

// The job of CheckpointerTest, with a ps that writes its shard itself.
class DirectCheckpointTest : public CheckpointerTest {
 protected:
  DirectCheckpointTest() : CheckpointerTest(DirectPolicy()) {}

  static v1::JobSpec DirectPolicy() {
    v1::JobSpec policy;
    policy.mutable_checkpoint()->set_mode(v1::CHECKPOINT_MODE_DIRECT);
    return policy;
  }
  absl::StatusOr<std::optional<ShardUpload>> Begin(int64_t step) {
    return checkpointer_.BeginShard(Header(step), std::nullopt, Checkpointer::Delivery::kDirect);
  }
  // The file that the ps opens, and where its four values are.
  struct Opened {
    SharedFiles files;
    v1::ChunkPlace place;
    std::string folder;
  };
  Opened Open(const ShardUpload& upload) {
    v1::WriteShardDirectResponse layout;
    for (const auto& message : checkpointer_.LayoutFor(upload)) layout.MergeFrom(message);
    EXPECT_TRUE(layout.ready());
    EXPECT_EQ(layout.places_size(), 1);
    auto files = SharedFiles::Open(
        {.root = path_ + "/jobs", .job = id(), .step = upload.round()->step()}, layout);
    EXPECT_TRUE(files.ok()) << files.status();
    return {*std::move(files), layout.places(0), layout.folder()};
  }
  // Writes the values. Returns what the ps reports.
  static v1::WrittenSlice Write(Opened& opened, float value) {
    const std::vector<float> values(4, value);
    const auto bytes = std::as_bytes(std::span(values));
    EXPECT_TRUE(opened.files.WriteAt(opened.place.file(), opened.place.offset_bytes(), bytes).ok());
    EXPECT_TRUE(opened.files.Sync().ok());
    v1::WrittenSlice slice;
    slice.set_size_bytes(std::ssize(bytes));
    slice.set_crc32c(Crc32c(bytes));
    return slice;
  }
  absl::Status SaveDirect(int64_t step) {
    ASSIGN_OR_RETURN(auto upload, Begin(step));
    if (!upload) return absl::AlreadyExistsError("committed");
    v1::WrittenSlice slice;
    {
      Opened opened = Open(*upload);
      slice = Write(opened, static_cast<float>(step));
    }
    return checkpointer_.EndShard(*upload, upload->NoteWritten(slice));
  }
  std::vector<std::string> Events(const std::string& reason) {
    registry_->changes().AwaitAll();
    std::vector<std::string> messages;
    const auto events = store_->Events(number_, 0, 100);
    EXPECT_TRUE(events.ok()) << events.status();
    for (const v1::JobEvent& event : *events) {
      if (event.reason() == reason) messages.push_back(event.message());
    }
    return messages;
  }
};

TEST_F(DirectCheckpointTest, CommitsAfterThePsHasClosedItsFiles) {
  auto upload = Begin(2);
  ASSERT_TRUE(upload.ok() && upload->has_value()) << upload.status();
  {
    Opened opened = Open(**upload);
    ASSERT_TRUE((*upload)->NoteWritten(Write(opened, 2)).ok());
    EXPECT_THAT(Steps(), IsEmpty());
  }
  ASSERT_TRUE(checkpointer_.EndShard(**upload, absl::OkStatus()).ok());
  EXPECT_THAT(Steps(), ElementsAre(2));

  const auto written = checkpointer_.Find({.job = id(), .step = 2});
  ASSERT_TRUE(SaveDirect(4).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(SaveDirect(4))) << "it need not be written again";
  EXPECT_THAT(Steps(), ElementsAre(4));
}

TEST_F(CheckpointerTest, RefusesDirectWritesUnlessTheJobAllowsThem) {
  EXPECT_EQ(
      ReasonOf(checkpointer_.BeginShard(Header(2), std::nullopt, Checkpointer::Delivery::kDirect)
                   .status()),
      "DIRECT_OFF");
  EXPECT_TRUE(Save(2).ok());
}

TEST_F(DirectCheckpointTest, APsThatDiesMidwayLeavesThePreviousCheckpoint) {
  ASSERT_TRUE(SaveDirect(2).ok());
  auto upload = Begin(4);
  ASSERT_TRUE(upload.ok() && upload->has_value()) << upload.status();
  Opened opened = Open(**upload);
  Write(opened, 9);

  EXPECT_TRUE(absl::IsCancelled(checkpointer_.EndShard(**upload, absl::CancelledError("gone"))));
  EXPECT_THAT(Steps(), ElementsAre(2));
  {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(number_);
    ASSERT_TRUE(entry.job.Cancel(now_).ok());
    transaction.Commit(entry);
  }
  registry_->changes().AwaitAll();
  upload->reset();

  EXPECT_FALSE(std::filesystem::exists(path_ + "/jobs/" + opened.folder));
  const auto before =
      CheckpointReader::Open(checkpointer_.Find({.job = id(), .step = 2})->directory());
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_TRUE((*before)->Verify().ok());
}

TEST_F(DirectCheckpointTest, AReplacedAttemptCannotCommit) {
  auto first = Begin(2);
  ASSERT_TRUE(first.ok() && first->has_value()) << first.status();
  Opened opened = Open(**first);
  ASSERT_TRUE((*first)->NoteWritten(Write(opened, 2)).ok());
  auto second = Begin(2);  // the first connection broke
  ASSERT_TRUE(second.ok() && second->has_value()) << second.status();
  EXPECT_FALSE((*second)->TakeFromBefore());

  EXPECT_EQ(ReasonOf(checkpointer_.EndShard(**first, absl::OkStatus())), "STALE_SNAPSHOT")
      << "the second may have its files open";
  EXPECT_THAT(Steps(), IsEmpty());
  ASSERT_TRUE((*second)->NoteWritten(Write(opened, 2)).ok());
  EXPECT_TRUE(checkpointer_.EndShard(**second, absl::OkStatus()).ok());
  EXPECT_THAT(Steps(), ElementsAre(2));
}

TEST_F(DirectCheckpointTest, LateWritesOfAnOlderSnapshotReachNoNewerCheckpoint) {
  auto upload = Begin(2);
  ASSERT_TRUE(upload.ok() && upload->has_value()) << upload.status();
  Opened late = Open(**upload);
  const absl::Status full =
      WithReason(absl::ResourceExhaustedError("no space left"), "STORAGE_FULL");
  EXPECT_EQ(ReasonOf(checkpointer_.EndShard(**upload, full)), "STORAGE_FULL");
  upload->reset();
  ASSERT_TRUE(SaveDirect(4).ok()) << "a full disk is no reason to send";

  Write(late, 9);

  const auto committed =
      CheckpointReader::Open(checkpointer_.Find({.job = id(), .step = 4})->directory());
  ASSERT_TRUE(committed.ok()) << committed.status();
  EXPECT_TRUE((*committed)->Verify().ok());
  EXPECT_THAT(Steps(), ElementsAre(4));
}

TEST_F(DirectCheckpointTest, AfterAFailedReadBackShardsAreSent) {
  auto upload = Begin(2);
  ASSERT_TRUE(upload.ok() && upload->has_value()) << upload.status();
  v1::WrittenSlice slice;
  {
    Opened opened = Open(**upload);
    slice = Write(opened, 2);
    Write(opened, 3);
  }
  ASSERT_TRUE((*upload)->NoteWritten(slice).ok());

  EXPECT_EQ(ReasonOf(checkpointer_.EndShard(**upload, absl::OkStatus())), "DIRECT_MISMATCH");

  EXPECT_THAT(Events("CHECKPOINT_FAILED"),
              ElementsAre(HasSubstr("the next ones are sent to the coordinator")));
  EXPECT_EQ(ReasonOf(Begin(4).status()), "DIRECT_OFF");
  EXPECT_TRUE(Save(4).ok());
  EXPECT_THAT(Steps(), ElementsAre(4));
}

TEST_F(DirectCheckpointTest, NamesAMemberThatSendsInsteadOfWritingOnce) {
  for (const int64_t step : {2, 4}) {
    v1::WriteShardHeader header = Header(step);
    header.set_not_direct_because("/shared/jobs: open folder: no such file or directory");
    auto upload = checkpointer_.BeginShard(header);
    ASSERT_TRUE(upload.ok() && upload->has_value()) << upload.status();
    ASSERT_TRUE(checkpointer_.EndShard(**upload, (*upload)->Write(Values(1))).ok());
  }
  EXPECT_THAT(Steps(), ElementsAre(4));
  EXPECT_THAT(Events("SHARD_SENT"), ElementsAre(AllOf(HasSubstr("p-0"), HasSubstr("step 2"),
                                                      HasSubstr("/shared/jobs: open folder"))));
}

}  // namespace
}  // namespace muster::checkpointer_test
