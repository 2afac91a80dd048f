#include "services/coordinator/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>

#include "absl/strings/str_cat.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "lib/limits/limits.h"
#include "lib/plan/parameter_table.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"
#include "lib/transport/core/crc32c.h"
#include "services/coordinator/checkpoints/checkpoint_files.h"
#include "services/coordinator/checkpoints/shard_restore.h"
#include "services/coordinator/common/proto_time.h"
#include "services/coordinator/testing/fake_member.h"
#include "services/coordinator/testing/made_up_jobs.h"

namespace muster::coordinator_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kWorkers = 2;

v1::JobSpec LinearJob() {
  return LinearSpec(R"pb(
    data { linear { slope: 2 intercept: 1 } }
    training {
      steps: 6
      optimizer { sgd { momentum: 0.9 } }
    }
    resources {
      workers { min: 2 max: 2 }
      ps: 2
    }
    checkpoint { every_steps: 4 }
  )pb");
}

class CoordinatorTest : public ::testing::Test {
 protected:
  CoordinatorTest() {
    state_dir_ = ::testing::TempDir() + "/coordinator-XXXXXX";
    EXPECT_NE(mkdtemp(state_dir_.data()), nullptr);
    Restart();
    for (int i = 0; i < kWorkers; ++i) Add(absl::StrCat("w-", i));
    for (int i = 0; i < 2; ++i) Add(absl::StrCat("p-", i));
  }

  // Restarts the coordinator. Unlike kill -9, changes that are already queued are still stored: see
  // ~CommitQueue().
  void Restart() {
    for (auto& [name, member] : members_) member.attachment.reset();
    coordinator_.reset();
    metrics_ = std::make_unique<Metrics>();
    auto opened = Coordinator::Open(
        {.state_dir = state_dir_, .metrics = metrics_.get(), .clock = [this] { return now_; }});
    ASSERT_TRUE(opened.ok()) << opened.status();
    coordinator_ = *std::move(opened);
  }

  void Add(const std::string& name) {
    FakeMember& member = members_[name];
    member.hello = HelloOf(name);
    Attach(member);
  }
  absl::Status TryAttach(const v1::Hello& hello) {
    v1::MemberReport report;
    *report.mutable_hello() = hello;
    auto waker = std::make_shared<StreamWaker>(std::function<void()>());
    return coordinator_->members().Attach(report, std::move(waker)).status();
  }
  void Attach(FakeMember& member) {
    v1::MemberReport report = member.Report();
    *report.mutable_hello() = member.hello;
    auto attached = coordinator_->members().Attach(
        report, std::make_shared<StreamWaker>(std::function<void()>()));
    ASSERT_TRUE(attached.ok()) << attached.status();
    member.attachment = *std::move(attached);
    coordinator_->Settle();
  }

  // All members report and obey twice, then time passes.
  void Exchange(absl::Duration time = absl::Milliseconds(500)) {
    for (int round = 0; round < 2; ++round) {
      for (auto& [name, member] : members_) {
        if (member.attachment == nullptr) continue;
        for (const MemberDirective& d : member.attachment->TakeDirectives()) member.Obey(Whole(d));
        (void)coordinator_->members().Report(*member.attachment, member.Report());
        coordinator_->Settle();
        for (const MemberDirective& d : member.attachment->TakeDirectives()) member.Obey(Whole(d));
      }
    }
    Pass(time);
  }

  // Ticks every kCheckInterval, because the delay of a later tick is added to all leases.
  void Pass(absl::Duration time) {
    for (const absl::Time end = now_ + time; now_ < end;) {
      now_ = std::min(now_ + LeaseTable::kCheckInterval, end);
      coordinator_->Tick();
      coordinator_->Settle();
    }
  }

  v1::Job Create(const v1::JobSpec& spec = LinearJob()) {
    v1::CreateJobRequest request;
    *request.mutable_spec() = spec;
    auto job = coordinator_->users().CreateJob(request);
    EXPECT_TRUE(job.ok()) << job.status();
    return job.ok() ? *job : v1::Job();
  }
  v1::Job Get(const std::string& name = "line-1") { return *coordinator_->users().GetJob(name); }
  v1::Job CreateRunning() {
    Create();
    for (int i = 0; i < 3; ++i) Exchange();
    EXPECT_EQ(Get().state(), v1::RUNNING) << Get().message();
    return Get();
  }
  void StepWorkers(int steps) {
    for (int i = 0; i < steps; ++i) {
      for (int w = 0; w < kWorkers; ++w) members_.at(absl::StrCat("w-", w)).Step("line-1");
    }
  }
  const v1::JobPlan& Plan() { return members_.at("w-0").plans.at("line-1"); }

  // Returns a shard's content at a version: element e of slot s is step + s / 10 + e / 100.
  static std::vector<float> Values(int64_t step, int slot, const v1::PlanChunk& chunk) {
    std::vector<float> values(chunk.elements());
    for (size_t e = 0; e < values.size(); ++e) values[e] = step + slot / 10.f + e / 100.f;
    return values;
  }
  absl::StatusOr<std::optional<ShardUpload>> BeginShard(int shard, int64_t step,
                                                        uint64_t snapshot = 0) {
    v1::WriteShardHeader header;
    header.set_job("line-1");
    header.set_generation(Plan().generation());
    header.set_step(step);
    header.set_shard(shard);
    header.set_snapshot(snapshot);
    return coordinator_->checkpoints().BeginShard(header);
  }
  absl::Status WriteShard(int shard, int64_t step, uint64_t snapshot = 0) {
    ASSIGN_OR_RETURN(auto upload, BeginShard(shard, step, snapshot));
    if (!upload) return absl::OkStatus();
    absl::Status status;
    for (int chunk = 0; chunk < Plan().chunks_size() && status.ok(); ++chunk) {
      if (Plan().chunks(chunk).shard() != shard) continue;
      for (int slot = 0; slot < 2 && status.ok(); ++slot) {
        const std::vector<float> values = Values(step, slot, Plan().chunks(chunk));
        const auto bytes = std::as_bytes(std::span(values));
        v1::ShardSlice slice;
        slice.set_chunk(chunk);
        slice.set_slot(slot);
        slice.set_data(bytes.data(), bytes.size());
        slice.set_crc32c(Crc32c(bytes) + corrupt_);
        status = upload->Write(slice);
      }
    }
    return coordinator_->checkpoints().EndShard(*upload, status);
  }
  void WriteShards(int64_t step, uint64_t snapshot = 0) {
    for (int shard = 0; shard < Plan().shards_size(); ++shard) {
      const absl::Status written = WriteShard(shard, step, snapshot);
      EXPECT_TRUE(written.ok()) << written;
    }
  }
  void FinishJob() {
    StepWorkers(6 - static_cast<int>(members_.at("w-0").jobs.at("line-1").next_step()));
    for (int w = 0; w < kWorkers; ++w) {
      members_.at(absl::StrCat("w-", w)).jobs.at("line-1").set_state(v1::MEMBER_DONE);
    }
    Exchange();
    WriteShards(6);
    Exchange();
  }
  std::vector<std::string> Reasons(const std::string& name) {
    v1::WatchJobRequest request;
    request.set_name(name);
    auto watch = coordinator_->users().WatchJob(
        request, std::make_shared<StreamWaker>(std::function<void()>()));
    std::vector<std::string> reasons;
    const auto answer = coordinator_->users().NextOf(**watch);
    for (const auto& e : (*answer)->response.events()) reasons.push_back(e.reason());
    return reasons;
  }
  std::vector<std::string> MetricsLines() {
    std::ifstream file(state_dir_ + "/jobs/line-1/metrics.jsonl");
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }

  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  std::string state_dir_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<Coordinator> coordinator_;
  std::map<std::string, FakeMember> members_;
  uint32_t corrupt_ = 0;
};

