#include "services/coordinator/planning/scheduler.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "lib/checkpoint/known_checkpoint.h"
#include "lib/graph/zoo/zoo.h"
#include "lib/job/resource_name.h"
#include "lib/limits/limits.h"
#include "lib/text/byte_size.h"
#include "services/coordinator/checkpoints/restore_choice.h"
#include "services/coordinator/job/job.h"
#include "services/coordinator/job/recovery/failure_detector.h"
#include "services/coordinator/job/recovery/replica_placement.h"
#include "services/coordinator/testing/registry_fixture.h"

namespace muster::scheduler_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class SchedulerTest : public RegistryFixture {
 protected:
  ~SchedulerTest() override {
    if (!go_.HasBeenNotified()) go_.Notify();
  }

  // Runs one pass as the ticker does. Blocks until all its starts and changes are done.
  void Pass() {
    if (!go_.HasBeenNotified()) go_.Notify();
    scheduler_.Pass();
    Settle();
  }
  void Settle() {
    scheduler_.AwaitIdle();
    registry_->changes().AwaitAll();
  }

  void AttachPs(const std::string& name, int64_t memory_bytes) {
    v1::Hello hello = Hello(name);
    hello.set_memory_bytes(memory_bytes);
    const auto arrival =
        fleet_->Attach(hello, std::make_shared<StreamWaker>(std::function<void()>()), now_);
    ASSERT_TRUE(arrival.ok()) << arrival.status();
    attached_.push_back(arrival->attachment);
  }
  std::shared_ptr<Attachment> AttachWorker(const std::string& name, int devices) {
    v1::Hello hello = Hello(name);
    for (int i = 0; i < devices; ++i) hello.add_devices(absl::StrCat("cpu:", i));
    auto arrival =
        fleet_->Attach(hello, std::make_shared<StreamWaker>(std::function<void()>()), now_);
    EXPECT_TRUE(arrival.ok()) << arrival.status();
    arrival->attachment->TakeDirectives();  // discards the welcome
    return arrival->attachment;
  }
  void ChangeRounds(uint64_t job, void (CheckpointRounds::*what)()) {
    JobRegistry::Transaction transaction(registry_.get());
    (transaction.FindNumber(job)->rounds.*what)();
  }
  // Adds a job for one to `workers_max` workers.
  uint64_t AddElasticJob(int workers_max = 2, int logical = 0) {
    const uint64_t number = AddJob();
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(number);
    v1::ResourceSpec resources = entry.job.record().spec().resources();
    resources.mutable_workers()->set_max(workers_max);
    resources.mutable_workers()->set_logical(logical);
    EXPECT_TRUE(entry.job.Suspend(now_).ok());
    EXPECT_TRUE(entry.job.Resume(&resources, now_).ok());
    transaction.Commit(entry);
    return number;
  }
  // Returns a job that has run with w-0 alone for long enough to take another worker.
  uint64_t RunElasticJob(int workers_max = 2, int logical = 0) {
    const uint64_t job = AddElasticJob(workers_max, logical);
    attached_ = {Attach("p-0"), Attach("w-0")};
    now_ += limits::kAttachBackoffMax + absl::Seconds(10);
    Pass();
    now_ += absl::Seconds(10);
    Pass();
    EXPECT_EQ(View(job).workers_size(), 1);
    for (const char* member : {"w-0", "p-0"}) Tell(job, member, v1::MEMBER_PREPARED);
    now_ += Job::kJoinAfter;
    return job;
  }
  void Tell(uint64_t number, const std::string& member, v1::MemberJobState state,
            uint64_t warm_up = 0, int64_t samples = 1000, const std::string& kind = "") {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(number);
    v1::JobReport report;
    report.set_job(JobIdOf(entry.job.record().name()));
    report.set_generation(entry.job.record().generation());
    report.set_state(state);
    report.set_rehearsal(warm_up);
    report.mutable_dataset()->set_samples(samples);
    report.set_device_kind(kind);
    entry.job.Report(member, &report, now_);
    transaction.Commit(entry);
  }
  void BeginWarmUp(uint64_t number, const std::string& member, const v1::JobPlan& plan,
                   v1::MemberJobState state, int64_t samples = 1000) {
    Tell(number, member, state, plan.rehearsal(), samples);
  }
  static std::vector<MemberDirective> TakeAll(Attachment& attachment) {
    const auto told = attachment.TakeDirectives();
    return {told.begin(), told.end()};
  }
  // Returns the plan of the warm-up. Requires: it is the only directive for this member.
  static v1::JobPlan WarmUpPlanOf(Attachment& attachment) {
    const std::vector<MemberDirective> told = TakeAll(attachment);
    EXPECT_EQ(told.size(), 1u);
    return told.empty() ? v1::JobPlan() : Whole(told[0]).prepare().plan();
  }
  // Returns the memory that a started job needs on its ps.
  int64_t NeedOf(uint64_t number) {
    JobRegistry::Transaction transaction(registry_.get());
    const v1::JobPlan& plan = *transaction.FindNumber(number)->job.plan();
    return MemoryOfPs(plan).begin()->second.With(plan.workers_size());
  }
  void Cancel(uint64_t number) {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(number);
    EXPECT_TRUE(entry.job.Cancel(now_).ok());
    transaction.Commit(entry);
  }

  // Commits a checkpoint of the job at each of these steps.
  void GiveCheckpoints(uint64_t number, const std::vector<int64_t>& steps) {
    v1::JobPlan plan = KnownPlan({{3}});
    plan.set_job(JobIdOf(View(number).name()));
    for (const int64_t step : steps) {
      const auto committed = WriteKnownCheckpoint(CheckpointsOf(number), plan, step, 1);
      ASSERT_TRUE(committed.ok()) << committed.status();
      JobRegistry::Transaction transaction(registry_.get());
      JobRegistry::Entry& entry = *transaction.FindNumber(number);
      entry.job.CheckpointCommitted(*committed, now_);
      transaction.Commit(entry, {.checkpoint = *committed});
    }
    registry_->changes().AwaitAll();
  }
  std::string CheckpointsOf(uint64_t number) {
    return registry_->folder().checkpoints(JobIdOf(View(number).name()));
  }
  std::vector<int64_t> StoredSteps(uint64_t number) {
    std::vector<int64_t> steps;
    const auto stored = store_->Checkpoints(number);
    EXPECT_TRUE(stored.ok()) << stored.status();
    for (const v1::Checkpoint& checkpoint : *stored) steps.push_back(checkpoint.step());
    return steps;
  }

  std::vector<std::shared_ptr<Attachment>> attached_;
  absl::Notification go_;  // no model is built before this, so no plan is made
  Scheduler scheduler_{registry_.get(), fleet_.get(), [this](const v1::ModelSpec& spec) {
                         go_.WaitForNotification();
                         return BuildModel(spec);
                       }};
};

TEST_F(SchedulerTest, AJobStartsWhenItsWholeGangIsAttached) {
  const uint64_t job = AddJob();
  Attach("w-0");
  Pass();
  EXPECT_EQ(View(job).state(), v1::QUEUED);

  Attach("p-0");
  Pass();

  const v1::Job view = View(job);
  EXPECT_EQ(view.state(), v1::PREPARING) << view.message();
  EXPECT_EQ(view.workers(0), "w-0");
  EXPECT_EQ(view.ps(0), "p-0");
  JobRegistry::Transaction transaction(registry_.get());
  EXPECT_EQ(transaction.FindNumber(job)->job.plan()->graph().parameters_size(), 2)
      << "the model is built from the spec";
}

TEST_F(SchedulerTest, UsesTheModelThatTheSubmissionBuilt) {
  auto graph = std::make_shared<v1::Graph>();
  v1::Parameter& parameter = *graph->add_parameters();
  parameter.set_name("as submitted");
  parameter.add_shape(4);
  const uint64_t job = AddJob(graph);
  Attach("w-0");
  Attach("p-0");
  Pass();
  ASSERT_EQ(View(job).state(), v1::PREPARING);
  {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(job);
    EXPECT_EQ(entry.job.plan()->graph().parameters(0).name(), "as submitted");
    EXPECT_EQ(entry.graph, nullptr) << "the plan has it";
    EXPECT_TRUE(entry.job.Suspend(now_).ok());
    EXPECT_TRUE(entry.job.Resume(nullptr, now_).ok());
    transaction.Commit(entry);
  }

  Pass();

  JobRegistry::Transaction transaction(registry_.get());
  const Job& again = transaction.FindNumber(job)->job;
  ASSERT_EQ(again.plan()->generation(), 2);
  EXPECT_EQ(again.plan()->graph().parameters(0).name(), "as submitted");
}

// A member that failed to attach just before the coordinator started tries again after
// kAttachBackoffMax.
TEST_F(SchedulerTest, AfterAStartAJobWaitsForMembersInBackOff) {
  const uint64_t job = AddElasticJob();
  Attach("p-0");
  Attach("w-0");
  now_ += limits::kAttachBackoffMax + absl::Seconds(1);
  Pass();
  EXPECT_EQ(View(job).state(), v1::QUEUED);

  Attach("w-1");
  Pass();

  ASSERT_EQ(View(job).state(), v1::PREPARING);
  EXPECT_EQ(View(job).workers_size(), 2);
}

TEST_F(SchedulerTest, AJobDoesNotWaitForeverForOptionalMembers) {
  const uint64_t job = AddElasticJob();
  Attach("p-0");
  Attach("w-0");
  Pass();  // from here on members can reattach
  EXPECT_EQ(View(job).state(), v1::QUEUED);
  now_ += limits::kAttachBackoffMax + absl::Seconds(3);

  Pass();

  EXPECT_EQ(View(job).state(), v1::PREPARING);
}

// Seven workers are as fast as four if the batch has eight shares, so the job does not wait for
// them.
TEST_F(SchedulerTest, AJobWithLogicalWorkersStartsAtOnceWithAUsefulNumber) {
  const uint64_t job = AddElasticJob(/*workers_max=*/7, /*logical=*/8);
  Attach("p-0");
  for (int i = 0; i < 3; ++i) Attach(absl::StrCat("w-", i));
  Pass();
  EXPECT_EQ(View(job).state(), v1::QUEUED) << "a fourth worker may attach";
  for (int i = 3; i < 7; ++i) Attach(absl::StrCat("w-", i));
  Pass();
  EXPECT_EQ(View(job).state(), v1::PREPARING) << View(job).message();
  EXPECT_THAT(View(job).workers(), ElementsAre("w-0", "w-1", "w-2", "w-3"));
}

