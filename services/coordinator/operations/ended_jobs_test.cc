#include "services/coordinator/operations/ended_jobs.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <stdio.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "services/coordinator/testing/registry_fixture.h"

// The folder that rename() refuses to move; "": none.
static std::string stuck_folder;

// Replaces rename() of libc in this program.
extern "C" int rename(const char* from, const char* to) noexcept {
  if (stuck_folder.empty() || !absl::EndsWith(from, stuck_folder)) {
    return renameat(AT_FDCWD, from, AT_FDCWD, to);
  }
  errno = EIO;
  return -1;
}

namespace muster::ended_jobs_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class EndedJobsTest : public RegistryFixture {
 protected:
  // Adds a job that ends now.
  uint64_t AddEnded(const v1::JobSpec& policy = v1::JobSpec()) {
    const uint64_t number = AddJob(/*graph=*/nullptr, policy);
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(number);
    EXPECT_TRUE(entry.job.Cancel(now_).ok());
    transaction.Commit(entry);
    return number;
  }
  void CommitCheckpoint(uint64_t number) {
    v1::Checkpoint checkpoint;
    checkpoint.set_step(4);
    checkpoint.set_name(View(number).name() + "/checkpoints/4");
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(number);
    entry.job.CheckpointCommitted(checkpoint, now_);
    transaction.Commit(entry, {.checkpoint = checkpoint});
  }
  // Sweeps. Returns the numbers of the remaining jobs.
  std::vector<uint64_t> Sweep(const EndedJobs::Retention& retention) {
    registry_->changes().AwaitAll();
    EndedJobs({.registry = registry_.get(), .users = &users_, .retention = retention}).Sweep();
    JobRegistry::Transaction transaction(registry_.get());
    std::vector<uint64_t> numbers;
    for (const auto& [number, entry] : transaction.jobs()) numbers.push_back(number);
    return numbers;
  }

  Checkpointer checkpoints_{registry_.get(), &series_, &coordinator_metrics_};
  UserOperations users_{
      {.registry = registry_.get(), .checkpoints = &checkpoints_, .watches = &watches_}};
};

TEST_F(EndedJobsTest, KeepsTheNewestEndedJobsAndAllUnfinishedOnes) {
  AddJob();
  AddEnded();
  now_ += absl::Seconds(1);
  AddEnded();
  now_ += absl::Seconds(1);
  AddEnded();

  EXPECT_THAT(Sweep({.keep = 2, .ttl = absl::ZeroDuration()}), ElementsAre(1, 3, 4));
  EXPECT_EQ(store_->LoadJobs()->size(), 3);
}

TEST_F(EndedJobsTest, DeletesJobsThatEndedTooLongAgo) {
  AddEnded();
  now_ += absl::Hours(1);
  AddEnded();
  EXPECT_THAT(Sweep({.keep = 0, .ttl = absl::Hours(2)}), ElementsAre(1, 2));

  now_ += absl::Hours(1);

  EXPECT_THAT(Sweep({.keep = 0, .ttl = absl::ZeroDuration()}), ElementsAre(1, 2)) << "0: for ever";
  EXPECT_THAT(Sweep({.keep = 0, .ttl = absl::Hours(2)}), ElementsAre(2));
}

TEST_F(EndedJobsTest, AJobsOwnTtlDeletesCheckpointsOnlyIfItsFileSaysSo) {
  auto add = [this](absl::Duration ttl, bool delete_after_ttl) {
    v1::JobSpec spec;
    spec.mutable_ttl_after_finished()->set_seconds(absl::ToInt64Seconds(ttl));
    spec.mutable_checkpoint()->set_delete_after_ttl(delete_after_ttl);
    return AddEnded(spec);
  };
  AddEnded();                                                        // 1
  add(absl::ZeroDuration(), false);                                  // 2
  add(absl::Hours(2), false);                                        // 3
  CommitCheckpoint(add(absl::ZeroDuration(), false));                // 4
  CommitCheckpoint(add(absl::Hours(2), /*delete_after_ttl=*/true));  // 5
  const EndedJobs::Retention for_ever{.keep = 0, .ttl = absl::ZeroDuration()};

  EXPECT_THAT(Sweep({.keep = 1, .ttl = absl::ZeroDuration()}), ElementsAre(4, 5))
      << "not for being too many";
  now_ += absl::Hours(2) - absl::Seconds(1);
  EXPECT_THAT(Sweep(for_ever), ElementsAre(4, 5));
  now_ += absl::Seconds(1);
  EXPECT_THAT(Sweep(for_ever), ElementsAre(4));
}

