#include "services/coordinator/registry/job_registry.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "lib/job/resource_name.h"
#include "lib/status/status.h"
#include "services/coordinator/scheduling/job_plan.h"
#include "services/coordinator/testing/registry_fixture.h"

// True if every sync of a metrics log must fail.
static std::atomic<bool> logs_fail = false;

// Replaces fdatasync() of libc in this program.
extern "C" int fdatasync(int file) {
  std::error_code error;
  const std::string link = absl::StrCat("/proc/self/fd/", file);
  if (logs_fail && std::filesystem::read_symlink(link, error).extension() == ".jsonl") {
    errno = EIO;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fdatasync, file));
}

namespace muster::job_registry_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class JobRegistryTest : public RegistryFixture {
 protected:
  // Gives the job to w-0 and p-0 within `transaction`.
  CommitQueue::Ticket Schedule(JobRegistry::Transaction& transaction, JobRegistry::Entry& entry) {
    PlanRequest request{.job = entry.job.record(), .workers = {Hello("w-0")}, .ps = {Hello("p-0")}};
    v1::Parameter& parameter = *request.graph.add_parameters();
    parameter.set_name("weight");
    parameter.add_shape(4);
    const auto plan = MakePlan(std::move(request));
    entry.job.Schedule(plan, now_);
    return transaction.Commit(entry, {.plan = plan});
  }
};

// Publication needs the registry's mutex, so nothing is public while the transaction of the change
// lasts.
TEST_F(JobRegistryTest, PublishesOnlyStoredChanges) {
  const uint64_t number = AddJob();
  const auto worker = Attach("w-0");
  CommitQueue::Ticket ticket;
  {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(number);
    ticket = Schedule(transaction, entry);
    EXPECT_EQ(entry.job.state(), v1::PREPARING);
    EXPECT_EQ(transaction.View(entry).state(), v1::QUEUED);
    EXPECT_TRUE(worker->TakeDirectives().empty());
    EXPECT_EQ(transaction.Active().size(), 1);
  }

  ASSERT_TRUE(registry_->changes().Await(ticket, absl::InfiniteDuration()).ok());

  EXPECT_EQ(View(number).state(), v1::PREPARING);
  const auto directives = worker->TakeDirectives();
  ASSERT_EQ(directives.size(), 1);
  EXPECT_TRUE(directives[0].directive.has_prepare());
}

TEST_F(JobRegistryTest, ARestartRestoresThePublishedState) {
  const uint64_t number = AddJob();
  {
    JobRegistry::Transaction transaction(registry_.get());
    Schedule(transaction, *transaction.FindNumber(number));
  }
  registry_->changes().AwaitAll();
  const v1::Job before = View(number);

  Reopen();

  EXPECT_EQ(View(number).SerializeAsString(), before.SerializeAsString());
  JobRegistry::Transaction transaction(registry_.get());
  ASSERT_EQ(transaction.Active().size(), 1);
  EXPECT_EQ(transaction.Active()[0]->job.plan()->generation(), 1);
  EXPECT_TRUE(transaction.Find("line-1").ok());
  EXPECT_TRUE(transaction.Find("jobs/line-1").ok());
  EXPECT_EQ(ReasonOf(transaction.Find("line-2").status()), "JOB_NOT_FOUND");
}

TEST_F(JobRegistryTest, ADamagedJobFailsAndTheOthersRun) {
  const uint64_t damaged = AddJob(), sound = AddJob();
  for (const uint64_t number : {damaged, sound}) {
    JobRegistry::Transaction transaction(registry_.get());
    Schedule(transaction, *transaction.FindNumber(number));
  }
  registry_->changes().AwaitAll();
  std::filesystem::create_directories(registry_->folder().metrics_log("line-1"));

  for (int restart = 0; restart < 2; ++restart) {
    Reopen();
    EXPECT_EQ(View(damaged).state(), v1::FAILED);
    EXPECT_EQ(View(damaged).reason(), "JOB_DAMAGED");
    EXPECT_EQ(View(damaged).revision(), 3) << "said once";
    EXPECT_EQ(View(sound).state(), v1::PREPARING);
  }
  JobRegistry::Transaction transaction(registry_.get());
  EXPECT_EQ(transaction.Active().size(), 1);
}

