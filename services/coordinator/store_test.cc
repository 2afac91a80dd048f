#include "services/coordinator/store.h"

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "lib/limits/limits.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int kAll = 1 << 20;  // events

class StoreTest : public ::testing::Test {
 protected:
  StoreTest() {
    std::string folder = ::testing::TempDir() + "/store-XXXXXX";
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    path_ = folder + "/coordinator.db";
  }

  std::unique_ptr<Store> Open() {
    auto store = Store::Open(path_);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }

  static Store::Submission Submission(const std::string& request_id = "") {
    Store::Submission submission{.request_id = request_id, .fingerprint = "spec"};
    submission.record.mutable_spec()->set_name("net");
    submission.record.set_state(v1::QUEUED);
    submission.record.set_reason("SUBMITTED");
    submission.origin = {"/elsewhere/step-00000010", 10};
    return submission;
  }

  // A transition with a new generation and a checkpoint.
  static absl::Status Advance(Store& store, v1::Job& record) {
    record.set_state(v1::RUNNING);
    record.set_revision(record.revision() + 1);
    record.set_generation(1);
    v1::JobEvent event;
    event.set_revision(record.revision());
    event.set_reason("STARTED");
    v1::JobPlan plan;
    plan.set_generation(1);
    plan.set_session_token("token");
    v1::Checkpoint checkpoint;
    checkpoint.set_step(20);
    return store.Commit({.record = &record,
                         .events = absl::MakeConstSpan(&event, 1),
                         .plan = &plan,
                         .checkpoint = &checkpoint});
  }

  // Looks past the store.
  int CountRows(const std::string& table) const {
    sqlite3* database = nullptr;
    EXPECT_EQ(sqlite3_open(path_.c_str(), &database), SQLITE_OK);
    sqlite3_stmt* count = nullptr;
    const std::string sql = "SELECT count(*) FROM " + table;
    EXPECT_EQ(sqlite3_prepare_v2(database, sql.c_str(), -1, &count, nullptr), SQLITE_OK);
    EXPECT_EQ(sqlite3_step(count), SQLITE_ROW);
    const int rows = sqlite3_column_int(count, 0);
    sqlite3_finalize(count);
    sqlite3_close(database);
    return rows;
  }

  std::string path_;
};

TEST_F(StoreTest, EveryOpeningRaisesTheTerm) {
  EXPECT_EQ(Open()->term(), 1);
  EXPECT_EQ(Open()->term(), 2);
}

TEST_F(StoreTest, KeepsJobsEventsPlansAndCheckpointsOverReopening) {
  v1::Job record;
  {
    auto store = Open();
    record = *store->AddJob(Submission());
    EXPECT_EQ(record.name(), "jobs/net-1");
    ASSERT_TRUE(Advance(*store, record).ok());
  }
  auto store = Open();

  const auto jobs = store->LoadJobs();
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  ASSERT_EQ(jobs->size(), 1);
  const StoredJob& job = jobs->front();
  EXPECT_EQ(job.record.SerializeAsString(), record.SerializeAsString());
  EXPECT_EQ(job.origin.restore, "/elsewhere/step-00000010");
  EXPECT_EQ(job.origin.first_step, 10);
  ASSERT_NE(job.plan, nullptr);
  EXPECT_EQ(job.plan->session_token(), "token");
  const auto events = store->Events(1, 0, kAll);
  ASSERT_EQ(events->size(), 2);
  EXPECT_EQ((*events)[0].reason(), "SUBMITTED");
  EXPECT_EQ(store->Events(1, 1, kAll)->size(), 1);
  EXPECT_EQ(store->Checkpoints(1)->at(0).step(), 20);
}

TEST_F(StoreTest, NobodyElseReadsIt) {
  { std::ofstream(path_).flush(); }  // as one of an earlier version, readable to all
  std::filesystem::permissions(path_, std::filesystem::perms::all);
  const auto store = Open();
  ASSERT_TRUE(store->AddJob(Submission()).ok());
  for (const char* part : {"", "-wal", "-shm"}) {
    EXPECT_EQ(std::filesystem::status(path_ + part).permissions(),
              std::filesystem::perms::owner_read | std::filesystem::perms::owner_write)
        << part;
  }
}