TEST_F(EndedJobsTest, AJobsOwnTtlOverridesTheOperators) {
  v1::JobSpec spec;
  spec.mutable_ttl_after_finished();
  AddEnded(spec);
  AddEnded();
  spec.mutable_ttl_after_finished()->set_seconds(2 * 3600);
  AddEnded(spec);
  const EndedJobs::Retention an_hour{.keep = 0, .ttl = absl::Hours(1)};

  EXPECT_THAT(Sweep(an_hour), ElementsAre(2, 3));
  now_ += absl::Hours(1);
  EXPECT_THAT(Sweep(an_hour), ElementsAre(3));
  now_ += absl::Hours(1);
  EXPECT_THAT(Sweep(an_hour), IsEmpty());
}

TEST_F(EndedJobsTest, DeletesAJobWithACheckpointOnlyIfTheOperatorAllowsIt) {
  const uint64_t trained = AddEnded();
  CommitCheckpoint(trained);
  const uint64_t unknown_to_the_store = AddEnded();
  const std::string folder = registry_->folder().checkpoints("line-2") + "/step-00000004";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/manifest.json") << "damaged";
  AddEnded();

  EXPECT_THAT(Sweep({.ttl = absl::Nanoseconds(1)}), ElementsAre(trained, unknown_to_the_store, 3))
      << "they end now";
  now_ += absl::Seconds(1);
  EXPECT_THAT(Sweep({.ttl = absl::Nanoseconds(1)}), ElementsAre(trained, unknown_to_the_store));
  EXPECT_THAT(Sweep({.ttl = absl::Nanoseconds(1), .with_checkpoints = true}), IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(registry_->folder().job("line-2")));
}

TEST_F(EndedJobsTest, KeepsAJobWhoseCheckpointIsBeingCommitted) {
  const uint64_t job = AddEnded();
  const auto change = [&](void (CheckpointRounds::*what)()) {
    JobRegistry::Transaction transaction(registry_.get());
    (transaction.FindNumber(job)->rounds.*what)();
  };
  change(&CheckpointRounds::BeginCommit);
  now_ += absl::Hours(2);
  EXPECT_THAT(Sweep({.keep = 0, .ttl = absl::Hours(1)}), ElementsAre(job));
  change(&CheckpointRounds::EndCommit);
  EXPECT_THAT(Sweep({.keep = 0, .ttl = absl::Hours(1)}), IsEmpty());
}

TEST_F(EndedJobsTest, AFailedDeletionDoesNotStopTheOthers) {
  for (int i = 0; i < 3; ++i) {
    const uint64_t number = AddEnded();
    std::filesystem::create_directories(registry_->folder().job(absl::StrCat("line-", number)));
    now_ += absl::Seconds(1);
  }
  stuck_folder = "/line-2";

  EXPECT_THAT(Sweep({.ttl = absl::Nanoseconds(1)}), ElementsAre(2));

  stuck_folder.clear();
  EXPECT_THAT(Sweep({.ttl = absl::Nanoseconds(1)}), IsEmpty());
}

TEST_F(EndedJobsTest, KeepsADamagedJobForInspection) {
  const uint64_t job = AddJob();
  {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(job);
    entry.job.Fail("JOB_DAMAGED", "its plan does not parse", now_);
    transaction.Commit(entry);
  }
  now_ += absl::Hours(1);

  EXPECT_THAT(Sweep({.ttl = absl::Hours(1)}), ElementsAre(job));
}

}  // namespace
}  // namespace muster::ended_jobs_test