TEST_F(CoordinatorTest, RunsAJobFromSubmissionToItsLastCheckpoint) {
  CreateRunning();
  EXPECT_EQ(Plan().workers(1).first_position(), 4);
  EXPECT_EQ(Plan().session_token().size(), 16);
  StepWorkers(4);
  Exchange();
  WriteShards(4);
  FinishJob();

  const v1::Job job = Get();
  EXPECT_EQ(job.state(), v1::SUCCEEDED) << job.message();
  EXPECT_EQ(job.progress().step(), 6);
  EXPECT_EQ(job.progress().first_loss(), 2.0);
  EXPECT_THAT(Reasons("line-1"),
              ElementsAre("SUBMITTED", "SCHEDULED", "STARTED", "CHECKPOINT_COMMITTED",
                          "CHECKPOINT_COMMITTED", "COMPLETED"));
  EXPECT_EQ(MetricsLines().size(), 6);
  const auto checkpoints = coordinator_->checkpoints().List("line-1");
  ASSERT_EQ(checkpoints->size(), 2);
  EXPECT_EQ(checkpoints->at(1).name(), "jobs/line-1/checkpoints/6");
  EXPECT_THAT(members_.at("p-0").jobs, IsEmpty()) << "released";
  EXPECT_THAT(metrics_->Render(), HasSubstr("muster_job_transitions_total"));
}

TEST_F(CoordinatorTest, ContinuesFromItsStoreAfterAKill) {
  CreateRunning();
  StepWorkers(4);
  Exchange();
  WriteShards(4);
  StepWorkers(1);  // not reported yet

  Restart();
  EXPECT_EQ(coordinator_->term(), 2);
  EXPECT_EQ(Get().state(), v1::RUNNING);
  EXPECT_EQ(coordinator_->checkpoints().List("")->size(), 1);
  for (auto& [name, member] : members_) Attach(member);
  FinishJob();

  EXPECT_EQ(Get().state(), v1::SUCCEEDED) << Get().message();
  EXPECT_EQ(MetricsLines().size(), 6) << "every step once";
  EXPECT_THAT(MetricsLines().back(), HasSubstr("\"step\":5"));
}

TEST_F(CoordinatorTest, KeepsTheTimesOfConditionsOverARestart) {
  const auto times = [this] {
    const v1::Job job = Get();
    std::vector<absl::Time> times;
    for (const v1::JobCondition& condition : job.conditions()) {
      EXPECT_TRUE(condition.has_last_transition_time()) << condition.DebugString();
      times.push_back(FromProto(condition.last_transition_time()));
    }
    return times;
  };
  const absl::Time submitted = now_;
  CreateRunning();
  now_ += absl::Seconds(3);
  StepWorkers(4);
  Exchange();
  const absl::Time saved = now_;
  WriteShards(4);
  const std::vector<absl::Time> before = times();
  ASSERT_EQ(before.size(), 6);
  EXPECT_EQ(before[v1::JOB_CONDITION_TYPE_CHECKPOINTED - 1], saved);
  EXPECT_EQ(before[v1::JOB_CONDITION_TYPE_FAILED - 1], submitted);

  now_ += absl::Seconds(60);
  Restart();

  EXPECT_EQ(times(), before);
}

TEST_F(CoordinatorTest, FindsACheckpointThatWasRenamedJustBeforeAKill) {
  CreateRunning();
  StepWorkers(4);
  Exchange();
  WriteShards(4);
  const std::string folder = state_dir_ + "/jobs/line-1/checkpoints";
  std::filesystem::rename(CheckpointPath(folder, 4), folder + "/aside");
  Restart();
  EXPECT_THAT(*coordinator_->checkpoints().List("line-1"), IsEmpty());
  std::filesystem::rename(folder + "/aside", CheckpointPath(folder, 4));

  Restart();

  EXPECT_EQ(coordinator_->checkpoints().List("line-1")->size(), 1);
  EXPECT_TRUE(WriteShard(0, 4).ok()) << "a shard that was not told has nothing to do";
}

// Simulates a store that was lost without a backup, or another prefix in etcd. At the next start
// the old job's checkpoint would become the new job's.
TEST_F(CoordinatorTest, ANewStoreDoesNotGiveJobsTheFoldersOfOldOnes) {
  CreateRunning();
  StepWorkers(4);
  Exchange();
  WriteShards(4);
  const std::string values = state_dir_ + "/models/model-old";
  std::filesystem::create_directories(values);
  for (auto& [name, member] : members_) member.attachment.reset();
  coordinator_.reset();
  for (const char* suffix : {"", "-wal", "-shm"}) {
    std::filesystem::remove(absl::StrCat(state_dir_, "/coordinator.db", suffix));
  }

  Restart();
  const std::string job = Create().name();
  EXPECT_EQ(job, "jobs/line-2");
  for (int restart = 0; restart < 2; ++restart) {
    EXPECT_EQ(Get(job).checkpoint(), "");
    EXPECT_THAT(*coordinator_->checkpoints().List(""), IsEmpty());
    EXPECT_TRUE(std::filesystem::exists(CheckpointPath(state_dir_ + "/jobs/line-1/checkpoints", 4)))
        << "what is left of the old job can still be resumed from by its folder";
    EXPECT_TRUE(std::filesystem::exists(values)) << "of a job that may come back with a backup";
    Restart();
  }
}

// Simulates that the volume of the jobs folder is not mounted.
TEST_F(CoordinatorTest, DoesNotForgetCheckpointsIfTheirVolumeIsMissing) {
  CreateRunning();
  StepWorkers(4);
  Exchange();
  WriteShards(4);
  for (auto& [name, member] : members_) member.attachment.reset();
  coordinator_.reset();
  std::filesystem::rename(state_dir_ + "/jobs", state_dir_ + "/volume");
  metrics_ = std::make_unique<Metrics>();
  const absl::Status refused =
      Coordinator::Open({.state_dir = state_dir_, .metrics = metrics_.get()}).status();
  EXPECT_EQ(ReasonOf(refused), "JOBS_NOT_MOUNTED") << refused;
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << "it ends with 78";
  std::filesystem::remove_all(state_dir_ + "/jobs");
  std::filesystem::rename(state_dir_ + "/volume", state_dir_ + "/jobs");

  Restart();

  EXPECT_EQ(coordinator_->checkpoints().List("line-1")->size(), 1);
  EXPECT_EQ(Get().state(), v1::RUNNING) << Get().message();
}