TEST_F(StoreTest, LosesNothingWhenItsProcessIsKilled) {
  const pid_t child = fork();
  if (child == 0) {
    auto store = Store::Open(path_);
    v1::Job record = *(*store)->AddJob(Submission("request"));
    if (!Advance(**store, record).ok()) _exit(1);
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));

  auto store = Open();
  EXPECT_EQ(store->term(), 2);
  EXPECT_EQ(store->LoadJobs()->at(0).record.state(), v1::RUNNING);
  EXPECT_EQ(store->Events(1, 0, kAll)->size(), 2);
  EXPECT_EQ((*store->FindRequest("request"))->job, "net-1");
}

TEST_F(StoreTest, ForgetsADeletedJobButNeverReusesItsNumber) {
  auto store = Open();
  v1::Job record = *store->AddJob(Submission("request"));
  ASSERT_TRUE(Advance(*store, record).ok());

  ASSERT_TRUE(store->DeleteJob(1).ok());

  EXPECT_TRUE(store->LoadJobs()->empty());
  EXPECT_TRUE(store->Events(1, 0, kAll)->empty());
  EXPECT_TRUE(store->Checkpoints(1)->empty());
  EXPECT_FALSE(store->FindRequest("request")->has_value());
  EXPECT_EQ(store->AddJob(Submission())->number(), 2);
}

TEST_F(StoreTest, RemovesTheRecordsOfPrunedCheckpoints) {
  auto store = Open();
  v1::Job record = *store->AddJob(Submission());
  ASSERT_TRUE(Advance(*store, record).ok());
  const int64_t removed = 20;

  ASSERT_TRUE(
      store->Commit({.record = &record, .checkpoints_removed = absl::MakeConstSpan(&removed, 1)})
          .ok());

  EXPECT_TRUE(store->Checkpoints(1)->empty());
}

TEST_F(StoreTest, CannotBeSharedByTwoCoordinators) {
  auto store = Open();

  const auto second = Store::Open(path_);

  EXPECT_TRUE(absl::IsUnavailable(second.status())) << second.status();
  EXPECT_EQ(ReasonOf(second.status()), "STORE_LOCKED");
}

TEST_F(StoreTest, TheClusterKeepsItsIdForAsLongAsItsFile) {
  const std::string id = Open()->cluster();
  EXPECT_EQ(id.size(), 36) << id;
  EXPECT_EQ(id[14], '4') << "a random UUID: " << id;

  EXPECT_EQ(Open()->cluster(), id);
  std::filesystem::remove_all(std::filesystem::path(path_).parent_path());
  std::filesystem::create_directory(std::filesystem::path(path_).parent_path());
  EXPECT_NE(Open()->cluster(), id);
}

// As schema 2 left them.
TEST_F(StoreTest, AnOlderStoreIsGivenAnId) {
  Open();
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(path_.c_str(), &database), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(database,
                         "DROP TABLE cluster; DROP TABLE seats; DROP TABLE tokens; "
                         "PRAGMA user_version = 2",
                         nullptr, nullptr, nullptr),
            SQLITE_OK);
  sqlite3_close(database);

  const std::string id = Open()->cluster();

  EXPECT_EQ(id.size(), 36);
  EXPECT_EQ(Open()->cluster(), id);
}

TEST_F(StoreTest, RemembersTheNewestProcessOfEachName) {
  auto store = Open();
  for (const Store::Seat& seat : {Store::Seat{"w-0", 7}, {"w-1", 8}, {"w-0", 9}}) {
    ASSERT_TRUE(store->Commit({.seat = &seat}).ok());
  }
  store.reset();

  const auto seats = Open()->Seats();

  ASSERT_TRUE(seats.ok()) << seats.status();
  ASSERT_EQ(seats->size(), 2);
  EXPECT_EQ(seats->at(0).member, "w-0");
  EXPECT_EQ(seats->at(0).ordinal, 9);
  EXPECT_EQ(seats->at(1).ordinal, 8);
}