TEST_F(JobRegistryTest, KeepsACheckpointThatACrashDuringItsReplacementLeft) {
  const uint64_t number = AddJob();
  v1::Checkpoint checkpoint;
  checkpoint.set_step(4);
  checkpoint.set_name("jobs/line-1/checkpoints/4");
  {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(number);
    entry.job.CheckpointCommitted(checkpoint, now_);
    transaction.Commit(entry, {.checkpoint = checkpoint});
  }
  registry_->changes().AwaitAll();
  const std::string folder = registry_->folder().checkpoints("line-1") + "/step-00000004";
  const std::string replaced = folder + ".tmp-replaced.1-0123456789abcdef";
  std::filesystem::create_directories(replaced);
  std::ofstream(replaced + "/manifest.json") << "the old one";

  Reopen();

  EXPECT_TRUE(std::filesystem::exists(folder + "/manifest.json"));
  EXPECT_EQ(View(number).checkpoint(), checkpoint.name());
  EXPECT_EQ(store_->Checkpoints(number)->size(), 1);
}

TEST_F(JobRegistryTest, ASkippedCheckpointDoesNotBelongToThePresentRun) {
  const uint64_t number = AddJob();
  {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(number);
    for (const int64_t step : {2, 4}) {
      const std::string folder =
          absl::StrCat(registry_->folder().checkpoints("line-1"), "/step-0000000", step);
      std::filesystem::create_directories(folder);
      std::ofstream(folder + "/manifest.json") << "known to the store";
      v1::Checkpoint checkpoint;
      checkpoint.set_step(step);
      checkpoint.set_name(absl::StrCat("jobs/line-1/checkpoints/", step));
      entry.job.CheckpointCommitted(checkpoint, now_);
      transaction.Commit(entry, {.checkpoint = checkpoint});
    }
    entry.job.CheckpointUnusable(Job::Unusable::kUnreadable, 4, "it is", 2, now_);
    transaction.Commit(entry);
    Schedule(transaction, entry);
  }
  registry_->changes().AwaitAll();

  Reopen();

  EXPECT_EQ(store_->Checkpoints(number)->size(), 2) << "it may be readable again";
  EXPECT_EQ(View(number).checkpoint(), "jobs/line-1/checkpoints/2");
  JobRegistry::Transaction transaction(registry_.get());
  const JobRegistry::Entry& entry = *transaction.FindNumber(number);
  EXPECT_TRUE(entry.rounds.HasCommitted(2));
  EXPECT_FALSE(entry.rounds.HasCommitted(4));
}

TEST_F(JobRegistryTest, CountsAnUnknownDamagedCheckpointAndKeepsIt) {
  const uint64_t number = AddJob();
  const std::string folder = registry_->folder().checkpoints("line-1") + "/step-00000002";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/manifest.json") << "{}";

  Reopen();

  EXPECT_EQ(View(number).checkpoint(), "");
  EXPECT_TRUE(std::filesystem::exists(folder + "/manifest.json"));
  EXPECT_THAT(metrics_.Render(), HasSubstr("\nmuster_checkpoint_damaged_total 1\n"));
}

TEST_F(JobRegistryTest, AnUnreadableDiskStopsTheStartAndDamagesNoJob) {
  const uint64_t number = AddJob();
  {
    JobRegistry::Transaction transaction(registry_.get());
    Schedule(transaction, *transaction.FindNumber(number));
  }
  registry_->changes().AwaitAll();

  logs_fail = true;
  const absl::Status failed = TryToReopen();
  logs_fail = false;

  EXPECT_THAT(failed.ToString(), HasSubstr("line-1 cannot be read"));
  EXPECT_THAT(failed.ToString(), HasSubstr("metrics.jsonl"));
  Reopen();
  EXPECT_EQ(View(number).state(), v1::PREPARING);
}