// MusterCoordinatorDown must notice a coordinator that hangs during its start.
TEST_F(CoordinatorTest, ExportsItsTermOnceItServes) {
  EXPECT_THAT(metrics_->Render(), HasSubstr("\nmuster_coordinator_term 1\n"));
  for (auto& [name, member] : members_) member.attachment.reset();
  coordinator_.reset();
  metrics_ = std::make_unique<Metrics>();
  std::string meanwhile;

  auto opened =
      Coordinator::Open({.state_dir = state_dir_, .metrics = metrics_.get(), .opened_one = [&] {
                           meanwhile = metrics_->Render();
                         }});

  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_THAT(meanwhile,
              AllOf(HasSubstr("muster_build_info"), Not(HasSubstr("muster_coordinator_term"))));
  EXPECT_THAT(metrics_->Render(), HasSubstr("\nmuster_coordinator_term 2\n"));
}

TEST_F(CoordinatorTest, TheSameRequestIdIsTheSameJob) {
  v1::CreateJobRequest request;
  *request.mutable_spec() = LinearJob();
  request.set_request_id("once");
  const auto first = coordinator_->users().CreateJob(request);
  ASSERT_TRUE(first.ok()) << first.status();

  Restart();
  EXPECT_EQ(coordinator_->users().CreateJob(request)->name(), first->name());
  request.mutable_spec()->set_priority(3);
  const auto other = coordinator_->users().CreateJob(request);

  EXPECT_TRUE(absl::IsAlreadyExists(other.status())) << other.status();
  EXPECT_EQ(ReasonOf(other.status()), "REQUEST_ID_REUSED");
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("use a new request_id"));
  EXPECT_EQ(coordinator_->users().ListJobs({})->jobs_size(), 1);
}

TEST_F(CoordinatorTest, AFaultySpecReportsAllFaultsAndLeavesNothingBehind) {
  v1::CreateJobRequest request;
  *request.mutable_spec() = LinearJob();
  request.mutable_spec()->mutable_resources()->mutable_workers()->set_max(1);
  (*request.mutable_spec()
        ->mutable_model()
        ->mutable_zoo()
        ->mutable_args()
        ->mutable_fields())["colour"]
      .set_string_value("red");
  request.mutable_spec()->mutable_checkpoint()->set_resume_from("nobody-7@3");
  request.set_request_id(std::string(limits::kRequestIdBytesMax + 1, 'r'));

  const auto job = coordinator_->users().CreateJob(request);

  std::vector<std::string> fields;
  for (const FieldFault& fault : FaultsOf(job.status())) fields.push_back(fault.field);
  EXPECT_THAT(fields, Contains("resources.workers.max"));
  EXPECT_THAT(fields, Contains("model.zoo.args.colour"));
  EXPECT_THAT(fields, Contains("checkpoint.resume_from"));
  EXPECT_THAT(fields, Contains("request_id"));
  EXPECT_EQ(coordinator_->users().ListJobs({})->jobs_size(), 0);
  EXPECT_FALSE(std::filesystem::exists(state_dir_ + "/jobs/line-1"));
}

TEST_F(CoordinatorTest, AGroupWithoutMatchesIsRefusedWithTheModelsNames) {
  v1::CreateJobRequest request;
  *request.mutable_spec() = LinearJob();
  v1::TrainingSpec& training = *request.mutable_spec()->mutable_training();
  training.add_parameter_groups()->add_match("weight");
  training.mutable_parameter_groups(0)->set_learning_rate_factor(0.5);
  training.add_parameter_groups()->add_match("*.bais");

  const auto job = coordinator_->users().CreateJob(request);

  const std::vector<FieldFault> faults = FaultsOf(job.status());
  ASSERT_EQ(faults.size(), 1) << job.status();
  EXPECT_EQ(faults[0].field, "training.parameter_groups[1].match[0]");
  EXPECT_EQ(faults[0].description, "no parameter matches '*.bais'; the model has: weight, bias");
}

TEST_F(CoordinatorTest, ValidateOnlyReturnsTheJobAndStoresNothing) {
  v1::CreateJobRequest request;
  *request.mutable_spec() = LinearJob();
  request.set_validate_only(true);

  const auto job = coordinator_->users().CreateJob(request);

  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_GT(job->spec().chunk_bytes(), 0) << "defaults are filled in";
  EXPECT_EQ(coordinator_->users().ListJobs({})->jobs_size(), 0);
}