TEST_F(StoreTest, ADamagedJobIsLoadedWithWhatIsLeftOfItAndHarmsNoOther) {
  {
    auto store = Open();
    for (int job = 0; job < 3; ++job) {
      v1::Job record = *store->AddJob(Submission());
      ASSERT_TRUE(Advance(*store, record).ok());
    }
  }
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(path_.c_str(), &database), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(database,
                         "UPDATE jobs SET record = x'ff' WHERE number = 1;"
                         "UPDATE plans SET plan = x'ff' WHERE job = 2",
                         nullptr, nullptr, nullptr),
            SQLITE_OK);
  sqlite3_close(database);

  const auto jobs = Open()->LoadJobs();

  ASSERT_TRUE(jobs.ok()) << jobs.status();
  ASSERT_EQ(jobs->size(), 3);
  EXPECT_EQ(jobs->at(0).record.number(), 1);
  EXPECT_EQ(ReasonOf(jobs->at(0).damage), "STORE_CORRUPT");
  EXPECT_EQ(jobs->at(1).record.name(), "jobs/net-2");
  EXPECT_EQ(ReasonOf(jobs->at(1).damage), "STORE_CORRUPT");
  EXPECT_EQ(jobs->at(1).plan, nullptr);
  EXPECT_TRUE(jobs->at(2).damage.ok());
  EXPECT_NE(jobs->at(2).plan, nullptr);
}

TEST_F(StoreTest, RefusesANewerSchema) {
  Open();
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(path_.c_str(), &database), SQLITE_OK);
  sqlite3_exec(database, "PRAGMA user_version = 99", nullptr, nullptr, nullptr);
  sqlite3_close(database);

  const auto store = Store::Open(path_);

  EXPECT_EQ(ReasonOf(store.status()), "STORE_TOO_NEW") << store.status();
}

TEST_F(StoreTest, RefusesAFileThatIsNoStore) {
  std::ofstream(path_) << std::string(8192, 'x');

  const auto store = Store::Open(path_);

  EXPECT_TRUE(absl::IsDataLoss(store.status())) << store.status();
  EXPECT_EQ(ReasonOf(store.status()), "STORE_CORRUPT");
}

TEST_F(StoreTest, SaysWhereItCannotWrite) {
  const auto store = Store::Open("/proc/no/such/folder/coordinator.db");

  EXPECT_EQ(ReasonOf(store.status()), "STORE_UNWRITABLE");
  EXPECT_NE(store.status().message().find("/proc/no/such"), absl::string_view::npos);
}

TEST_F(StoreTest, KeepsTheNewestEventsOfAJobAndGivesThemOutInPages) {
  auto store = Open();
  v1::Job record = *store->AddJob(Submission());
  std::vector<v1::JobEvent> events(limits::kJobEventsKeptMax + 6);
  for (v1::JobEvent& event : events) {
    record.set_revision(record.revision() + 1);
    event.set_revision(record.revision());
  }
  ASSERT_TRUE(store->Commit({.record = &record, .events = events}).ok());

  const auto all = store->Events(1, 0, kAll);
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_EQ(all->size(), limits::kJobEventsKeptMax);
  EXPECT_EQ(all->front().revision(), 8);
  EXPECT_EQ(all->back().revision(), record.revision());
  const auto page = store->Events(1, 10, 3);
  ASSERT_EQ(page->size(), 3);
  EXPECT_EQ(page->front().revision(), 11);
  EXPECT_EQ(page->back().revision(), 13);
}

TEST_F(StoreTest, KeepsThePlanOfTheLastGenerationUntilTheJobHasEnded) {
  auto store = Open();
  v1::Job record = *store->AddJob(Submission());
  ASSERT_TRUE(Advance(*store, record).ok());
  record.set_generation(2);
  v1::JobPlan plan;
  plan.set_generation(2);
  ASSERT_TRUE(store->Commit({.record = &record, .plan = &plan}).ok());
  EXPECT_EQ(store->LoadJobs()->front().plan->generation(), 2);
  EXPECT_EQ(CountRows("plans"), 1) << "the one before is of no use";

  record.set_state(v1::SUCCEEDED);
  record.mutable_end_time()->set_seconds(1);
  ASSERT_TRUE(store->Commit({.record = &record}).ok());

  EXPECT_EQ(CountRows("plans"), 0);
  EXPECT_EQ(store->LoadJobs()->front().plan, nullptr);
}

}  // namespace
}  // namespace muster
