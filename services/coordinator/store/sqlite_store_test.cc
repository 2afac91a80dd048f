#include "services/coordinator/store/sqlite_store.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/status/status.h"
#include "services/coordinator/testing/store_conformance.h"

namespace muster::sqlite_store_test {
namespace {

std::string NewPath() {
  std::string folder = ::testing::TempDir() + "/store-XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  return folder + "/coordinator.db";
}

int TakeNumber(void* number, int, char** columns, char**) {
  *static_cast<int*>(number) = atoi(columns[0]);
  return 0;
}

// Executes SQL without the store. Returns the selected number, if there is one.
int Execute(const std::string& path, const std::string& sql) {
  sqlite3* database = nullptr;
  EXPECT_EQ(sqlite3_open(path.c_str(), &database), SQLITE_OK);
  int number = 0;
  EXPECT_EQ(sqlite3_exec(database, sql.c_str(), TakeNumber, &number, nullptr), SQLITE_OK)
      << sqlite3_errmsg(database);
  sqlite3_close(database);
  return number;
}

class SqliteBench final : public StoreBench {
 public:
  absl::StatusOr<std::unique_ptr<Store>> Open() override { return SqliteStore::Open(path_); }
  void SpoilRecord(uint64_t job) override {
    Execute(path_, absl::StrCat("UPDATE jobs SET record = x'ff' WHERE number = ", job));
  }
  void SpoilPlan(uint64_t job) override {
    Execute(path_, absl::StrCat("UPDATE plans SET plan = x'ff' WHERE job = ", job));
  }
  void SpoilOrigin(uint64_t job) override {
    Execute(path_, absl::StrCat("UPDATE jobs SET graph = x'ff' WHERE number = ", job));
  }
  void SpoilFirstEvent(uint64_t job) override {
    Execute(path_,
            absl::StrCat("UPDATE events SET event = x'ff' WHERE revision = 1 AND job = ", job));
  }
  void SpoilCheckpoint(uint64_t job, int64_t step) override {
    Execute(path_, absl::StrCat("UPDATE checkpoints SET record = x'ff' WHERE job = ", job,
                                " AND step = ", step));
  }
  void SpoilToken(const std::string& id) override {
    Execute(path_, absl::StrCat("UPDATE tokens SET record = x'ff' WHERE id = '", id, "'"));
  }
  int CountPlans() override { return Execute(path_, "SELECT count(*) FROM plans"); }

 private:
  const std::string path_ = NewPath();
};

INSTANTIATE_TEST_SUITE_P(Sqlite, StoreConformance,
                         ::testing::Values([] { return std::make_unique<SqliteBench>(); }));

class SqliteStoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<Store> Open() {
    auto store = SqliteStore::Open(path_);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }

  const std::string path_ = NewPath();
};

TEST_F(SqliteStoreTest, OnlyTheOwnerMayReadTheFile) {
  { std::ofstream(path_).flush(); }  // readable to all, as an earlier version created it
  std::filesystem::permissions(path_, std::filesystem::perms::all);
  const auto store = Open();
  ASSERT_TRUE(store->AddJob(StoreConformance::Submission()).ok());
  for (const char* part : {"", "-wal", "-shm"}) {
    EXPECT_EQ(std::filesystem::status(path_ + part).permissions(),
              std::filesystem::perms::owner_read | std::filesystem::perms::owner_write)
        << part;
  }
}

TEST_F(SqliteStoreTest, LosesNothingWhenItsProcessIsKilled) {
  const pid_t child = fork();
  if (child == 0) {
    auto store = SqliteStore::Open(path_);
    v1::Job record = *(*store)->AddJob(StoreConformance::Submission("request"));
    if (!StoreConformance::Advance(**store, record).ok()) _exit(1);
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));

  auto store = Open();
  EXPECT_EQ(store->term(), 2);
  EXPECT_EQ(store->LoadJobs()->at(0).record.state(), v1::RUNNING);
  EXPECT_EQ(store->Events(1, 0, 10)->size(), 2);
  EXPECT_EQ((*store->FindRequest("request"))->job, "net-1");
}

// Recreates the tables of schema 2.
TEST_F(SqliteStoreTest, AnOlderStoreGetsAClusterId) {
  Open();
  Execute(path_,
          "DROP TABLE cluster; DROP TABLE seats; DROP TABLE tokens; PRAGMA user_version = 2");

  const std::string id = Open()->cluster();

  EXPECT_EQ(id.size(), 36);
  EXPECT_EQ(Open()->cluster(), id);
}

TEST_F(SqliteStoreTest, RefusesANewerSchema) {
  Open();
  Execute(path_, "PRAGMA user_version = 99");

  const auto store = SqliteStore::Open(path_);

  EXPECT_EQ(ReasonOf(store.status()), "STORE_TOO_NEW") << store.status();
}

TEST_F(SqliteStoreTest, RefusesAFileThatIsNotAStore) {
  std::ofstream(path_) << std::string(8192, 'x');

  const auto store = SqliteStore::Open(path_);

  EXPECT_TRUE(absl::IsDataLoss(store.status())) << store.status();
  EXPECT_EQ(ReasonOf(store.status()), "STORE_CORRUPT");
}

TEST_F(SqliteStoreTest, NamesTheFileThatItCannotWrite) {
  const auto store = SqliteStore::Open("/proc/no/such/folder/coordinator.db");

  EXPECT_EQ(ReasonOf(store.status()), "STORE_UNWRITABLE");
  EXPECT_NE(store.status().message().find("/proc/no/such"), absl::string_view::npos);
}

}  // namespace
}  // namespace muster::sqlite_store_test