TEST_F(CoordinatorTest, ListsNewestFirstInPagesAndByState) {
  for (int i = 0; i < 5; ++i) Create();
  ASSERT_TRUE(coordinator_->users().CancelJob("line-3").ok());
  v1::ListJobsRequest request;
  request.set_page_size(2);
  std::vector<std::string> names;
  do {
    const auto page = coordinator_->users().ListJobs(request);
    for (const v1::Job& job : page->jobs()) names.push_back(job.name());
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  EXPECT_THAT(names, ElementsAre("jobs/line-5", "jobs/line-4", "jobs/line-3", "jobs/line-2",
                                 "jobs/line-1"));

  v1::ListJobsRequest cancelled;
  cancelled.add_states(v1::CANCELLED);
  EXPECT_EQ(coordinator_->users().ListJobs(cancelled)->jobs(0).name(), "jobs/line-3");
  request.set_page_token("nonsense");
  EXPECT_TRUE(absl::IsInvalidArgument(coordinator_->users().ListJobs(request).status()));
}

TEST_F(CoordinatorTest, CancellingReleasesMembersForTheNextJob) {
  CreateRunning();
  Create();
  ASSERT_TRUE(coordinator_->users().CancelJob("jobs/line-1").ok());

  for (int i = 0; i < 4; ++i) Exchange();

  EXPECT_EQ(Get("line-1").state(), v1::CANCELLED);
  EXPECT_EQ(Get("line-2").state(), v1::RUNNING);
}

TEST_F(CoordinatorTest, AResumedJobContinuesFromItsCheckpoint) {
  CreateRunning();
  StepWorkers(3);
  Exchange();
  ASSERT_TRUE(coordinator_->users().SuspendJob("line-1").ok());
  Exchange();
  ASSERT_EQ(members_.at("p-0").snapshots.size(), 1);
  const v1::Snapshot snapshot = members_.at("p-0").snapshots[0];
  EXPECT_EQ(snapshot.step(), 3);
  WriteShards(3, snapshot.snapshot());
  EXPECT_EQ(Get().state(), v1::SUSPENDED) << Get().message();
  Exchange(absl::Seconds(1));
  // MusterCheckpointStale needs this series when the job trains again.
  const std::string last = "muster_checkpoint_last_success_step{job=\"line-1\"} 3";
  EXPECT_THAT(metrics_->Render(), HasSubstr(last));
  EXPECT_THAT(metrics_->Render(), Not(HasSubstr("muster_job_step{")));
  Restart();
  coordinator_->Tick();
  EXPECT_THAT(metrics_->Render(), HasSubstr(last));
  for (auto& [name, member] : members_) Attach(member);

  v1::ResumeJobRequest resume;
  resume.set_name("line-1");
  resume.mutable_resources()->mutable_workers()->set_min(2);
  resume.mutable_resources()->set_ps(1);
  ASSERT_TRUE(coordinator_->users().ResumeJob(resume).ok());
  for (int i = 0; i < 3; ++i) Exchange();

  EXPECT_EQ(Get().state(), v1::RUNNING) << Get().message();
  EXPECT_EQ(Plan().generation(), 2);
  EXPECT_EQ(Plan().first_step(), 3);
  EXPECT_EQ(Plan().restore(), "jobs/line-1/checkpoints/3");
  EXPECT_EQ(Plan().shards_size(), 1);

  v1::ReadShardRequest request;
  request.set_job("line-1");
  request.set_generation(2);
  const auto source = coordinator_->checkpoints().FindRestore(request);
  ASSERT_TRUE(source.ok()) << source.status();
  auto restore = ShardRestore::Open(source->plan, source->directory, 0);
  ASSERT_TRUE(restore.ok()) << restore.status();
  coordinator_->checkpoints().NoteRead(absl::OkStatus());
  coordinator_->checkpoints().NoteRead(absl::CancelledError("the caller is gone"));
  coordinator_->checkpoints().NoteRead(ShardRestore::Open(source->plan, "/nowhere", 0).status());
  EXPECT_THAT(metrics_->Render(), HasSubstr("\nmuster_checkpoint_damaged_total 1\n"));
  int slices = 0;
  while (true) {
    const auto slice = (*restore)->Next();
    ASSERT_TRUE(slice.ok()) << slice.status();
    if (!*slice) break;
    ++slices;
    const std::vector<float> expected =
        Values(3, (*slice)->slot(), Plan().chunks((*slice)->chunk()));
    ASSERT_EQ((*slice)->data().size(), expected.size() * sizeof(float));
    EXPECT_EQ(memcmp((*slice)->data().data(), expected.data(), (*slice)->data().size()), 0);
  }
  EXPECT_EQ(slices, 2 * Plan().chunks_size());
  FinishJob();
  EXPECT_EQ(Get().state(), v1::SUCCEEDED) << Get().message();
  EXPECT_EQ(MetricsLines().size(), 6);
}

TEST_F(CoordinatorTest, AJobMayStartFromAnotherJobsCheckpointOrADirectory) {
  CreateRunning();
  FinishJob();
  ASSERT_EQ(Get().state(), v1::SUCCEEDED);
  const std::string directory = coordinator_->checkpoints().Get("line-1")->directory();

  v1::JobSpec spec = LinearJob();
  spec.mutable_training()->set_steps(10);
  for (const std::string& from : {std::string("line-1@6"), std::string("line-1"), directory}) {
    spec.mutable_checkpoint()->set_resume_from(from);
    const v1::Job job = Create(spec);
    for (int i = 0; i < 3; ++i) Exchange();
    ASSERT_EQ(Get(job.name()).state(), v1::RUNNING) << Get(job.name()).message();
    const v1::JobPlan& plan = members_.at("w-0").plans.at(job.name().substr(5));
    EXPECT_EQ(plan.first_step(), 6);
    v1::ReadShardRequest request;
    request.set_job(plan.job());
    request.set_generation(1);
    EXPECT_EQ(coordinator_->checkpoints().FindRestore(request)->directory, directory);
    ASSERT_TRUE(coordinator_->users().CancelJob(job.name()).ok());
    Exchange();
  }

  spec.mutable_training()->mutable_optimizer()->mutable_adam()->set_learning_rate(0.1);
  spec.mutable_training()->set_steps(6);
  v1::CreateJobRequest misfit;
  *misfit.mutable_spec() = spec;
  EXPECT_THAT(std::string(coordinator_->users().CreateJob(misfit).status().message()),
              HasSubstr("checkpoint.resume_from"));
}

TEST_F(CoordinatorTest, RefusesADamagedResumePointAndNamesIntactOnes) {
  CreateRunning();
  StepWorkers(4);
  Exchange();
  WriteShards(4);
  FinishJob();
  const std::string directory = coordinator_->checkpoints().Get("line-1@6")->directory();
  const std::string file = directory + "/model-00001-of-00001.safetensors";
  std::filesystem::resize_file(file, 100);
  v1::CreateJobRequest request;
  *request.mutable_spec() = LinearJob();
  request.mutable_spec()->mutable_training()->set_steps(10);
  v1::CheckpointSpec& checkpoint = *request.mutable_spec()->mutable_checkpoint();

  for (const std::string& from : {std::string("line-1@6"), directory}) {
    checkpoint.set_resume_from(from);
    const absl::Status refused = coordinator_->users().CreateJob(request).status();
    EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr(file + ": ends at offset 100"),
                                                      HasSubstr("; sound beside it: step 4")));
  }

  checkpoint.set_resume_from("line-1");
  const auto job = coordinator_->users().CreateJob(request);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->progress().step(), 4);
  ASSERT_EQ(job->warnings_size(), 1);
  EXPECT_THAT(job->warnings(0), AllOf(HasSubstr(file), HasSubstr("line-1@4 is used instead")));
  for (int i = 0; i < 3; ++i) Exchange();
  EXPECT_EQ(members_.at("w-0").plans.at("line-2").first_step(), 4);
  EXPECT_THAT(metrics_->Render(), HasSubstr("\nmuster_checkpoint_damaged_total 2\n"))
      << "not of the path, which may be a mistake";
}

TEST_F(CoordinatorTest, AJobLosesAMemberWithAnExpiredLease) {
  CreateRunning();
  StepWorkers(2);
  Exchange();
  FakeMember& lost = members_.at("p-1");
  coordinator_->members().Detach(*lost.attachment, Fleet::Departure::kBroken);
  lost.attachment.reset();

  for (int i = 0; i < 7; ++i) Exchange(absl::Seconds(1));

  EXPECT_EQ(Get().state(), v1::RECOVERING);
  EXPECT_EQ(Get().reason(), "MEMBER_LOST");
  EXPECT_THAT(Get().message(), HasSubstr("p-1 (ps, shard 1) was lost at step 2"));
  EXPECT_EQ(coordinator_->ListMembers().members_size(), 3);
  const std::string metrics = metrics_->Render();
  EXPECT_THAT(metrics, HasSubstr("muster_lease_expiries_total 1"));
  EXPECT_THAT(metrics, HasSubstr("muster_job_recoveries_total{job=\"line-1\",lost=\"ps\","
                                 "reason=\"MEMBER_LOST\"} 1"));
  EXPECT_THAT(metrics, HasSubstr("_phase_duration_seconds_count{phase=\"detect\"} 1"));
  // The first tick after the end of the lease detects the loss.
  EXPECT_THAT(metrics, HasSubstr("_phase_duration_seconds_bucket{phase=\"detect\",le=\"2.5\"} 0"));
  EXPECT_THAT(metrics, HasSubstr("_phase_duration_seconds_bucket{phase=\"detect\",le=\"10\"} 1"));
}