// Otherwise each pass would take longer with each queued job.
TEST_F(SchedulerTest, AJobFarBehindInTheQueueWaitsForItsTurn) {
  v1::JobSpec large;
  large.mutable_resources()->mutable_workers()->set_min(9);
  large.mutable_resources()->mutable_workers()->set_max(9);
  for (int i = 1; i < Scheduler::kConsideredMax; ++i) AddJob(/*graph=*/nullptr, large);
  const uint64_t last = AddJob();
  const uint64_t behind = AddJob();
  attached_ = {Attach("p-0"), Attach("w-0"), Attach("w-1")};
  Pass();
  EXPECT_EQ(View(last).state(), v1::PREPARING) << View(last).message();
  EXPECT_EQ(View(behind).state(), v1::QUEUED);
  EXPECT_EQ(View(behind).waiting().reason(), "WAITS_FOR_ITS_TURN");
  EXPECT_EQ(View(behind).waiting().message(), "1000 jobs are ahead of it in the queue");
  EXPECT_EQ(View(behind).waiting().position(), 1001);
  Pass();
  EXPECT_EQ(View(behind).state(), v1::PREPARING) << View(behind).message();
}

// Neither at its start nor when it recovers or grows.
TEST_F(SchedulerTest, AJobTakesOnlyWorkersWhoseDevicesCanShareItsModel) {
  v1::JobSpec policy;
  policy.mutable_resources()->set_tensor_parallel(2);
  policy.mutable_resources()->mutable_workers()->set_max(3);
  const uint64_t job = AddJob(/*graph=*/nullptr, policy);
  attached_ = {Attach("p-0"), AttachWorker("w-0", 1), AttachWorker("w-1", 3)};
  Pass();
  now_ += absl::Seconds(10);
  Pass();
  EXPECT_EQ(View(job).state(), v1::QUEUED);
  EXPECT_EQ(View(job).waiting().message(),
            "needs 1 worker, 0 free of the 0 attached whose devices fit "
            "resources.tensor_parallel (those of 2 do not): start more, or submit it with fewer "
            "(resources.workers.min)");

  attached_.push_back(AttachWorker("w-2", 2));
  Pass();
  EXPECT_EQ(View(job).state(), v1::PREPARING) << View(job).message();
  EXPECT_THAT(View(job).workers(), ElementsAre("w-2"));

  for (const char* member : {"w-2", "p-0"}) Tell(job, member, v1::MEMBER_PREPARED);
  now_ += Job::kJoinAfter;
  attached_.push_back(AttachWorker("w-3", 4));
  Pass();
  EXPECT_NE(WarmUpPlanOf(*attached_.back()).rehearsal(), 0);
  EXPECT_THAT(TakeAll(*attached_[1]), ::testing::IsEmpty());
}

TEST_F(SchedulerTest, AJobWithLogicalWorkersGrowsToUsefulNumbers) {
  const uint64_t job = RunElasticJob(/*workers_max=*/8, /*logical=*/8);
  std::vector<std::shared_ptr<Attachment>> free;
  for (const char* name : {"w-1", "w-2", "w-3"}) free.push_back(Attach(name));
  Pass();
  for (const auto& worker : free) EXPECT_NE(WarmUpPlanOf(*worker).rehearsal(), 0);
  // A warm-up of two of them would leave one without a use.
  fleet_->Detach(*free[0], Fleet::Departure::kOrderly);
  {
    JobRegistry::Transaction transaction(registry_.get());
    transaction.FindNumber(job)->job.MemberLost("w-1", "crashed", now_);
  }
  const auto substitute = Attach("w-4");
  Pass();
  const v1::JobPlan plan = WarmUpPlanOf(*substitute);
  ASSERT_EQ(plan.workers_size(), 4);
  for (const char* name : {"w-2", "w-3", "w-4"}) {
    BeginWarmUp(job, name, plan, v1::MEMBER_PREPARED);
  }
  Pass();
  EXPECT_EQ(View(job).reason(), "WORKERS_JOIN");
  for (const char* member : {"w-0", "p-0"}) Tell(job, member, v1::MEMBER_HALTED);
  Settle();
  Pass();
  EXPECT_THAT(View(job).workers(), ElementsAre("w-0", "w-2", "w-3", "w-4"));
  for (const char* member : {"w-0", "w-2", "w-3", "w-4", "p-0"}) {
    Tell(job, member, v1::MEMBER_PREPARED);
  }
  Settle();
  ASSERT_EQ(View(job).state(), v1::RUNNING) << View(job).message();
  now_ += Job::kJoinAfter;
  const auto fifth = Attach("w-5");
  Pass();
  EXPECT_TRUE(fifth->TakeDirectives().empty()) << "five workers are as fast as four";
}

TEST_F(SchedulerTest, MembersOfAPlanInProgressAreTaken) {
  Attach("w-0");
  Attach("p-0");
  const uint64_t first = AddJob();
  scheduler_.Pass();
  const uint64_t second = AddJob();

  scheduler_.Pass();
  go_.Notify();
  Settle();

  EXPECT_EQ(View(first).state(), v1::PREPARING);
  EXPECT_EQ(View(second).state(), v1::QUEUED);
}

TEST_F(SchedulerTest, AResumedJobWaitsForTheCheckpointThatIsBeingCommitted) {
  const uint64_t job = AddJob();
  attached_ = {Attach("w-0"), Attach("p-0")};
  ChangeRounds(job, &CheckpointRounds::BeginCommit);
  now_ += limits::kAttachBackoffMax + absl::Seconds(10);
  Pass();
  EXPECT_EQ(View(job).state(), v1::QUEUED);
  ChangeRounds(job, &CheckpointRounds::EndCommit);
  Pass();
  EXPECT_EQ(View(job).state(), v1::PREPARING) << View(job).message();
}

TEST_F(SchedulerTest, ReportsAndFailsAJobWhoseCommitDoesNotEnd) {
  v1::JobSpec policy;
  policy.mutable_start_timeout()->set_seconds(600);
  const uint64_t job = AddJob(/*graph=*/nullptr, policy);
  attached_ = {Attach("w-0"), Attach("p-0")};
  ChangeRounds(job, &CheckpointRounds::BeginCommit);
  now_ += absl::Minutes(1);
  Pass();
  EXPECT_EQ(View(job).reason(), "WAITS_FOR_CHECKPOINT");
  EXPECT_THAT(View(job).message(), StartsWith("waits for its checkpoint, which is still being"));
  const int64_t revision = View(job).revision();
  Pass();
  EXPECT_EQ(View(job).revision(), revision) << "reported once";
  now_ += absl::Minutes(9);
  Pass();
  EXPECT_EQ(View(job).state(), v1::FAILED) << "it has never run";
  EXPECT_THAT(View(job).message(), HasSubstr("its checkpoint, which is still being committed"));
}

TEST_F(SchedulerTest, ReasonChangesAfterTheCommitAndTheWaitCounts) {
  const uint64_t job = AddElasticJob();
  ChangeRounds(job, &CheckpointRounds::BeginCommit);
  Pass();
  now_ += limits::kAttachBackoffMax + absl::Minutes(1);
  Pass();
  EXPECT_EQ(View(job).reason(), "WAITS_FOR_CHECKPOINT");
  ChangeRounds(job, &CheckpointRounds::EndCommit);
  Pass();
  EXPECT_EQ(View(job).reason(), "WAITS_FOR_MEMBERS");
  attached_ = {Attach("w-0"), Attach("p-0")};
  Pass();
  EXPECT_EQ(View(job).state(), v1::PREPARING) << "its earlier wait for a second worker counts";
}

TEST_F(SchedulerTest, AJobThatIsCancelledDuringPlanningDoesNotStart) {
  Attach("w-0");
  Attach("p-0");
  const uint64_t job = AddJob();
  scheduler_.Pass();
  {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(job);
    EXPECT_TRUE(entry.job.Cancel(now_).ok());
    transaction.Commit(entry);
  }
  go_.Notify();
  Settle();

  EXPECT_EQ(View(job).state(), v1::CANCELLED);
  EXPECT_EQ(View(job).generation(), 0);
}

TEST_F(SchedulerTest, AJobThatLosesAMemberDuringPlanningWaitsForAnother) {
  const auto worker = Attach("w-0");
  Attach("p-0");
  const uint64_t job = AddJob();
  scheduler_.Pass();
  EXPECT_EQ(fleet_->Detach(*worker, Fleet::Departure::kOrderly), Fleet::Loss::kMember);
  go_.Notify();
  Settle();
  EXPECT_EQ(View(job).state(), v1::QUEUED);

  Attach("w-1");
  Pass();

  EXPECT_EQ(View(job).state(), v1::PREPARING);
  EXPECT_EQ(View(job).workers(0), "w-1");
}

TEST_F(SchedulerTest, AJobTooLargeForEveryPsSaysSoAndWaitsForALargerOne) {
  const uint64_t job = AddJob();
  Attach("w-0");
  AttachPs("p-0", /*memory_bytes=*/64);
  Pass();
  Pass();

  EXPECT_EQ(View(job).state(), v1::QUEUED);
  EXPECT_EQ(View(job).reason(), "MEMORY_TOO_SMALL");
  EXPECT_THAT(View(job).message(), HasSubstr("the largest, p-0, has 64 B (--memory_bytes)"));
  const uint64_t revision = View(job).revision();
  Pass();
  EXPECT_EQ(View(job).revision(), revision) << "reported once";

  AttachPs("p-1", 1 << 20);
  Pass();

  EXPECT_EQ(View(job).state(), v1::PREPARING) << View(job).message();
  EXPECT_EQ(View(job).ps(0), "p-1");
}

TEST_F(SchedulerTest, StartsFromThePreviousCheckpointIfTheLastOneIsDamaged) {
  const uint64_t job = AddJob();
  GiveCheckpoints(job, {2, 4, 6});
  const std::string damaged = CheckpointPath(CheckpointsOf(job), 6) + "/manifest.json";
  WriteWhole(damaged, "{}");
  Attach("w-0");
  Attach("p-0");
  Pass();
  EXPECT_EQ(View(job).state(), v1::QUEUED) << "it changed during planning";
  EXPECT_EQ(View(job).checkpoint(), "jobs/line-1/checkpoints/4");

  Pass();

  EXPECT_EQ(View(job).state(), v1::PREPARING) << View(job).message();
  EXPECT_THAT(StoredSteps(job), ElementsAre(2, 4));
  const auto events = store_->Events(job, 0, 100);
  ASSERT_TRUE(events.ok()) << events.status();
  const auto event = std::ranges::find_if(
      *events, [](const auto& event) { return event.reason() == "CHECKPOINT_DAMAGED"; });
  ASSERT_NE(event, events->end());
  EXPECT_THAT(event->message(), AllOf(HasSubstr(damaged), HasSubstr("line-1@4 is used")));
  EXPECT_THAT(metrics_.Render(), HasSubstr("\nmuster_checkpoint_damaged_total 1\n"));
  JobRegistry::Transaction transaction(registry_.get());
  const Job& started = transaction.FindNumber(job)->job;
  EXPECT_EQ(started.plan()->restore(), "jobs/line-1/checkpoints/4");
  EXPECT_EQ(started.plan()->first_step(), 4);
}