TEST_F(JobRegistryTest, AWokenWatchFindsTheChangePublishedAndStored) {
  const uint64_t number = AddJob();
  v1::JobState seen = v1::JOB_STATE_UNSPECIFIED;
  size_t events = 0;
  const auto watch = watches_.Add(number, "jobs/line-1", 0, std::make_shared<StreamWaker>([&] {
                                    seen = View(number).state();
                                    events = store_->Events(number, 0, /*max=*/100)->size();
                                  }));
  {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(number);
    EXPECT_TRUE(entry.job.Cancel(now_).ok());
    transaction.Commit(entry);
  }
  registry_->changes().AwaitAll();

  EXPECT_EQ(seen, v1::CANCELLED);
  EXPECT_EQ(events, 2) << "submitted and cancelled";
}

TEST_F(JobRegistryTest, AnErrorListsTheIdsOfJobsWithThatName) {
  for (int i = 0; i < 7; ++i) AddJob();
  JobRegistry::Transaction transaction(registry_.get());

  EXPECT_EQ(transaction.Find("line").status().message(),
            "no job 'line'; jobs of this name: line-7, line-6, line-5, line-4, line-3 and 2 older");
  EXPECT_EQ(transaction.Find("jobs/lin").status().message(), "no job 'lin'");
  EXPECT_TRUE(transaction.Find("line-7").ok());
}

TEST_F(JobRegistryTest, AJobThatStopsRunningEndsItsRounds) {
  const uint64_t number = AddJob();
  std::shared_ptr<CheckpointRound> round;
  {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(number);
    Schedule(transaction, entry);
    auto make = [&] {
      return CheckpointRound::Options{.plan = entry.job.plan(), .writer = {.step = 4}};
    };
    round = *entry.rounds.Join({.step = 4}, make);
    EXPECT_TRUE(entry.job.Cancel(now_).ok());
    transaction.Commit(entry);
    EXPECT_TRUE(transaction.Active().empty());
  }
  registry_->changes().AwaitAll();

  const auto outcome = round->AwaitOutcome(absl::ZeroDuration());
  ASSERT_TRUE(outcome.has_value());
  EXPECT_EQ(ReasonOf(*outcome), "STALE_SNAPSHOT");
}

// Reservations and the search for more workers depend on how long a job has been in the queue.
TEST_F(JobRegistryTest, AJobWaitsSinceItEnteredTheQueue) {
  const uint64_t number = AddJob();
  const auto queued_since = [&](const std::function<void(Job&)>& change) {
    now_ += absl::Seconds(10);
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(number);
    change(entry.job);
    transaction.Commit(entry);
    return entry.queued_since;
  };
  const absl::Time entered = now_;
  EXPECT_EQ(
      queued_since([&](Job& job) { job.WaitFor(JobPhase::kWaitsForMemory, "memory of ps", now_); }),
      entered);
  EXPECT_EQ(queued_since([&](Job& job) {
              v1::JobSpec spec = job.record().spec();
              spec.set_priority(7);
              job.Update(spec, now_);
            }),
            entered);
  EXPECT_EQ(queued_since([&](Job& job) { EXPECT_TRUE(job.Suspend(now_).ok()); }), entered);
  EXPECT_EQ(queued_since([&](Job& job) { EXPECT_TRUE(job.Resume(nullptr, now_).ok()); }), now_);
}