// A pause of the coordinator must not use up the start timeout of a job that has never run.
TEST_F(CoordinatorTest, APauseOfTheCoordinatorDoesNotCountAsWaitingTime) {
  v1::JobSpec spec = LinearJob();
  spec.mutable_resources()->mutable_workers()->set_min(8);
  spec.mutable_resources()->mutable_workers()->set_max(8);
  spec.mutable_start_timeout()->set_seconds(60);
  Create(spec);
  for (int i = 0; i < 80; ++i) Exchange();
  now_ += absl::Hours(1);
  coordinator_->Dispatch();
  coordinator_->Tick();
  coordinator_->Settle();
  EXPECT_EQ(Get().state(), v1::QUEUED);

  for (int i = 0; i < 20; ++i) Exchange();  // 50 s of 60
  Pass(absl::Seconds(20));
  EXPECT_EQ(Get().state(), v1::QUEUED) << "no member reports";
  Exchange();
  EXPECT_EQ(Get().state(), v1::QUEUED);
  for (int i = 0; i < 20; ++i) Exchange();
  EXPECT_EQ(Get().state(), v1::FAILED);
  EXPECT_EQ(Get().reason(), "START_TIMEOUT");
}

TEST_F(CoordinatorTest, ASilentStreamIsClosedWithItsMembersNameAndLease) {
  const std::shared_ptr<Attachment> silent = std::exchange(members_.at("w-1").attachment, nullptr);

  for (int i = 0; i < 6; ++i) Exchange(absl::Seconds(1));

  EXPECT_EQ(ReasonOf(silent->closed()), "LEASE_EXPIRED");
  EXPECT_EQ(silent->closed().message(), "w-1: it did not report for its lease of 5s");
}

TEST_F(CoordinatorTest, AMemberThatReturnsWithinItsLeaseLosesNothing) {
  CreateRunning();
  FakeMember& member = members_.at("p-1");
  coordinator_->members().Detach(*member.attachment, Fleet::Departure::kBroken);
  now_ += absl::Seconds(3);
  Attach(member);

  for (int i = 0; i < 7; ++i) Exchange(absl::Seconds(1));

  EXPECT_EQ(Get().state(), v1::RUNNING);
}

TEST_F(CoordinatorTest, ANewProcessUnderAnOldNameReplacesTheOldOne) {
  CreateRunning();
  FakeMember& member = members_.at("w-1");
  const std::shared_ptr<Attachment> old = member.attachment;
  coordinator_->members().Detach(*old, Fleet::Departure::kBroken);
  member.hello.set_incarnation("w-1-2");
  member.hello.clear_ordinal();
  member.jobs.clear();

  Attach(member);

  EXPECT_EQ(Get().state(), v1::RECOVERING);
  EXPECT_THAT(Get().message(), HasSubstr("w-1"));
}

TEST_F(CoordinatorTest, AWatchLearnsOfARecoveryAtOnce) {
  Create();
  Pass(absl::Milliseconds(500));
  Restart();
  for (auto& [name, member] : members_) {
    member.hello.set_incarnation(absl::StrCat(name, "-2"));
    member.hello.clear_ordinal();
    Attach(member);
  }
  for (int i = 0; i < 8; ++i) Exchange(absl::Seconds(1));
  ASSERT_EQ(Get().state(), v1::RUNNING) << Get().message();
  ASSERT_GT(Get().generation(), 1);
  int wakes = 0;
  v1::WatchJobRequest request;
  request.set_name("line-1");
  const auto watch =
      coordinator_->users().WatchJob(request, std::make_shared<StreamWaker>([&] { ++wakes; }));
  while (coordinator_->users().NextOf(**watch)->has_value()) continue;

  StepWorkers(1);
  Exchange(absl::ZeroDuration());

  EXPECT_EQ(wakes, 1) << "the next second would be the next occasion";
  const auto told = coordinator_->users().NextOf(**watch);
  ASSERT_TRUE(told->has_value());
  EXPECT_EQ((*told)->response.job().progress().step(), Get().progress().step());
}

// A plan in the store names members. After a restart of the coordinator, a member of that name may
// be another process.
TEST_F(CoordinatorTest, ANewProcessAfterARestartIsNotTheOneInThePlan) {
  Create();
  Pass(absl::Milliseconds(500));
  ASSERT_EQ(Get().state(), v1::PREPARING) << Get().message();

  Restart();
  FakeMember& member = members_.at("p-0");
  member.hello.set_incarnation("p-0-2");
  member.hello.set_addresses(0, "another address of p-0");
  member.hello.clear_ordinal();
  member.hello.clear_cluster();
  member.hello.clear_term();
  for (auto& [name, process] : members_) Attach(process);
  for (int i = 0; i < 8; ++i) Exchange(absl::Seconds(1));

  EXPECT_EQ(Get().state(), v1::RUNNING) << Get().message();
  for (const v1::PlanShard& shard : members_.at("w-0").plans.at("line-1").shards()) {
    if (shard.member() != "p-0") continue;
    EXPECT_EQ(shard.address(), "another address of p-0");
  }
}

// Seen in production: a false hello removed the real worker from the fleet until that was
// restarted.
TEST_F(CoordinatorTest, AFalseHelloHarmsNoMember) {
  CreateRunning();
  v1::Hello hello = members_.at("w-1").hello;
  hello.set_incarnation("false");
  hello.clear_ordinal();

  EXPECT_EQ(ReasonOf(TryAttach(hello)), "NAME_IN_USE");

  for (int i = 0; i < 7; ++i) Exchange(absl::Seconds(1));
  EXPECT_EQ(Get().state(), v1::RUNNING) << Get().message();
}

TEST_F(CoordinatorTest, RefusesAReplacedProcessAfterTheLeaseAndARestart) {
  Exchange();
  FakeMember& member = members_.at("w-1");
  const v1::Hello zombie = member.hello;
  coordinator_->members().Detach(*member.attachment, Fleet::Departure::kBroken);
  member.hello.set_incarnation("w-1-2");
  member.hello.clear_ordinal();
  Attach(member);
  coordinator_->members().Detach(*member.attachment, Fleet::Departure::kOrderly);

  EXPECT_EQ(ReasonOf(TryAttach(zombie)), "REPLACED");
  Restart();
  EXPECT_EQ(ReasonOf(TryAttach(zombie)), "REPLACED");
}

TEST_F(CoordinatorTest, RefusesAMemberAfterTheStateFolderWasWiped) {
  Exchange();
  const v1::Hello member = members_.at("w-1").hello;
  std::filesystem::remove_all(state_dir_);

  Restart();

  EXPECT_EQ(ReasonOf(TryAttach(member)), "CLUSTER_CHANGED");
}