TEST_F(SchedulerTest, StartsFromThePreviousCheckpointIfTheLastOneIsUnreadable) {
  const uint64_t job = AddJob();
  GiveCheckpoints(job, {2, 4, 6});
  const std::string manifest = CheckpointPath(CheckpointsOf(job), 6) + "/manifest.json";
  std::filesystem::remove(manifest);
  std::filesystem::create_symlink(manifest, manifest);
  Attach("w-0");
  Attach("p-0");
  for (int i = 0; i < 2; ++i) Pass();

  EXPECT_EQ(View(job).state(), v1::PREPARING) << View(job).message();
  EXPECT_EQ(View(job).checkpoint(), "jobs/line-1/checkpoints/4");
  EXPECT_THAT(StoredSteps(job), ElementsAre(2, 4, 6)) << "it may be readable again";
  const auto events = store_->Events(job, 0, 100);
  ASSERT_TRUE(events.ok()) << events.status();
  const auto event = std::ranges::find_if(
      *events, [](const auto& event) { return event.reason() == "CHECKPOINT_UNREADABLE"; });
  ASSERT_NE(event, events->end());
  EXPECT_THAT(event->message(), AllOf(HasSubstr(manifest + ": open: too many levels"),
                                      HasSubstr("line-1@4 is used")));
  EXPECT_THAT(metrics_.Render(), HasSubstr("\nmuster_checkpoint_damaged_total 0\n"));
}

TEST_F(SchedulerTest, AJobThatWaitsForMemoryDoesNotReadItsCheckpoint) {
  const uint64_t job = AddJob();
  GiveCheckpoints(job, {2, 4});
  WriteWhole(CheckpointPath(CheckpointsOf(job), 4) + "/manifest.json", "{}");
  Attach("w-0");
  AttachPs("p-0", /*memory_bytes=*/64);
  for (int i = 0; i < 3; ++i) Pass();
  EXPECT_EQ(View(job).reason(), "MEMORY_TOO_SMALL");
  EXPECT_EQ(View(job).checkpoint(), "jobs/line-1/checkpoints/4") << "it was not read";

  AttachPs("p-1", 1 << 20);
  for (int i = 0; i < 2; ++i) Pass();

  EXPECT_EQ(View(job).state(), v1::PREPARING) << View(job).message();
  EXPECT_EQ(View(job).checkpoint(), "jobs/line-1/checkpoints/2");
}

TEST_F(SchedulerTest, AJobWithOnlyDamagedCheckpointsFails) {
  const uint64_t job = AddJob();
  GiveCheckpoints(job, {2});
  WriteWhole(CheckpointPath(CheckpointsOf(job), 2) + "/manifest.json", "{}");
  Attach("w-0");
  Attach("p-0");

  Pass();

  EXPECT_EQ(View(job).state(), v1::FAILED);
  EXPECT_EQ(View(job).reason(), "CHECKPOINT_DAMAGED");
  EXPECT_THAT(View(job).message(), HasSubstr("manifest.json"));
  EXPECT_THAT(StoredSteps(job), ElementsAre(2));
  EXPECT_THAT(metrics_.Render(), HasSubstr("\nmuster_checkpoint_damaged_total 1\n"));
}

// The second job starts after the first has ended. The same holds after a restart, when the plan of
// the first job comes from the store.
TEST_F(SchedulerTest, AJobWaitsForPsMemoryOfOtherJobs) {
  Attach("w-0");
  Attach("w-1");
  const auto unbounded = Attach("p-0");
  const uint64_t probe = AddJob();
  Pass();
  const int64_t need = NeedOf(probe);
  ASSERT_GT(need, 0);
  Cancel(probe);
  EXPECT_EQ(fleet_->Detach(*unbounded, Fleet::Departure::kOrderly), Fleet::Loss::kMember);
  AttachPs("p-1", 2 * need - 1);

  const uint64_t first = AddJob();
  Pass();
  const uint64_t second = AddJob();
  Pass();
  Pass();

  EXPECT_EQ(View(first).state(), v1::PREPARING);
  EXPECT_EQ(View(second).state(), v1::QUEUED);
  EXPECT_EQ(View(second).reason(), "WAITS_FOR_MEMORY");
  EXPECT_THAT(View(second).message(),
              AllOf(HasSubstr(absl::StrCat("need up to ", FormatBytes(need), " on each of 1 ps")),
                    HasSubstr(absl::StrCat(FormatBytes(need - 1), " of ", FormatBytes(2 * need - 1),
                                           ", on p-1"))));

  Scheduler restarted(registry_.get(), fleet_.get());
  for (int i = 0; i < 2; ++i) {
    restarted.Pass();
    restarted.AwaitIdle();
  }
  EXPECT_EQ(View(second).state(), v1::QUEUED);

  Cancel(first);
  Pass();

  EXPECT_EQ(View(second).state(), v1::PREPARING) << View(second).message();
}

// A job that has lost its only worker.
class RecoveringSchedulerTest : public SchedulerTest {
 protected:
  RecoveringSchedulerTest() {
    job_ = AddJob();
    const auto worker = Attach("w-0");
    Attach("p-0");
    Pass();
    Say("w-0", v1::MEMBER_PREPARED);
    Say("p-0", v1::MEMBER_PREPARED);
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(job_);
    EXPECT_EQ(entry.job.state(), v1::RUNNING);
    EXPECT_EQ(fleet_->Detach(*worker, Fleet::Departure::kOrderly), Fleet::Loss::kMember);
    entry.job.MemberLost("w-0", "gone", now_);
    EXPECT_EQ(entry.job.state(), v1::RECOVERING);
    transaction.Commit(entry);
  }

  void Say(const std::string& member, v1::MemberJobState state, int64_t step = 0) {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(job_);
    v1::JobReport report;
    report.set_job(JobIdOf(entry.job.record().name()));
    report.set_generation(entry.job.record().generation());
    report.set_state(state);
    report.set_next_step(step);
    report.set_oldest_version(step);
    report.mutable_dataset()->set_samples(1000);
    entry.job.Report(member, &report, now_);
    transaction.Commit(entry);
  }
  std::shared_ptr<const v1::JobPlan> Plan() {
    JobRegistry::Transaction transaction(registry_.get());
    return transaction.FindNumber(job_)->job.plan();
  }

  uint64_t job_ = 0;
};

TEST_F(RecoveringSchedulerTest, ContinuesWithAFreeWorkerAndTheHaltedShards) {
  const uint64_t other = AddJob();
  Attach("w-7");
  Say("p-0", v1::MEMBER_HALTED, 3);
  const auto before = Plan();
  Pass();

  EXPECT_EQ(View(job_).state(), v1::PREPARING) << View(job_).message();
  EXPECT_EQ(View(job_).workers(0), "w-7");
  EXPECT_EQ(View(other).state(), v1::QUEUED) << "a recovering job goes before a waiting one";
  EXPECT_EQ(Plan()->generation(), 2);
  EXPECT_EQ(Plan()->carries(), 1);
  EXPECT_EQ(Plan()->first_step(), 3);
  EXPECT_EQ(Plan()->chunks_size(), before->chunks_size());
  EXPECT_EQ(Plan()->shards(0).SerializeAsString(), before->shards(0).SerializeAsString());
  EXPECT_NE(Plan()->session_token(), before->session_token());
}

TEST_F(RecoveringSchedulerTest, ARecoveryInPlaceDoesNotWaitForOtherPlans) {
  absl::Notification go;
  Scheduler busy(registry_.get(), fleet_.get(), [&](const v1::ModelSpec& spec) {
    go.WaitForNotification();
    return BuildModel(spec);
  });
  Attach("w-6");
  Attach("w-7");
  const uint64_t other = AddJob();
  busy.Pass();  // begins to plan the other job; the ps of the first has not halted yet
  Say("p-0", v1::MEMBER_HALTED, 3);

  busy.Pass();

  {
    JobRegistry::Transaction transaction(registry_.get());
    auto prepares = [&] { return transaction.FindNumber(job_)->job.state() == v1::PREPARING; };
    transaction.AwaitFor(absl::Condition(&prepares), absl::Seconds(30));
    EXPECT_TRUE(prepares());
  }
  EXPECT_EQ(View(other).state(), v1::QUEUED);
  go.Notify();
}

TEST_F(SchedulerTest, AWarmUpDoesNotWaitForOtherPlans) {
  const uint64_t job = RunElasticJob();
  absl::Notification go;
  Scheduler busy(registry_.get(), fleet_.get(), [&](const v1::ModelSpec& spec) {
    go.WaitForNotification();
    return BuildModel(spec);
  });
  attached_.push_back(Attach("w-6"));
  const uint64_t other = AddJob();
  busy.Pass();  // begins to plan the other job
  attached_.push_back(Attach("w-7"));
  busy.Pass();
  {
    JobRegistry::Transaction transaction(registry_.get());
    auto warms_up = [&] { return !transaction.FindNumber(job)->job.warm_up().members().empty(); };
    transaction.AwaitFor(absl::Condition(&warms_up), absl::Seconds(30));
    EXPECT_TRUE(warms_up());
  }
  EXPECT_EQ(View(other).state(), v1::QUEUED);
  go.Notify();
}

// Reading a large checkpoint takes long, and keeps other jobs waiting.
TEST_F(SchedulerTest, StopsReadingACheckpointThatNoJobNeeds) {
  const uint64_t job = AddJob();
  GiveCheckpoints(job, {2});
  const auto worker = Attach("w-0");
  Attach("p-0");
  for (const bool cancelled : {false, true}) {
    absl::Notification reads;
    Scheduler scheduler(registry_.get(), fleet_.get(), BuildModel,
                        [&](const v1::Job&, const JobOrigin&, const StateFolder&,
                            const RestoreWatch& watch) -> absl::StatusOr<RestoreChoice> {
                          EXPECT_FALSE(watch.stop());
                          reads.Notify();
                          while (!watch.stop()) std::this_thread::yield();
                          return absl::CancelledError("no longer wanted");
                        });
    scheduler.Pass();
    reads.WaitForNotification();
    if (cancelled) {
      Cancel(job);
    } else {
      fleet_->Detach(*worker, Fleet::Departure::kOrderly);
    }
    scheduler.AwaitIdle();
    EXPECT_EQ(View(job).state(), cancelled ? v1::CANCELLED : v1::QUEUED);
    attached_.push_back(Attach("w-1"));
  }
}

TEST_F(RecoveringSchedulerTest, ShardsInPlaceNeedNoCheckpoint) {
  GiveCheckpoints(job_, {2});
  WriteWhole(CheckpointPath(CheckpointsOf(job_), 2) + "/manifest.json", "{}");
  Attach("w-7");
  Say("p-0", v1::MEMBER_HALTED, 3);

  Pass();

  EXPECT_EQ(View(job_).state(), v1::PREPARING) << View(job_).message();
  EXPECT_EQ(Plan()->carries(), 1);
}