TEST_F(JobRegistryTest, TheQueueFollowsPriorityAndState) {
  const std::vector<uint64_t> numbers = {AddJob(), AddJob(), AddJob()};
  JobRegistry::Transaction transaction(registry_.get());
  const auto change = [&](uint64_t number, const std::function<void(Job&)>& what) {
    JobRegistry::Entry& entry = *transaction.FindNumber(number);
    what(entry.job);
    transaction.Commit(entry);
  };
  const auto queue = [&] {
    std::vector<uint64_t> order;
    for (const auto& [key, entry] : transaction.queue()) {
      order.push_back(entry->job.record().number());
    }
    return order;
  };
  EXPECT_EQ(queue(), numbers);
  change(numbers[2], [&](Job& job) {
    v1::JobSpec spec = job.record().spec();
    spec.set_priority(1);
    job.Update(spec, now_);
  });
  EXPECT_THAT(queue(), ElementsAre(numbers[2], numbers[0], numbers[1]));
  change(numbers[0], [&](Job& job) { EXPECT_TRUE(job.Suspend(now_).ok()); });
  EXPECT_THAT(queue(), ElementsAre(numbers[2], numbers[1]));
  change(numbers[0], [&](Job& job) { EXPECT_TRUE(job.Resume(nullptr, now_).ok()); });
  EXPECT_THAT(queue(), ElementsAre(numbers[2], numbers[0], numbers[1]));
  auto taken = transaction.Take(*transaction.FindNumber(numbers[0]));
  EXPECT_THAT(queue(), ElementsAre(numbers[2], numbers[1]));
  transaction.PutBack(std::move(taken));
  EXPECT_THAT(queue(), ElementsAre(numbers[2], numbers[0], numbers[1]));
}

TEST_F(JobRegistryTest, AJobThatWasTakenCanBePutBack) {
  AddJob();
  std::unique_ptr<JobRegistry::Entry> taken;
  {
    JobRegistry::Transaction transaction(registry_.get());
    taken = transaction.Take(**transaction.Find("line-1"));
    EXPECT_FALSE(transaction.Find("line-1").ok());
    EXPECT_TRUE(transaction.jobs().empty());
  }
  JobRegistry::Transaction transaction(registry_.get());
  transaction.PutBack(std::move(taken));
  EXPECT_TRUE(transaction.Find("line-1").ok());
}

// The job's steps cannot be recorded without its folder.
TEST_F(JobRegistryTest, ReportsUnrecordedStepsAndAcknowledgesThemLater) {
  const uint64_t number = AddJob();
  const auto worker = Attach("w-0");
  std::string id;
  {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(number);
    Schedule(transaction, entry);
    id = JobIdOf(entry.job.record().name());
    v1::JobReport report;
    report.set_job(id);
    report.set_generation(1);
    report.set_state(v1::MEMBER_PREPARED);
    report.mutable_dataset()->set_samples(1000);
    for (const char* name : {"w-0", "p-0"}) entry.job.Report(name, &report, now_);
    ASSERT_EQ(entry.job.state(), v1::RUNNING);
    report.set_state(v1::MEMBER_RUNNING);
    report.add_steps()->set_loss_share(1);
    entry.job.Report("w-0", &report, now_);
    transaction.Commit(entry);
  }
  registry_->Settle();
  EXPECT_THAT(View(number).trouble().message(), HasSubstr("cannot write to its state folder"));
  for (const MemberDirective& told : worker->TakeDirectives()) {
    EXPECT_FALSE(told.directive.has_acknowledge());
  }

  ASSERT_TRUE(registry_->folder().MakeJob(id).ok());

  int64_t acknowledged = 0;
  while (acknowledged == 0) {  // the writer tries again every second
    for (const MemberDirective& told : worker->TakeDirectives()) {
      acknowledged = std::max(acknowledged, told.directive.acknowledge().steps_before());
    }
    std::this_thread::yield();
  }
  EXPECT_EQ(acknowledged, 1);
  EXPECT_EQ(View(number).message(), "steps 0 to 10");
}

}  // namespace
}  // namespace muster::job_registry_test