TEST_F(CoordinatorTest, ACheckpointOnDemandIsCommittedAndFound) {
  CreateRunning();
  const auto asked = coordinator_->checkpoints().Request("line-1");
  ASSERT_TRUE(asked.ok()) << asked.status();
  Exchange();
  ASSERT_EQ(members_.at("p-1").snapshots.size(), 1);
  EXPECT_FALSE(
      coordinator_->checkpoints().Await("line-1", *asked, absl::ZeroDuration())->has_value());

  WriteShards(asked->step, members_.at("p-1").snapshots[0].snapshot());

  const auto saved = coordinator_->checkpoints().Await("line-1", *asked, absl::ZeroDuration());
  ASSERT_TRUE(saved.ok() && saved->has_value()) << saved.status();
  EXPECT_EQ((*saved)->step(), asked->step);
}

TEST_F(CoordinatorTest, AFailedCheckpointOnDemandReportsItsReasonAtOnce) {
  CreateRunning();
  const auto asked = coordinator_->checkpoints().Request("line-1");
  ASSERT_TRUE(asked.ok()) << asked.status();
  Exchange();
  v1::SnapshotReport& failed = *members_.at("p-1").jobs.at("line-1").add_snapshots();
  failed.set_shard(1);
  failed.set_snapshot(members_.at("p-1").snapshots.at(0).snapshot());
  failed.set_outcome(v1::SNAPSHOT_FAILED);
  failed.set_message("no room for a copy");
  Exchange();
  Exchange();  // a member repeats its report until a later snapshot replaces it

  const auto saved = coordinator_->checkpoints().Await("line-1", *asked, absl::ZeroDuration());

  EXPECT_TRUE(absl::IsAborted(saved.status())) << saved.status();
  EXPECT_EQ(ReasonOf(saved.status()), "CHECKPOINT_FAILED");
  EXPECT_THAT(std::string(saved.status().message()), HasSubstr("no room for a copy"));
  EXPECT_EQ(Get().state(), v1::RUNNING) << "the training continues";
  EXPECT_THAT(metrics_->Render(), HasSubstr("failures_total{reason=\"SNAPSHOT_FAILED\"} 1\n"));
}

// The disk failure ends the shard's stream, so the shard reports a failure, too.
TEST_F(CoordinatorTest, CountsAFailedCheckpointOnDemandOnce) {
  CreateRunning();
  const auto asked = coordinator_->checkpoints().Request("line-1");
  ASSERT_TRUE(asked.ok()) << asked.status();
  Exchange();
  const uint64_t snapshot = members_.at("p-1").snapshots.at(0).snapshot();
  const auto upload = BeginShard(1, asked->step, snapshot);
  ASSERT_TRUE(upload.ok() && upload->has_value()) << upload.status();
  const absl::Status full =
      WithReason(absl::ResourceExhaustedError("no space left"), "STORAGE_FULL");
  EXPECT_EQ(coordinator_->checkpoints().EndShard(**upload, full), full);
  v1::SnapshotReport& failed = *members_.at("p-1").jobs.at("line-1").add_snapshots();
  failed.set_shard(1);
  failed.set_snapshot(snapshot);
  failed.set_outcome(v1::SNAPSHOT_FAILED);
  Exchange();

  EXPECT_THAT(metrics_->Render(),
              AllOf(HasSubstr("failures_total{reason=\"STORAGE_FULL\"} 1\n"),
                    HasSubstr("failures_total{reason=\"SNAPSHOT_FAILED\"} 0\n")));
}

// A ps that waits for the outcome of a round must always get one.
TEST_F(CoordinatorTest, AlwaysResolvesARound) {
  const absl::Duration kNow = absl::ZeroDuration();
  CreateRunning();
  StepWorkers(4);
  Exchange();
  auto open = [&](int64_t step) { return (*BeginShard(0, step))->round(); };

  const auto committed = open(4);
  EXPECT_FALSE(committed->AwaitOutcome(kNow).has_value());
  WriteShards(4);
  ASSERT_TRUE(committed->AwaitOutcome(kNow).has_value());
  EXPECT_TRUE(committed->AwaitOutcome(kNow)->ok());

  const auto given_up = open(6);
  v1::SnapshotReport& failed = *members_.at("p-1").jobs.at("line-1").add_snapshots();
  failed.set_shard(1);
  failed.set_step(6);
  failed.set_outcome(v1::SNAPSHOT_FAILED);
  Exchange();
  ASSERT_TRUE(given_up->AwaitOutcome(kNow).has_value());
  EXPECT_EQ(ReasonOf(*given_up->AwaitOutcome(kNow)), "SNAPSHOT_FAILED");
  EXPECT_EQ(ReasonOf(BeginShard(0, 6).status()), "CHECKPOINT_ABANDONED");
}

TEST_F(CoordinatorTest, ResolvesARoundWhenItsJobEnds) {
  CreateRunning();
  StepWorkers(4);
  Exchange();
  const auto round = (*BeginShard(0, 4))->round();

  ASSERT_TRUE(coordinator_->users().CancelJob("line-1").ok());

  ASSERT_TRUE(round->AwaitOutcome(absl::ZeroDuration()).has_value());
  EXPECT_EQ(ReasonOf(*round->AwaitOutcome(absl::ZeroDuration())), "STALE_SNAPSHOT");
}

TEST_F(CoordinatorTest, ACommitResolvesEveryRoundOfItsStep) {
  CreateRunning();
  members_.at("w-0").jobs.at("line-1").set_next_step(2);
  Exchange();
  ASSERT_EQ(coordinator_->checkpoints().Request("line-1")->step, 4) << "a periodic step, too";
  Exchange();
  const auto periodic = (*BeginShard(0, 4))->round();

  WriteShards(4, members_.at("p-1").snapshots.at(0).snapshot());

  ASSERT_TRUE(periodic->AwaitOutcome(absl::ZeroDuration()).has_value());
  EXPECT_TRUE(periodic->AwaitOutcome(absl::ZeroDuration())->ok());
}

TEST_F(CoordinatorTest, ASnapshotOfACommittedStepNeedNotBeSentAgainAfterARestart) {
  CreateRunning();
  StepWorkers(4);
  Exchange();
  WriteShards(4);

  Restart();

  const auto again = BeginShard(1, 4);  // no member has attached yet
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(again->has_value());
  coordinator_->Tick();
  EXPECT_THAT(metrics_->Render(),
              HasSubstr("muster_checkpoint_last_success_step{job=\"line-1\"} 4"));
}