TEST_F(RecoveringSchedulerTest, WithoutItsShardsItContinuesFromTheNewestSoundCheckpoint) {
  GiveCheckpoints(job_, {2, 4});
  WriteWhole(CheckpointPath(CheckpointsOf(job_), 4) + "/manifest.json", "{}");
  Attach("w-7");
  {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(job_);
    entry.job.Report("p-0", nullptr, now_);
    transaction.Commit(entry);
  }

  Pass();
  EXPECT_EQ(View(job_).state(), v1::RECOVERING) << "it changed during planning";
  Pass();

  EXPECT_EQ(View(job_).state(), v1::PREPARING) << View(job_).message();
  EXPECT_EQ(Plan()->restore(), "jobs/line-1/checkpoints/2");
  EXPECT_EQ(Plan()->first_step(), 2);
}

// A ps that is stopped during an upload keeps its stream open for long, so no job waits for that.
TEST_F(RecoveringSchedulerTest, WithoutItsShardsItWaitsForACommitButNotForAnUpload) {
  Attach("w-7");
  const auto change = [&](const std::function<void(JobRegistry::Entry&)>& change) {
    JobRegistry::Transaction transaction(registry_.get());
    change(*transaction.FindNumber(job_));
    transaction.Commit(*transaction.FindNumber(job_));
  };
  change([&](JobRegistry::Entry& entry) {
    entry.rounds.BeginStream();
    entry.rounds.BeginCommit();
    entry.job.Report("p-0", nullptr, now_);
  });
  const uint64_t other = AddJob();
  Pass();
  EXPECT_EQ(View(job_).state(), v1::RECOVERING) << "a newer checkpoint may soon be committed";
  EXPECT_EQ(View(other).state(), v1::QUEUED) << "the recovering job continues soon";
  now_ += absl::Minutes(1);
  Pass();
  EXPECT_EQ(View(other).state(), v1::PREPARING) << "the volume hangs";
  EXPECT_EQ(View(job_).reason(), "WAITS_FOR_CHECKPOINT");
  EXPECT_THAT(View(job_).message(), HasSubstr("; waits for its checkpoint, which is still being"));
  Attach("w-8");
  change([](JobRegistry::Entry& entry) { entry.rounds.EndCommit(); });

  Pass();

  EXPECT_EQ(View(job_).state(), v1::PREPARING) << View(job_).message();
}

// The commit goes on, and the job has its checkpoint when it is resumed.
TEST_F(RecoveringSchedulerTest, AJobWhoseCommitDoesNotEndCanBeSuspended) {
  {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(job_);
    entry.rounds.BeginCommit();
    entry.job.Report("p-0", nullptr, now_);
    EXPECT_TRUE(entry.job.Suspend(now_).ok());
    EXPECT_EQ(entry.job.state(), v1::SUSPENDED);
    v1::Checkpoint checkpoint;
    checkpoint.set_name(entry.job.record().name() + "/checkpoints/2");
    checkpoint.set_step(2);
    entry.job.CheckpointCommitted(checkpoint, now_);
    transaction.Commit(entry);
  }
  registry_->Settle();
  EXPECT_EQ(View(job_).checkpoint(), View(job_).name() + "/checkpoints/2");
}

TEST_F(RecoveringSchedulerTest, ReportsWhatItWaitsFor) {
  Pass();
  EXPECT_EQ(View(job_).reason(), "MEMBER_LOST") << "p-0 has not stopped yet";
  Say("p-0", v1::MEMBER_HALTED, 3);
  Pass();
  EXPECT_EQ(View(job_).reason(), "MEMBER_LOST") << "a worker may attach";
  now_ += absl::Seconds(10);
  Pass();
  EXPECT_EQ(View(job_).state(), v1::RECOVERING);
  EXPECT_EQ(View(job_).reason(), "WAITS_FOR_MEMBERS");
  EXPECT_THAT(View(job_).message(), HasSubstr("it has 0 workers and needs 1"));
  {
    JobRegistry::Transaction transaction(registry_.get());
    transaction.FindNumber(job_)->rounds.BeginCommit();
  }
  const int64_t revision = View(job_).revision();
  now_ += absl::Minutes(2);
  Pass();
  EXPECT_EQ(View(job_).revision(), revision) << "its shards need no checkpoint";
}

TEST_F(RecoveringSchedulerTest, DoesNotChooseALeavingWorker) {
  Attach("w-7");
  ASSERT_TRUE(fleet_->SetLeaving("w-7"));
  Say("p-0", v1::MEMBER_HALTED, 3);
  Pass();
  EXPECT_EQ(View(job_).state(), v1::RECOVERING);
  Attach("w-8");
  Pass();
  EXPECT_EQ(View(job_).workers(0), "w-8");
}

TEST_F(SchedulerTest, FreeWorkersJoinARunningJobIfNoJobWaitsForThem) {
  const uint64_t job = RunElasticJob();
  const uint64_t waiting = AddElasticJob();
  Pass();
  EXPECT_EQ(View(job).state(), v1::RUNNING) << "no worker is free";
  const auto newcomer = Attach("w-1");
  Pass();
  EXPECT_EQ(View(job).state(), v1::RUNNING) << "another job waits";
  Cancel(waiting);
  Pass();
  EXPECT_EQ(View(job).state(), v1::RUNNING) << "the newcomer prepares first";
  const v1::JobPlan plan = WarmUpPlanOf(*newcomer);
  EXPECT_NE(plan.rehearsal(), 0);
  EXPECT_EQ(plan.generation(), 1);
  EXPECT_EQ(plan.session_token(), "") << "it is no member yet";
  ASSERT_EQ(plan.workers_size(), 2);
  EXPECT_EQ(plan.workers(1).member(), "w-1");
  EXPECT_EQ(plan.workers(1).first_position(), 4);
  EXPECT_EQ(plan.workers(1).samples(), 4);
  EXPECT_GT(plan.graph().parameters_size(), 0);
  Pass();
  EXPECT_TRUE(newcomer->TakeDirectives().empty()) << "sent once";

  BeginWarmUp(job, "w-1", plan, v1::MEMBER_PREPARED);
  Pass();
  EXPECT_EQ(View(job).state(), v1::RECOVERING);
  EXPECT_EQ(View(job).reason(), "WORKERS_JOIN");
}

TEST_F(SchedulerTest, RunningJobYieldsWorkersAboveItsMinimumToAJobThatWaitsForLong) {
  const uint64_t job = AddElasticJob();
  for (const char* name : {"p-0", "w-0", "w-1"}) attached_.push_back(Attach(name));
  Pass();
  ASSERT_EQ(View(job).workers_size(), 2);
  const auto tell_all = [&](v1::MemberJobState state, const std::vector<const char*>& members) {
    for (const char* member : members) Tell(job, member, state);
  };
  tell_all(v1::MEMBER_PREPARED, {"w-0", "w-1", "p-0"});
  now_ += Job::kJoinAfter;
  const uint64_t waiting = AddElasticJob();
  Pass();
  EXPECT_EQ(View(job).state(), v1::RUNNING) << "the other job has just arrived";
  now_ += absl::Minutes(1);
  Pass();
  EXPECT_EQ(View(job).state(), v1::RECOVERING);
  EXPECT_EQ(View(job).reason(), "WORKERS_YIELD");
  EXPECT_THAT(View(job).message(), HasSubstr("continues with 1 of 2 workers"));
  EXPECT_FALSE(View(job).has_recovery()) << "no member failed";

  tell_all(v1::MEMBER_HALTED, {"w-0", "w-1", "p-0"});
  Pass();
  EXPECT_THAT(View(job).workers(), ElementsAre("w-0"));
  tell_all(v1::MEMBER_PREPARED, {"w-0", "p-0"});
  Pass();
  EXPECT_EQ(View(job).state(), v1::RUNNING);
  EXPECT_THAT(View(waiting).workers(), ElementsAre("w-1"));
}

// Otherwise workers that arrive one after the other would restart the warm-up each time.
TEST_F(SchedulerTest, LateWorkerJoinsTheNextWarmUp) {
  const uint64_t job = RunElasticJob(/*workers_max=*/3);
  const auto first = Attach("w-2");
  Pass();
  const v1::JobPlan plan = WarmUpPlanOf(*first);
  const auto second = Attach("w-1");
  Pass();
  EXPECT_TRUE(first->TakeDirectives().empty()) << "the warm-up continues";
  EXPECT_TRUE(second->TakeDirectives().empty());
  EXPECT_EQ(View(job).state(), v1::RUNNING);

  BeginWarmUp(job, "w-2", plan, v1::MEMBER_PREPARED);
  Pass();
  ASSERT_EQ(View(job).reason(), "WORKERS_JOIN");
  for (const char* member : {"w-0", "p-0"}) Tell(job, member, v1::MEMBER_HALTED);
  Settle();
  Pass();
  EXPECT_THAT(View(job).workers(), ElementsAre("w-0", "w-2")) << "the job does not wait for w-1";

  for (const char* member : {"w-0", "w-2", "p-0"}) Tell(job, member, v1::MEMBER_PREPARED);
  Settle();
  ASSERT_EQ(View(job).state(), v1::RUNNING) << View(job).message();
  now_ += Job::kJoinAfter;
  second->TakeDirectives();
  Pass();
  EXPECT_NE(WarmUpPlanOf(*second).rehearsal(), 0);
}

TEST_F(SchedulerTest, AWorkerThatCannotWarmUpDoesNoHarm) {
  const uint64_t job = RunElasticJob();
  const auto broken = Attach("w-1");
  Pass();
  BeginWarmUp(job, "w-1", WarmUpPlanOf(*broken), v1::MEMBER_FAILED);
  Pass();
  Pass();
  const std::vector<MemberDirective> told = TakeAll(*broken);
  ASSERT_EQ(told.size(), 1u) << "it is not asked again";
  EXPECT_TRUE(told[0].directive.has_release());
  EXPECT_EQ(View(job).state(), v1::RUNNING);
  EXPECT_EQ(View(job).workers_size(), 1);

  const auto sound = Attach("w-2");
  Pass();
  const v1::JobPlan plan = WarmUpPlanOf(*sound);
  EXPECT_EQ(plan.workers(1).member(), "w-2");
  BeginWarmUp(job, "w-2", plan, v1::MEMBER_PREPARED);
  Pass();
  EXPECT_EQ(View(job).reason(), "WORKERS_JOIN");
}

TEST_F(SchedulerTest, AWorkerWithOtherDataDoesNotJoin) {
  const uint64_t job = RunElasticJob();
  const auto other = Attach("w-1");
  Pass();
  BeginWarmUp(job, "w-1", WarmUpPlanOf(*other), v1::MEMBER_PREPARED, /*samples=*/999);
  Pass();
  Pass();
  const std::vector<MemberDirective> told = TakeAll(*other);
  ASSERT_EQ(told.size(), 1u) << "it is not asked again";
  EXPECT_TRUE(told[0].directive.has_release());
  EXPECT_EQ(View(job).state(), v1::RUNNING) << View(job).message();
}

// Its workers would compute other bits.
TEST_F(SchedulerTest, AJobWaitsForAWorkerOfItsDeviceKindWhileOthersStart) {
  v1::JobSpec policy;
  v1::WorkerCount& workers = *policy.mutable_resources()->mutable_workers();
  workers.set_min(2);
  workers.set_max(2);
  workers.set_logical(8);
  const uint64_t job = AddJob(/*graph=*/nullptr, policy);
  const auto tell = [&](const std::string& worker, const std::string& kind) {
    Tell(job, worker, v1::MEMBER_PREPARED, /*warm_up=*/0, /*samples=*/1000, kind);
    Settle();
  };
  for (const char* name : {"p-0", "w-0", "w-1"}) attached_.push_back(Attach(name));
  Pass();
  Tell(job, "p-0", v1::MEMBER_PREPARED);
  for (const char* name : {"w-0", "w-1"}) tell(name, "7 threads");
  ASSERT_EQ(View(job).state(), v1::RUNNING) << View(job).message();

  fleet_->Detach(*attached_[2], Fleet::Departure::kOrderly);
  {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(job);
    entry.job.MemberLost("w-1", "crashed", now_);
    transaction.Commit(entry);
  }
  for (const char* name : {"w-0", "p-0"}) Tell(job, name, v1::MEMBER_HALTED);
  for (const char* other : {"w-2", "w-4"}) {
    attached_.push_back(Attach(other));
    now_ += absl::Minutes(1);
    Pass();
    ASSERT_THAT(View(job).workers(), ElementsAre("w-0", other));
    Tell(job, "p-0", v1::MEMBER_PREPARED);
    tell("w-0", "7 threads");
    tell(other, "4 threads");
    EXPECT_EQ(View(job).state(), v1::RECOVERING) << View(job).message();
    EXPECT_EQ(View(job).reason(), "DEVICE_KINDS_DIFFER");
    for (const char* name : {"w-0", "p-0"}) Tell(job, name, v1::MEMBER_HALTED);
  }
  for (int i = 0; i < 5; ++i) {
    now_ += absl::Minutes(1);
    Pass();
  }
  EXPECT_EQ(View(job).state(), v1::RECOVERING) << "it does not try w-2 again";
  EXPECT_EQ(View(job).reason(), "WAITS_FOR_MEMBERS");
  EXPECT_THAT(View(job).message(),
              HasSubstr("it has 1 worker and needs 2, it has 1 of its 1 ps; 2 workers have other "
                        "devices than it needs"));
  EXPECT_EQ(View(job).recovery().in_row(), 1);

  for (const char* other : {"w-2", "w-4"}) {
    const uint64_t started = AddJob();
    Pass();
    EXPECT_THAT(View(started).workers(), ElementsAre(other)) << "nothing is reserved";
  }
  attached_.push_back(Attach("w-3"));
  Pass();
  EXPECT_EQ(View(job).state(), v1::PREPARING) << View(job).message();
  EXPECT_THAT(View(job).workers(), ElementsAre("w-0", "w-3"));
}

// A job of one worker, which is lost after another worker failed to prepare for it.
class ExcludedSchedulerTest : public SchedulerTest {
 protected:
  ExcludedSchedulerTest() {
    job_ = RunElasticJob();
    attached_.push_back(Attach("w-1"));
    Pass();
    BeginWarmUp(job_, "w-1", WarmUpPlanOf(*attached_.back()), v1::MEMBER_FAILED);
    fleet_->Detach(*attached_[1], Fleet::Departure::kOrderly);
    {
      JobRegistry::Transaction transaction(registry_.get());
      JobRegistry::Entry& entry = *transaction.FindNumber(job_);
      entry.job.MemberLost("w-0", "crashed", now_);
      transaction.Commit(entry);
    }
    Tell(job_, "p-0", v1::MEMBER_HALTED);
  }
  uint64_t job_ = 0;
};

TEST_F(ExcludedSchedulerTest, AnExcludedWorkerIsNotChosenIfAnotherIsFree) {
  Pass();
  EXPECT_EQ(View(job_).state(), v1::RECOVERING) << "a worker may attach";
  attached_.push_back(Attach("w-2"));
  Pass();
  EXPECT_EQ(View(job_).state(), v1::PREPARING) << View(job_).message();
  EXPECT_THAT(View(job_).workers(), ElementsAre("w-2"));
}

TEST_F(ExcludedSchedulerTest, AnExcludedWorkerIsTriedIfNoOtherIsFree) {
  now_ += absl::Seconds(10);
  Pass();
  EXPECT_EQ(View(job_).state(), v1::PREPARING) << View(job_).message();
  EXPECT_THAT(View(job_).workers(), ElementsAre("w-1"));
}

TEST_F(ExcludedSchedulerTest, AnExcludedWorkerOnTrialLosesItsRankToOthers) {
  now_ += absl::Seconds(10);
  Pass();
  ASSERT_THAT(View(job_).workers(), ElementsAre("w-1"));
  for (const char* name : {"w-2", "p-1"}) attached_.push_back(Attach(name));
  {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(job_);
    entry.job.MemberLost("p-0", "crashed", now_);
    transaction.Commit(entry);
  }
  Tell(job_, "w-1", v1::MEMBER_HALTED);
  now_ += absl::Seconds(10);
  Pass();
  EXPECT_EQ(View(job_).state(), v1::PREPARING) << View(job_).message();
  EXPECT_THAT(View(job_).workers(), ElementsAre("w-2"));
}

TEST_F(ExcludedSchedulerTest, AJobThatIsStoppingDoesNotTryAnExcludedWorker) {
  {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(job_);
    EXPECT_TRUE(entry.job.Suspend(now_).ok());
    transaction.Commit(entry);
  }
  now_ += absl::Seconds(10);
  Pass();
  EXPECT_EQ(View(job_).state(), v1::SUSPENDED) << View(job_).message();
}

TEST_F(SchedulerTest, AWorkerThatWarmsUpIsFreeForAWaitingJob) {
  const uint64_t job = RunElasticJob();
  const auto newcomer = Attach("w-1");
  Pass();
  const v1::JobPlan plan = WarmUpPlanOf(*newcomer);
  const uint64_t waiting = AddJob();
  now_ += absl::Seconds(10);
  Pass();
  EXPECT_EQ(View(waiting).state(), v1::PREPARING);
  BeginWarmUp(job, "w-1", plan, v1::MEMBER_PREPARED);
  Pass();
  EXPECT_EQ(View(job).state(), v1::RUNNING) << "the worker is taken";
}

// The coordinator has been up for long enough that members would have reattached.
TEST_F(SchedulerTest, AJobThatWaitsTooLongFailsWithTheMembersThatItLacks) {
  v1::JobSpec policy;
  policy.mutable_start_timeout()->set_seconds(60);
  const uint64_t patient = AddJob(), job = AddJob(/*graph=*/nullptr, policy);
  attached_.push_back(Attach("p-0"));
  now_ += absl::Seconds(100);
  Pass();
  EXPECT_EQ(View(job).state(), v1::QUEUED) << "members may not have reattached yet";
  now_ += FailureDetector::kRestartGrace;

  Pass();

  EXPECT_EQ(View(patient).state(), v1::QUEUED);
  EXPECT_EQ(View(job).state(), v1::FAILED);
  EXPECT_EQ(View(job).reason(), "START_TIMEOUT");
  EXPECT_THAT(View(job).message(),
              AllOf(HasSubstr("waited for 2m10s (start_timeout: 1m)"),
                    HasSubstr("it needs 1 workers and 1 ps; 0 workers are free of 0, and there "
                              "are 1 ps")));
}

// A job whose members report the step at which they are.
class SteppingSchedulerTest : public SchedulerTest {
 protected:
  void Report(const std::string& member, v1::MemberJobState state, int64_t next_step) {
    v1::JobReport said;
    said.set_job(JobIdOf(View(job_).name()));
    said.set_generation(View(job_).generation());
    said.set_state(state);
    said.set_next_step(next_step);
    said.set_oldest_version(next_step);
    said.mutable_dataset()->set_samples(100);
    Change([&](Job& job) {
      for (int shard = 0; shard < job.plan()->shards_size(); ++shard) {
        if (job.plan()->shards(shard).backup().member() != member) continue;
        v1::HeldBackup& held = *said.add_backups();
        held.set_shard(shard);
        held.set_oldest_version(next_step);
        held.set_newest_version(next_step);
      }
      job.Report(member, &said, now_);
    });
  }
  void Change(const std::function<void(Job&)>& change) {
    {
      JobRegistry::Transaction transaction(registry_.get());
      JobRegistry::Entry& entry = *transaction.FindNumber(job_);
      change(entry.job);
      transaction.Commit(entry);
    }
    Settle();
  }

  uint64_t job_ = 0;
};

// A coordinator is restarted while a job of two workers is at step 3.
class RestartedSchedulerTest : public SteppingSchedulerTest {
 protected:
  // With two ps, each has the replicas of the other's shards.
  void RunAndRestart(int ps, int max_restarts = 10) {
    v1::JobSpec policy;
    policy.mutable_resources()->mutable_workers()->set_min(2);
    policy.mutable_resources()->mutable_workers()->set_max(2);
    policy.mutable_resources()->set_ps(ps);
    policy.mutable_resources()->set_ps_replication(ps);
    policy.mutable_restart()->set_max_restarts(max_restarts);
    job_ = AddJob(/*graph=*/nullptr, policy);
    std::vector<std::string> names = {"w-0", "w-1", "p-0"};
    if (ps == 2) names.push_back("p-1");
    for (const std::string& name : names) attached_.push_back(Attach(name));
    now_ += absl::Seconds(30);
    Pass();
    for (const std::string& name : names) Report(name, v1::MEMBER_PREPARED, 0);
    for (const std::string& name : names) Report(name, v1::MEMBER_RUNNING, 3);
    ASSERT_EQ(View(job_).state(), v1::RUNNING);
    Change([this](Job& job) { job = Job(job.record(), job.plan(), /*term=*/2, now_); });
  }
  // The node of this member is lost. The others reattach to the coordinator after a second.
  void ComeBackWithout(const std::string& missing) {
    now_ += absl::Seconds(1);
    for (const auto& attachment : attached_) {
      const std::string name = attachment->member();
      if (name == missing) {
        fleet_->Detach(*attachment, Fleet::Departure::kOrderly);
      } else {
        Report(name, v1::MEMBER_RUNNING, 3);
      }
    }
  }
};

TEST_F(RestartedSchedulerTest, AFreeWorkerReplacesAMissingOneBeforeTheGraceEnds) {
  RunAndRestart(/*ps=*/1);
  ComeBackWithout("w-1");
  Attach("w-2");
  now_ += FailureDetector::kReturnTime - absl::Milliseconds(1);
  Pass();
  EXPECT_EQ(View(job_).state(), v1::RUNNING) << "w-1 may still reattach";
  now_ += absl::Milliseconds(1);

  Pass();

  EXPECT_EQ(View(job_).state(), v1::RECOVERING);
  EXPECT_EQ(View(job_).reason(), "MEMBER_LOST");
  EXPECT_THAT(View(job_).message(),
              AllOf(HasSubstr("w-1 (worker, rank 1"), HasSubstr("did not come back within 5s")));
  Report("w-0", v1::MEMBER_HALTED, 3);
  Report("p-0", v1::MEMBER_HALTED, 3);
  Pass();
  EXPECT_EQ(View(job_).state(), v1::PREPARING) << View(job_).message();
  EXPECT_THAT(View(job_).workers(), ElementsAre("w-0", "w-2"));
}