TEST_F(CoordinatorTest, ExportsHeartbeatsCheckpointsAndTransitions) {
  CreateRunning();
  StepWorkers(4);
  v1::StepTiming& timing = *members_.at("w-0").jobs.at("line-1").mutable_timing();
  timing.set_steps(4);
  timing.set_compute_seconds(2);
  Exchange();
  WriteShards(4);
  Exchange(absl::Seconds(2));
  const std::string running = metrics_->Render();
  // Updated once a second, half a second ago.
  EXPECT_THAT(running,
              HasSubstr("muster_member_heartbeat_age_seconds{member=\"p-1\",role=\"ps\"} 1.5"));
  EXPECT_THAT(running, HasSubstr("muster_checkpoint_last_success_step{job=\"line-1\"} 4"));
  EXPECT_THAT(running, HasSubstr("muster_checkpoint_duration_seconds_count 1"));
  EXPECT_THAT(running, HasSubstr("muster_job_checkpoint_duration_seconds_count{job=\"line-1\"} 1"));
  EXPECT_THAT(running, HasSubstr("muster_job_checkpoint_failures_total{job=\"line-1\","
                                 "reason=\"STORAGE_FULL\"} 0"))
      << "from the start: an alert is to see the first one";
  EXPECT_THAT(running,
              HasSubstr("muster_job_transitions_total{from=\"preparing\",reason=\"STARTED\","
                        "to=\"running\"} 1"));
  EXPECT_THAT(running, HasSubstr("muster_job_running{job=\"line-1\"} 1"));
  EXPECT_THAT(running, HasSubstr("muster_job_state{job=\"line-1\",reason=\"STARTED\","
                                 "state=\"running\"} 1"));
  EXPECT_THAT(running, HasSubstr("muster_job_worker_step_seconds{job=\"line-1\",phase=\"compute\","
                                 "worker=\"w-0\"} 0.5"));
  EXPECT_THAT(running, HasSubstr("muster_job_recoveries_total{job=\"line-1\",lost=\"worker\","
                                 "reason=\"MEMBER_LOST\"} 0"))
      << "from the start: an alert is to see the first one";
  EXPECT_THAT(running, HasSubstr("muster_job_queue_wait_seconds_count 1"));
  EXPECT_THAT(running, HasSubstr("muster_state_free_bytes "));
  // Ticks are 0.5 s apart here instead of 0.2.
  EXPECT_THAT(running, HasSubstr("muster_coordinator_tick_lateness_seconds_bucket{le=\"0.15\"} 0"));

  v1::JobReport& job = members_.at("w-0").jobs.at("line-1");
  job.set_state(v1::MEMBER_FAILED);
  job.mutable_error()->set_reason("no token, " + std::string(1000, 'x'));
  Exchange();
  coordinator_->members().Detach(*members_.at("p-1").attachment, Fleet::Departure::kOrderly);
  members_.at("p-1").attachment.reset();
  Exchange(absl::Seconds(1));
  const std::string failed = metrics_->Render();
  EXPECT_THAT(failed, HasSubstr("reason=\"MEMBER_FAILED\",to=\"failed\"} 1"));
  EXPECT_THAT(failed, Not(HasSubstr("member=\"p-1\"")));
  EXPECT_THAT(failed, Not(HasSubstr("job=\"line-1\""))) << "series of a job that has ended";
}

TEST_F(CoordinatorTest, CountsMembersByRoleAndState) {
  CreateRunning();
  Exchange(absl::Seconds(2));
  const auto count = [&](const char* role, const char* state, int members) {
    return HasSubstr(
        absl::StrCat("muster_members{role=\"", role, "\",state=\"", state, "\"} ", members, "\n"));
  };
  EXPECT_THAT(metrics_->Render(), AllOf(count("worker", "attached", 2), count("ps", "attached", 2),
                                        count("ps", "draining", 0), count("ps", "silent", 0)));

  coordinator_->members().Detach(*members_.at("p-1").attachment, Fleet::Departure::kBroken);
  members_.at("p-1").attachment.reset();
  ASSERT_TRUE(coordinator_->members().Drain("p-0").ok());
  Exchange(absl::Seconds(1));
  EXPECT_THAT(metrics_->Render(), AllOf(count("worker", "attached", 2), count("ps", "attached", 0),
                                        count("ps", "draining", 1), count("ps", "silent", 1)));
}

TEST_F(CoordinatorTest, ReturnsTheLinksOfARunningJobByRank) {
  CreateRunning();
  for (const char* worker : {"w-1", "w-0"}) {
    v1::LinkReport& link = *members_.at(worker).jobs.at("line-1").add_links();
    link.set_peer("p-0/0");
    link.set_transport("shm");
    link.set_sent_bytes(17);
  }
  Exchange();
  v1::ReadJobLinksRequest request;
  request.set_name("jobs/line-1");
  const auto links = coordinator_->queries().ReadJobLinks(request);
  ASSERT_TRUE(links.ok()) << links.status();
  ASSERT_EQ(links->members_size(), 2);
  EXPECT_EQ(links->members(0).member(), "w-0");
  EXPECT_EQ(links->members(1).links(0).sent_bytes(), 17);
  EXPECT_TRUE(links->members(1).has_report_time());

  ASSERT_TRUE(coordinator_->users().CancelJob("jobs/line-1").ok());
  EXPECT_THAT(coordinator_->queries().ReadJobLinks(request)->members(), IsEmpty());
}

TEST_F(CoordinatorTest, ExportsTheStateOfEachJobWithItsReason) {
  CreateRunning();
  v1::JobSpec spec = LinearJob();
  spec.mutable_resources()->mutable_workers()->set_min(7);
  spec.mutable_resources()->mutable_workers()->set_max(7);
  const v1::Job queued = Create(spec);
  Exchange(absl::Seconds(2));
  const auto state = [](const char* job, const char* reason, const char* state) {
    return HasSubstr(absl::StrCat("muster_job_state{job=\"", job, "\",reason=\"", reason,
                                  "\",state=\"", state, "\"} 1\n"));
  };
  EXPECT_THAT(metrics_->Render(), AllOf(state("line-1", "STARTED", "running"),
                                        state("line-2", "WAITS_FOR_WORKERS", "queued")));

  ASSERT_TRUE(coordinator_->users().CancelJob(queued.name()).ok());
  coordinator_->members().Detach(*members_.at("w-0").attachment, Fleet::Departure::kOrderly);
  members_.at("w-0").attachment.reset();  // the running job recovers
  Exchange(absl::Seconds(2));
  const std::string after = metrics_->Render();
  EXPECT_THAT(after, Not(HasSubstr("muster_job_state{job=\"line-2\""))) << "it has ended";
  EXPECT_THAT(after, Not(state("line-1", "STARTED", "running"))) << "the state before";
  EXPECT_THAT(after, HasSubstr("muster_job_state{job=\"line-1\""));
}

TEST_F(CoordinatorTest, ExportsHowManyWorkersJobsWant) {
  auto wanted = [&](int min, int max) {
    return AllOf(HasSubstr(absl::StrCat("muster_workers_wanted{bound=\"min\"} ", min, "\n")),
                 HasSubstr(absl::StrCat("muster_workers_wanted{bound=\"max\"} ", max, "\n")));
  };
  Exchange(absl::Seconds(2));
  EXPECT_THAT(metrics_->Render(), wanted(0, 0));
  CreateRunning();
  v1::JobSpec spec = LinearJob();
  spec.mutable_resources()->mutable_workers()->set_min(3);
  spec.mutable_resources()->mutable_workers()->set_max(7);
  const v1::Job queued = Create(spec);
  Exchange(absl::Seconds(2));
  EXPECT_EQ(Get(queued.name()).state(), v1::QUEUED);
  EXPECT_THAT(metrics_->Render(), wanted(kWorkers + 3, kWorkers + 7));

  ASSERT_TRUE(coordinator_->users().CancelJob(queued.name()).ok());
  Exchange(absl::Seconds(2));
  EXPECT_THAT(metrics_->Render(), wanted(kWorkers, kWorkers));
}