TEST_F(RestartedSchedulerTest, AMissingWorkerKeepsItsGraceIfNoWorkerIsFree) {
  RunAndRestart(/*ps=*/1);
  ComeBackWithout("w-1");
  now_ += FailureDetector::kRestartGrace - absl::Seconds(2);
  Pass();
  EXPECT_EQ(View(job_).state(), v1::RUNNING);
}

TEST_F(RestartedSchedulerTest, AMissingWorkerKeepsItsGraceIfItsLossWouldFailTheJob) {
  RunAndRestart(/*ps=*/1, /*max_restarts=*/0);
  ComeBackWithout("w-1");
  Attach("w-2");
  now_ += FailureDetector::kReturnTime;
  Pass();
  EXPECT_EQ(View(job_).state(), v1::RUNNING);
}

TEST_F(RestartedSchedulerTest, AMissingPsKeepsItsGraceIfItsShardsHaveNoReplicas) {
  RunAndRestart(/*ps=*/1);
  ComeBackWithout("p-0");
  Attach("p-2");
  now_ += FailureDetector::kReturnTime;
  Pass();
  EXPECT_EQ(View(job_).state(), v1::RUNNING);
}

TEST_F(RestartedSchedulerTest, AMissingPsWhoseShardsHaveReplicasIsGivenUp) {
  RunAndRestart(/*ps=*/2);
  ComeBackWithout("p-1");
  now_ += FailureDetector::kReturnTime;
  Pass();
  EXPECT_EQ(View(job_).state(), v1::RECOVERING);
  for (const char* name : {"w-0", "w-1", "p-0"}) Report(name, v1::MEMBER_HALTED, 3);
  Pass();
  EXPECT_EQ(View(job_).state(), v1::PREPARING) << View(job_).message();
  EXPECT_THAT(View(job_).ps(), ElementsAre("p-0"));
}

// A job of two workers at step 3 loses one of them, and no worker replaces it.
class SchedulerStopTest : public SteppingSchedulerTest {
 protected:
  // With two ps, each has the replicas of the other's shards.
  explicit SchedulerStopTest(int ps = 1) {
    v1::JobSpec policy;
    policy.mutable_start_timeout()->set_seconds(60);
    policy.mutable_resources()->mutable_workers()->set_min(2);
    policy.mutable_resources()->mutable_workers()->set_max(2);
    policy.mutable_resources()->set_ps(ps);
    policy.mutable_resources()->set_ps_replication(ps);
    job_ = AddJob(/*graph=*/nullptr, policy);
    std::vector<std::string> names = {"w-0", "w-1", "p-0"};
    if (ps == 2) names.push_back("p-1");
    for (const std::string& name : names) attached_.push_back(Attach(name));
    now_ += absl::Seconds(30);
    Pass();
    for (const std::string& name : names) Report(name, v1::MEMBER_PREPARED, 0);
    for (const std::string& name : names) Report(name, v1::MEMBER_RUNNING, 3);
    EXPECT_EQ(View(job_).state(), v1::RUNNING);
    now_ += FailureDetector::kRestartGrace;
    Lose(1);
    Report("w-0", v1::MEMBER_HALTED, 3);
    Report("p-0", v1::MEMBER_HALTED, 3);
  }

  void Lose(int worker) {
    fleet_->Detach(*attached_[worker], Fleet::Departure::kOrderly);
    Change([&](Job& job) { job.MemberLost(absl::StrCat("w-", worker), "crashed", now_); });
  }
  void Suspend() {
    Change([&](Job& job) { EXPECT_TRUE(job.Suspend(now_).ok()); });
  }
  void CommitWhatIsHalted() {
    GiveCheckpoints(job_, {3});
    registry_->Settle();
  }
};

TEST_F(SchedulerStopTest, AJobThatWaitsTooLongIsSavedFromItsHaltedShardsAndSuspended) {
  now_ += absl::Seconds(59);
  Pass();
  EXPECT_EQ(View(job_).reason(), "WAITS_FOR_MEMBERS");
  now_ += absl::Seconds(1);
  Pass();
  EXPECT_EQ(View(job_).stop_cause().reason(), "START_TIMEOUT");
  Pass();
  Lose(0);
  Pass();
  EXPECT_EQ(View(job_).state(), v1::RECOVERING) << "saving needs no worker";
  CommitWhatIsHalted();
  EXPECT_EQ(View(job_).state(), v1::SUSPENDED);
  EXPECT_EQ(View(job_).reason(), "START_TIMEOUT");
  EXPECT_THAT(View(job_).message(),
              AllOf(HasSubstr("it has 1 worker and needs 2"), HasSubstr("stopped at step 3")));
}

TEST_F(SchedulerStopTest, AJobThatIsSuspendedBeforeItWaitsRecoversWithFewerWorkers) {
  Suspend();
  now_ += absl::Seconds(3);
  Pass();
  EXPECT_EQ(View(job_).state(), v1::PREPARING);
  EXPECT_EQ(View(job_).workers_size(), 1) << "fewer than the two that it needs to continue";
}

TEST_F(SchedulerStopTest, WithoutWorkersItIsSavedFromItsHaltedShards) {
  Suspend();
  Lose(0);
  now_ += absl::Seconds(3);
  Pass();
  EXPECT_EQ(View(job_).state(), v1::RECOVERING);
  EXPECT_EQ(View(job_).reason(), "WAITS_FOR_MEMBERS");
  attached_.push_back(Attach("w-2"));
  Pass();
  EXPECT_EQ(View(job_).state(), v1::RECOVERING) << "a worker that attaches now is not needed";
  CommitWhatIsHalted();
  EXPECT_EQ(View(job_).state(), v1::SUSPENDED);
  EXPECT_EQ(View(job_).message(), "suspended at step 3");
}

// Several jobs of two workers have lost one worker each. None can continue, and no worker attaches.
// Another job runs on the only other worker.
class EntangledSchedulerTest : public SteppingSchedulerTest {
 protected:
  explicit EntangledSchedulerTest(int jobs = 2) : jobs_(jobs) {
    v1::JobSpec policy;
    policy.mutable_resources()->mutable_workers()->set_min(2);
    policy.mutable_resources()->mutable_workers()->set_max(2);
    for (int i = 0; i <= 2 * jobs; ++i) attached_.push_back(Attach(absl::StrCat("w-", i)));
    attached_.push_back(Attach("p-0"));
    now_ += absl::Seconds(30);
    job_ = AddJob();
    Pass();
    EXPECT_EQ(View(job_).workers_size(), 1);
    for (const v1::MemberJobState state : {v1::MEMBER_PREPARED, v1::MEMBER_RUNNING}) {
      for (const std::string& name : {View(job_).workers(0), std::string("p-0")}) {
        Report(name, state, 0);
      }
    }
    for (uint64_t& job : jobs_) {
      job_ = job = AddJob(/*graph=*/nullptr, policy);
      Pass();
      EXPECT_EQ(View(job_).workers_size(), 2);
      for (const std::string& name : MembersOf(job_)) Report(name, v1::MEMBER_PREPARED, 0);
      for (const std::string& name : MembersOf(job_)) Report(name, v1::MEMBER_RUNNING, 3);
    }
    now_ += FailureDetector::kRestartGrace;
    for (const uint64_t job : jobs_) {
      job_ = job;
      const std::string lost = View(job).workers(1);
      const auto known = std::ranges::find(attached_, lost, &Attachment::member);
      fleet_->Detach(**known, Fleet::Departure::kOrderly);
      Change([&](Job& changed) { changed.MemberLost(lost, "its host is gone", now_); });
      Report(View(job).workers(0), v1::MEMBER_HALTED, 3);
      Report("p-0", v1::MEMBER_HALTED, 3);
    }
    now_ += absl::Seconds(50);
    Pass();
    for (const uint64_t job : jobs_) EXPECT_EQ(View(job).reason(), "WAITS_FOR_MEMBERS");
    EXPECT_FALSE(View(jobs_.back()).has_stop_cause()) << "a worker may attach";
    now_ += absl::Seconds(10);
    Pass();
  }
  std::vector<std::string> MembersOf(uint64_t job) {
    const v1::Job view = View(job);
    return {view.workers(0), view.workers(1), "p-0"};
  }
  std::vector<uint64_t> jobs_;
  const uint64_t &first_ = jobs_[0], &second_ = jobs_[1];
};

TEST_F(EntangledSchedulerTest, TheLastJobYieldsIsSavedAndQueuedAgain) {
  EXPECT_FALSE(View(first_).has_stop_cause());
  ASSERT_EQ(View(second_).stop_cause().reason(), "GIVES_WAY");
  EXPECT_EQ(View(second_).state(), v1::RECOVERING) << "what its shards hold is saved first";
  GiveCheckpoints(second_, {3});
  registry_->Settle();
  EXPECT_EQ(View(second_).state(), v1::QUEUED);
  EXPECT_THAT(View(second_).message(),
              AllOf(HasSubstr("it has 1 worker and needs 2"), HasSubstr("stopped at step 3")));
  EXPECT_FALSE(View(second_).has_stop_cause());

  Pass();
  EXPECT_EQ(View(first_).state(), v1::PREPARING) << View(first_).message();
  EXPECT_EQ(View(first_).workers_size(), 2);
  EXPECT_EQ(View(second_).state(), v1::QUEUED);
}

TEST_F(EntangledSchedulerTest, AYieldingJobKeepsItsWorkersUntilItIsSaved) {
  for (int attempt = 0; attempt < 5; ++attempt) {  // no member writes it
    now_ += absl::Minutes(1);
    job_ = second_;
    Change([&](Job& job) { job.Tick(/*writing=*/false, now_); });
    Pass();
    EXPECT_EQ(View(second_).state(), v1::RECOVERING) << View(second_).message();
  }
  GiveCheckpoints(second_, {3});
  registry_->Settle();
  EXPECT_EQ(View(second_).state(), v1::QUEUED);
}

TEST_F(EntangledSchedulerTest, AYieldingJobThatIsSuspendedIsNotQueuedAgain) {
  job_ = second_;
  Change([&](Job& job) { EXPECT_TRUE(job.Suspend(now_).ok()); });
  GiveCheckpoints(second_, {3});
  registry_->Settle();
  EXPECT_EQ(View(second_).state(), v1::SUSPENDED);
}

class ThreeEntangledSchedulerTest : public EntangledSchedulerTest {
 protected:
  ThreeEntangledSchedulerTest() : EntangledSchedulerTest(/*jobs=*/3) {}
};

TEST_F(ThreeEntangledSchedulerTest, OneJobAtATimeYields) {
  EXPECT_TRUE(View(jobs_[2]).has_stop_cause());
  Pass();  // the shards of the last job are being saved
  EXPECT_FALSE(View(second_).has_stop_cause());
  GiveCheckpoints(jobs_[2], {3});
  registry_->Settle();
  Pass();
  EXPECT_EQ(View(first_).state(), v1::PREPARING) << View(first_).message();
  EXPECT_EQ(View(second_).reason(), "WAITS_FOR_MEMBERS") << "one more worker is enough for it";
}

// A job of four workers that is at step 3.
class FourWorkersSchedulerTest : public SteppingSchedulerTest {
 protected:
  FourWorkersSchedulerTest() {
    v1::JobSpec policy;
    policy.mutable_resources()->mutable_workers()->set_min(4);
    policy.mutable_resources()->mutable_workers()->set_max(4);
    job_ = AddJob(/*graph=*/nullptr, policy);
    const std::vector<std::string> names = {"w-0", "w-1", "w-2", "w-3", "p-0"};
    for (const std::string& name : names) attached_.push_back(Attach(name));
    now_ += absl::Seconds(30);
    Pass();
    for (const std::string& name : names) Report(name, v1::MEMBER_PREPARED, 0);
    for (const std::string& name : names) Report(name, v1::MEMBER_RUNNING, 3);
    EXPECT_EQ(View(job_).state(), v1::RUNNING);
  }
  void LoseTwo() {
    for (const int lost : {2, 3}) {
      fleet_->Detach(*attached_[lost], Fleet::Departure::kOrderly);
      Change([&](Job& job) { job.MemberLost(absl::StrCat("w-", lost), "crashed", now_); });
    }
    for (const char* left : {"w-0", "w-1", "p-0"}) Report(left, v1::MEMBER_HALTED, 3);
  }
  // The worker reports that it serves another job, which does not count on it.
  void HangOn(const Attachment& worker) {
    EXPECT_TRUE(fleet_->Renew(worker, {"another-9"}, now_).ok());
  }
};

TEST_F(FourWorkersSchedulerTest, AWorkerThatHangsAgainGetsAnotherMinute) {
  const auto worker = Attach("w-4");
  HangOn(*worker);
  const uint64_t first = AddJob();
  Pass();
  EXPECT_EQ(View(first).state(), v1::QUEUED);
  Cancel(first);
  Pass();  // this pass has nothing to do
  now_ += absl::Minutes(2);
  LoseTwo();
  attached_.push_back(Attach("w-5"));
  const uint64_t queued = AddJob();
  Pass();
  EXPECT_EQ(View(queued).state(), v1::QUEUED) << "with w-4 the recovering job could continue";
  now_ += absl::Minutes(1);
  Pass();
  EXPECT_EQ(View(queued).state(), v1::PREPARING);
}

// A job for two to four workers. w-3 did not halt in time, and later reports that it is free.
class HungSchedulerTest : public FourWorkersSchedulerTest {
 protected:
  HungSchedulerTest() {
    Cancel(job_);
    v1::JobSpec policy;
    policy.mutable_resources()->mutable_workers()->set_min(2);
    policy.mutable_resources()->mutable_workers()->set_max(4);
    job_ = AddJob(/*graph=*/nullptr, policy);
    Pass();
    const std::vector<std::string> all = {"w-0", "w-1", "w-2", "w-3", "p-0"};
    for (const std::string& name : all) Report(name, v1::MEMBER_PREPARED, 0);
    for (const std::string& name : all) Report(name, v1::MEMBER_RUNNING, 3);
    fleet_->Detach(*attached_[2], Fleet::Departure::kOrderly);
    Change([&](Job& job) { job.MemberLost("w-2", "crashed", now_); });
    for (const char* name : {"w-0", "w-1", "p-0"}) Report(name, v1::MEMBER_HALTED, 3);
    now_ += FailureDetector::kHaltMax;
    Change([&](Job& job) { job.Tick(/*writing=*/false, now_); });
    EXPECT_EQ(View(job_).state(), v1::RECOVERING);
    now_ += absl::Seconds(10);
  }
};

TEST_F(HungSchedulerTest, AWorkerThatDidNotHaltMustWarmUpFirst) {
  Pass();
  EXPECT_THAT(View(job_).workers(), ElementsAre("w-0", "w-1")) << View(job_).message();
  for (const char* name : {"w-0", "w-1", "p-0"}) Report(name, v1::MEMBER_PREPARED, 3);
  now_ += Job::kJoinAfter;
  attached_[3]->TakeDirectives();
  Pass();
  EXPECT_NE(WarmUpPlanOf(*attached_[3]).rehearsal(), 0) << "it must show that it can prepare";
}

TEST_F(HungSchedulerTest, ASpareWorkerGoesBeforeOneThatDidNotHalt) {
  for (const char* name : {"w-4", "w-5"}) attached_.push_back(Attach(name));
  Pass();
  EXPECT_THAT(View(job_).workers(), ElementsAre("w-0", "w-1", "w-4", "w-5"));
}

// The job's metrics.jsonl cannot be opened.
TEST_F(FourWorkersSchedulerTest, NothingIsReservedForAJobWhoseStepsCannotBeRecorded) {
  std::filesystem::create_directories(registry_->folder().metrics_log(JobIdOf(View(job_).name())));
  for (const char* worker : {"w-0", "w-1", "w-2", "w-3"}) {
    v1::JobReport report;
    report.set_job(JobIdOf(View(job_).name()));
    report.set_generation(View(job_).generation());
    report.set_state(v1::MEMBER_RUNNING);
    report.set_next_step(3);
    report.add_steps()->set_loss_share(1);
    Change([&](Job& job) { job.Report(worker, &report, now_); });
  }
  registry_->Settle();
  LoseTwo();
  for (const char* name : {"w-4", "w-5"}) attached_.push_back(Attach(name));
  const uint64_t queued = AddJob();

  Pass();

  EXPECT_EQ(View(job_).state(), v1::RECOVERING);
  EXPECT_EQ(View(queued).state(), v1::PREPARING);
}

// The job loses two of its workers.
class ShortSchedulerTest : public FourWorkersSchedulerTest {
 protected:
  ShortSchedulerTest() { LoseTwo(); }
  // Waits until the job would accept fewer workers.
  void Wait() {
    now_ += absl::Seconds(10);
    Pass();
    EXPECT_EQ(View(job_).state(), v1::RECOVERING);
    EXPECT_EQ(View(job_).reason(), "WAITS_FOR_MEMBERS");
  }
};

TEST_F(ShortSchedulerTest, FreedMembersAreReservedForARecoveringJob) {
  attached_.push_back(Attach("w-4"));
  const uint64_t beside = AddJob();
  Pass();
  ASSERT_EQ(View(beside).state(), v1::PREPARING);
  Wait();
  v1::JobSpec urgent;
  urgent.set_priority(9);
  const std::vector<uint64_t> queue = {AddJob(), AddJob(/*graph=*/nullptr, urgent)};
  attached_.push_back(Attach("w-5"));
  Pass();
  for (const uint64_t job : queue) EXPECT_EQ(View(job).state(), v1::QUEUED) << job;

  Cancel(beside);
  Pass();
  EXPECT_EQ(View(job_).state(), v1::PREPARING) << View(job_).message();
  EXPECT_THAT(View(job_).workers(), ElementsAre("w-0", "w-1", "w-4", "w-5"));
  attached_.push_back(Attach("w-6"));
  Pass();
  EXPECT_EQ(View(queue[1]).state(), v1::PREPARING) << "the reservation is over";
}

TEST_F(ShortSchedulerTest, StartTimeoutNamesTheJobOfTheReservation) {
  attached_.push_back(Attach("w-4"));
  AddJob();
  Pass();
  v1::JobSpec policy;
  policy.mutable_start_timeout()->set_seconds(60);
  const uint64_t queued = AddJob(/*graph=*/nullptr, policy);
  attached_.push_back(Attach("w-5"));
  now_ += absl::Seconds(60);
  Pass();
  EXPECT_EQ(View(queued).state(), v1::FAILED);
  EXPECT_THAT(
      View(queued).message(),
      AllOf(HasSubstr("1 workers are free of 4"),
            HasSubstr(absl::StrCat("freed members are reserved for job number ", job_, " (",
                                   JobIdOf(View(job_).name()), "), which goes before it"))));
}

// The job gave up w-2 and w-3 because they did not halt. They still report that they serve the job.
TEST_F(ShortSchedulerTest, NothingIsReservedForAJobThatLacksHangingWorkers) {
  for (const char* name : {"w-2", "w-3"}) {
    attached_.push_back(Attach(name));
    EXPECT_TRUE(fleet_->Renew(*attached_.back(), {JobIdOf(View(job_).name())}, now_).ok());
  }
  attached_.push_back(Attach("w-4"));
  const uint64_t queued = AddJob();
  Wait();
  EXPECT_EQ(View(queued).state(), v1::QUEUED) << "they may soon be free";
  now_ += absl::Minutes(1);
  Pass();
  EXPECT_EQ(View(queued).state(), v1::PREPARING);
}

class ReplicatedSchedulerStopTest : public SchedulerStopTest {
 protected:
  ReplicatedSchedulerStopTest() : SchedulerStopTest(/*ps=*/2) {}
};

TEST_F(ReplicatedSchedulerStopTest, WithoutAWorkerItIsSavedFromAReplicaThatTookOver) {
  fleet_->Detach(*attached_[3], Fleet::Departure::kOrderly);
  Change([&](Job& job) { job.MemberLost("p-1", "crashed", now_); });
  now_ += absl::Seconds(3);
  Pass();
  ASSERT_EQ(View(job_).reason(), "WAITS_FOR_MEMBERS");
  Suspend();
  Lose(0);
  Pass();
  EXPECT_EQ(View(job_).state(), v1::RECOVERING);
  CommitWhatIsHalted();
  EXPECT_EQ(View(job_).state(), v1::SUSPENDED);
  EXPECT_EQ(View(job_).message(), "suspended at step 3");
}

TEST_F(ReplicatedSchedulerStopTest, ItStopsWithoutARecoveryIfAReplicaTookOver) {
  fleet_->Detach(*attached_[3], Fleet::Departure::kOrderly);
  Change([&](Job& job) { job.MemberLost("p-1", "crashed", now_); });
  now_ += absl::Seconds(60);
  Pass();
  EXPECT_EQ(View(job_).stop_cause().reason(), "START_TIMEOUT");
  Pass();
  EXPECT_EQ(View(job_).state(), v1::RECOVERING);
  CommitWhatIsHalted();
  EXPECT_EQ(View(job_).state(), v1::SUSPENDED);
  EXPECT_EQ(View(job_).reason(), "START_TIMEOUT");
}