TEST_F(CoordinatorTest, RefusesCorruptSlicesAndOldGenerations) {
  CreateRunning();
  StepWorkers(4);
  Exchange();
  corrupt_ = 1;
  EXPECT_EQ(ReasonOf(WriteShard(0, 4)), "CHECKSUM_MISMATCH");
  corrupt_ = 0;
  v1::WriteShardHeader stale;
  stale.set_job("line-1");
  stale.set_step(4);
  EXPECT_TRUE(absl::IsFailedPrecondition(coordinator_->checkpoints().BeginShard(stale).status()));

  WriteShards(4);

  EXPECT_EQ(coordinator_->checkpoints().List("line-1")->size(), 1);
  EXPECT_EQ(Get().state(), v1::RUNNING);
}

TEST_F(CoordinatorTest, OnlyFilesOfTheCheckpointCanBeRead) {
  CreateRunning();
  FinishJob();
  const auto checkpoint = coordinator_->checkpoints().Get("line-1");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  v1::ReadCheckpointRequest request;
  for (const char* path : {"../../metrics.jsonl", "/etc/passwd", "..", "nothing"}) {
    request.set_file(path);
    EXPECT_TRUE(absl::IsNotFound(CheckpointFiles::Open(*checkpoint, request).status())) << path;
  }

  request.clear_file();
  auto files = CheckpointFiles::Open(*checkpoint, request);
  ASSERT_TRUE(files.ok()) << files.status();
  std::string last;
  for (auto piece = files->Next(); piece.ok() && *piece; piece = files->Next()) {
    last = (*piece)->file();
  }
  EXPECT_EQ(last, "manifest.json");
}

TEST_F(CoordinatorTest, DeletingRemovesAFinishedJobAndItsFolder) {
  CreateRunning();
  EXPECT_EQ(ReasonOf(coordinator_->users().DeleteJob("line-1")), "JOB_NOT_FINISHED");
  FinishJob();
  v1::WatchJobRequest request;
  request.set_name("line-1");
  const auto watch = coordinator_->users().WatchJob(
      request, std::make_shared<StreamWaker>(std::function<void()>()));

  ASSERT_TRUE(coordinator_->users().DeleteJob("line-1").ok());

  EXPECT_EQ(coordinator_->users().NextOf(**watch).status().message(), "line-1 was deleted");

  EXPECT_TRUE(absl::IsNotFound(coordinator_->users().DeleteJob("line-1")));
  EXPECT_FALSE(std::filesystem::exists(state_dir_ + "/jobs/line-1"));
  Restart();
  EXPECT_TRUE(absl::IsNotFound(coordinator_->users().GetJob("line-1").status()));
  EXPECT_EQ(Create().name(), "jobs/line-2") << "numbers are never used again";
}

TEST_F(CoordinatorTest, KeepsACheckpointThatAJobStartsFrom) {
  v1::JobSpec spec = LinearJob();
  spec.mutable_checkpoint()->set_every_steps(1);
  spec.mutable_checkpoint()->set_keep_last(1);
  Create(spec);
  for (int i = 0; i < 3; ++i) Exchange();
  auto advance = [&](int64_t step) {
    StepWorkers(1);
    Exchange();
    WriteShards(step);
  };
  advance(1);
  v1::JobSpec next = LinearJob();
  next.mutable_checkpoint()->set_resume_from("line-1@1");
  Create(next);
  advance(2);
  const std::string folder = state_dir_ + "/jobs/line-1/checkpoints";
  const std::string link = state_dir_ + "/link";
  std::filesystem::create_symlink(CheckpointPath(folder, 2), link);
  next.mutable_checkpoint()->set_resume_from(link);  // the same checkpoint as line-1@2
  Create(next);
  for (int64_t step = 3; step <= 4; ++step) advance(step);
  EXPECT_THAT(*ListCheckpointSteps(folder), ElementsAre(1, 2, 4));
  ASSERT_TRUE(coordinator_->users().CancelJob("line-1").ok());
  coordinator_->Settle();

  const absl::Status refused = coordinator_->users().DeleteJob("line-1");
  EXPECT_EQ(ReasonOf(refused), "CHECKPOINT_NEEDED");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("line-2 (QUEUED)"));
  Restart();
  EXPECT_EQ(ReasonOf(coordinator_->users().DeleteJob("line-1")), "CHECKPOINT_NEEDED");

  ASSERT_TRUE(coordinator_->users().CancelJob("line-2").ok());
  EXPECT_THAT(std::string(coordinator_->users().DeleteJob("line-1").message()),
              HasSubstr("line-3 (QUEUED)"));
  ASSERT_TRUE(coordinator_->users().CancelJob("line-3").ok());
  EXPECT_TRUE(coordinator_->users().DeleteJob("line-1").ok());
}

TEST_F(CoordinatorTest, PrunesOlderCheckpointsAfterANewerCommit) {
  v1::JobSpec spec = LinearJob();
  spec.mutable_checkpoint()->set_every_steps(1);
  spec.mutable_checkpoint()->set_keep_last(2);
  Create(spec);
  for (int i = 0; i < 3; ++i) Exchange();
  for (int step = 1; step <= 4; ++step) {
    StepWorkers(1);
    Exchange();
    WriteShards(step);
  }

  std::vector<int64_t> steps;
  const auto checkpoints = coordinator_->checkpoints().List("");
  for (const v1::Checkpoint& checkpoint : *checkpoints) steps.push_back(checkpoint.step());
  EXPECT_THAT(steps, ElementsAre(3, 4));
  EXPECT_THAT(*ListCheckpointSteps(state_dir_ + "/jobs/line-1/checkpoints"), ElementsAre(3, 4));
}

TEST_F(CoordinatorTest, AWatchResumesByRevisionAndEndsWithTheJob) {
  Create();
  v1::WatchJobRequest request;
  request.set_name("line-1");
  int wakes = 0;
  auto waker = std::make_shared<StreamWaker>([&] { ++wakes; });
  auto watch = coordinator_->users().WatchJob(request, waker);
  ASSERT_TRUE(watch.ok());
  auto first = coordinator_->users().NextOf(**watch);
  ASSERT_TRUE(first.ok() && first->has_value());
  EXPECT_EQ((*first)->response.events_size(), 1);
  EXPECT_FALSE(coordinator_->users().NextOf(**watch)->has_value());

  ASSERT_TRUE(coordinator_->users().CancelJob("line-1").ok());

  EXPECT_EQ(wakes, 1);
  auto last = coordinator_->users().NextOf(**watch);
  EXPECT_TRUE((*last)->last);
  ASSERT_EQ((*last)->response.events_size(), 1);
  EXPECT_EQ((*last)->response.events(0).reason(), "CANCELLED");

  request.set_revision(2);
  auto again = coordinator_->users().WatchJob(request, waker);
  EXPECT_EQ((*coordinator_->users().NextOf(**again))->response.events_size(), 0);
}

}  // namespace
}  // namespace muster::coordinator_test