// An interrupted evaluation of step 3 is repeated when the job continues there.
TEST_F(SchedulerStopTest, AJobThatContinuesWhereItWasHaltedEvaluatesFirst) {
  now_ += absl::Seconds(3);
  Pass();
  ASSERT_EQ(View(job_).reason(), "WAITS_FOR_MEMBERS");
  Suspend();
  CommitWhatIsHalted();
  ASSERT_EQ(View(job_).state(), v1::SUSPENDED);
  Change([&](Job& job) { EXPECT_TRUE(job.Resume(nullptr, now_).ok()); });
  attached_.push_back(Attach("w-1"));
  Pass();
  ASSERT_EQ(View(job_).state(), v1::PREPARING) << View(job_).message();
  JobRegistry::Transaction transaction(registry_.get());
  EXPECT_EQ(transaction.FindNumber(job_)->job.plan()->first_step(), 3);
  EXPECT_TRUE(transaction.FindNumber(job_)->job.plan()->evaluate_first());
}

// A job with two chunks on p-0 and one on p-1 loses its worker. p-0 has no memory for more, and
// another job has taken the rest of p-1.
class UnevenSchedulerTest : public SteppingSchedulerTest {
 protected:
  UnevenSchedulerTest() {
    attached_ = {Attach("w-0"), Attach("p-0"), Attach("p-1")};
    const uint64_t probe = AddJobOfChunks(3, /*ps=*/2);
    Pass();
    const auto memory = MemoryOf(probe);
    const int64_t large = memory.at("p-0").With(1), small = memory.at("p-1").With(1);
    EXPECT_LT(small, large);
    Cancel(probe);
    for (int ps : {1, 2}) fleet_->Detach(*attached_[ps], Fleet::Departure::kOrderly);
    AttachPs("p-0", large);
    AttachPs("p-1", 2 * small);
    job_ = AddJobOfChunks(3, /*ps=*/2);
    Pass();
    for (const char* name : {"w-0", "p-0", "p-1"}) Report(name, v1::MEMBER_PREPARED, 0);
    for (const char* name : {"w-0", "p-0", "p-1"}) Report(name, v1::MEMBER_RUNNING, 3);
    EXPECT_EQ(View(job_).state(), v1::RUNNING) << View(job_).message();

    attached_.push_back(Attach("w-1"));
    const uint64_t beside = AddJobOfChunks(1, /*ps=*/1);
    for (int i = 0; i < 2; ++i) Pass();
    EXPECT_THAT(View(beside).ps(), ElementsAre("p-1")) << View(beside).message();
    fleet_->Detach(*attached_[0], Fleet::Departure::kOrderly);
    Change([&](Job& job) { job.MemberLost("w-0", "crashed", now_); });
  }
  uint64_t AddJobOfChunks(int64_t chunks, int ps) {
    auto graph = std::make_shared<v1::Graph>();
    v1::Parameter& parameter = *graph->add_parameters();
    parameter.set_name("weight");
    parameter.add_shape(256 * chunks);
    v1::JobSpec policy;
    policy.mutable_resources()->set_ps(ps);
    return AddJob(graph, policy);
  }
  absl::btree_map<std::string, PsMemory> MemoryOf(uint64_t number) {
    JobRegistry::Transaction transaction(registry_.get());
    return MemoryOfPs(*transaction.FindNumber(number)->job.plan());
  }
};

TEST_F(UnevenSchedulerTest, NeedsOnEachKeptPsOnlyItsOwnMemory) {
  for (const char* ps : {"p-0", "p-1"}) Report(ps, v1::MEMBER_HALTED, 3);
  attached_.push_back(Attach("w-2"));
  Pass();
  EXPECT_EQ(View(job_).state(), v1::PREPARING) << View(job_).message();
}

TEST_F(UnevenSchedulerTest, FromACheckpointItContinuesWithItsOwnSmallPs) {
  Change([&](Job& job) {
    for (const char* ps : {"p-0", "p-1"}) job.Report(ps, nullptr, now_);
  });
  attached_.push_back(Attach("w-2"));
  Pass();
  EXPECT_EQ(View(job_).state(), v1::PREPARING) << View(job_).message();
  EXPECT_THAT(View(job_).ps(), ElementsAre("p-0", "p-1"));
}

// A job on two ps, each of which has the replicas of the other's shards, beside a job that takes
// memory of the first ps. A ps that takes over its replicas needs more memory, because a replica
// has none for gradients.
class ReplicasSchedulerTest : public SteppingSchedulerTest {
 protected:
  ReplicasSchedulerTest() {
    Attach("w-0");
    Attach("w-1");
    const auto a = Attach("p-0"), b = Attach("p-1");
    const uint64_t probe = AddReplicatedJob();
    Pass();
    const int64_t whole = NeedWithAllShards(probe);
    Cancel(probe);
    for (const auto& ps : {a, b}) fleet_->Detach(*ps, Fleet::Departure::kOrderly);
    const auto c = Attach("p-2");
    beside_ = AddJob();
    Pass();
    const int64_t taken = NeedOf(beside_);
    Cancel(beside_);
    fleet_->Detach(*c, Fleet::Departure::kOrderly);

    AttachPs("p-3", whole + taken - 1);
    beside_ = AddJob();
    Pass();
    EXPECT_EQ(View(beside_).state(), v1::PREPARING);
    attached_.push_back(Attach("p-4"));
    job_ = AddReplicatedJob();
    Pass();
    Go({View(job_).workers(0), "p-3", "p-4"});
    EXPECT_EQ(ShardsWithoutReplica(*Plan()), 0);
  }

  uint64_t AddReplicatedJob() {
    v1::JobSpec policy;
    policy.mutable_resources()->set_ps(2);
    policy.mutable_resources()->set_ps_replication(2);
    return AddJob(/*graph=*/nullptr, policy);
  }
  std::shared_ptr<const v1::JobPlan> Plan() {
    JobRegistry::Transaction transaction(registry_.get());
    return transaction.FindNumber(job_)->job.plan();
  }
  // Returns the memory of one ps that has all shards, each with a replica on the other ps.
  int64_t NeedWithAllShards(uint64_t number) {
    JobRegistry::Transaction transaction(registry_.get());
    const v1::JobPlan& plan = *transaction.FindNumber(number)->job.plan();
    PsMemory whole;
    for (const auto& [ps, memory] : MemoryOfPs(plan)) {
      EXPECT_GT(memory.bytes_per_worker, 0) << ps << " has no shard";
      whole.bytes = memory.bytes;  // its shards and, as replicas, all others
      whole.bytes_per_worker += memory.bytes_per_worker;
    }
    return whole.With(plan.workers_size());
  }
  void Go(const std::vector<std::string>& members) {
    for (const std::string& name : members) Report(name, v1::MEMBER_PREPARED, 3);
    for (const std::string& name : members) Report(name, v1::MEMBER_RUNNING, 3);
    EXPECT_EQ(View(job_).state(), v1::RUNNING) << View(job_).message();
  }
  // Halts the job, which continues with its shards and without replicas.
  void LosePs4() {
    fleet_->Detach(*attached_.back(), Fleet::Departure::kOrderly);
    Change([&](Job& job) { job.MemberLost("p-4", "crashed", now_); });
    const std::vector<std::string> left = {View(job_).workers(0), "p-3"};
    for (const std::string& name : left) Report(name, v1::MEMBER_HALTED, 3);
    Pass();
    Go(left);
    EXPECT_EQ(ShardsWithoutReplica(*Plan()), 2);
    now_ += Job::kReplicasJoinAfter;
  }

  uint64_t beside_ = 0;
};

TEST_F(ReplicasSchedulerTest, AJobIsHaltedForReplicasOnceItsPsHasRoomForThem) {
  LosePs4();
  const auto newcomer = Attach("p-5");
  for (int i = 0; i < 2; ++i) {
    Pass();
    EXPECT_EQ(View(job_).state(), v1::RUNNING) << "p-3 would have a byte too little";
  }

  Cancel(beside_);
  Pass();
  EXPECT_EQ(View(job_).state(), v1::RUNNING) << "it was searched a moment ago";
  now_ += absl::Seconds(10);
  Pass();
  ASSERT_EQ(View(job_).state(), v1::RECOVERING);
  EXPECT_EQ(View(job_).reason(), "BACKUPS_JOIN");
  for (const std::string& name : {View(job_).workers(0), std::string("p-3")}) {
    Report(name, v1::MEMBER_HALTED, 3);
  }
  Pass();
  EXPECT_EQ(View(job_).state(), v1::PREPARING) << View(job_).message();
  EXPECT_EQ(ShardsWithoutReplica(*Plan()), 0);
}

// `first`, at step 3 and without replicas, has room for another worker. `short_` lacks two workers,
// and one is free.
TEST_F(SteppingSchedulerTest, AJobHaltedForReplicasTakesNoReservedWorker) {
  Pass();
  now_ += absl::Seconds(30);
  v1::JobSpec policy;
  policy.mutable_resources()->set_ps(2);
  policy.mutable_resources()->set_ps_replication(2);
  policy.mutable_resources()->mutable_workers()->set_max(2);
  const uint64_t first = AddJob(/*graph=*/nullptr, policy);
  policy = v1::JobSpec();
  policy.mutable_resources()->mutable_workers()->set_min(3);
  policy.mutable_resources()->mutable_workers()->set_max(3);
  for (const char* name : {"w-0", "p-0", "p-1"}) attached_.push_back(Attach(name));
  now_ += absl::Seconds(10);
  Pass();
  const auto run = [&](const std::vector<std::string>& members) {
    for (const auto state : {v1::MEMBER_PREPARED, v1::MEMBER_RUNNING}) {
      for (const std::string& name : members) Report(name, state, 3);
    }
    EXPECT_EQ(View(job_).state(), v1::RUNNING) << View(job_).message();
  };
  const auto lose = [&](int attached, const std::string& name) {
    fleet_->Detach(*attached_[attached], Fleet::Departure::kOrderly);
    Change([&](Job& job) { job.MemberLost(name, "crashed", now_); });
  };
  job_ = first;
  run({"w-0", "p-0", "p-1"});
  lose(2, "p-1");
  for (const char* name : {"w-0", "p-0"}) Report(name, v1::MEMBER_HALTED, 3);
  Pass();
  run({"w-0", "p-0"});

  for (const char* name : {"w-1", "w-2", "w-3"}) attached_.push_back(Attach(name));
  const uint64_t short_ = job_ = AddJob(/*graph=*/nullptr, policy);
  Pass();
  run({"w-1", "w-2", "w-3", "p-0"});
  lose(4, "w-2");
  lose(5, "w-3");
  for (const char* name : {"w-1", "p-0"}) Report(name, v1::MEMBER_HALTED, 3);
  for (const char* name : {"w-4", "p-2"}) attached_.push_back(Attach(name));
  now_ += absl::Seconds(5);
  Pass();
  ASSERT_EQ(View(short_).reason(), "WAITS_FOR_MEMBERS");
  ASSERT_EQ(View(first).reason(), "BACKUPS_JOIN");
  job_ = first;
  for (const char* name : {"w-0", "p-0"}) Report(name, v1::MEMBER_HALTED, 3);
  Pass();
  EXPECT_EQ(View(first).state(), v1::PREPARING) << View(first).message();
  EXPECT_THAT(View(first).workers(), ElementsAre("w-0"));
}

}  // namespace
}  // namespace muster::scheduler_test
