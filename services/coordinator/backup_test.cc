#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/status/status.h"
#include "services/coordinator/backup_file.h"
#include "services/coordinator/restore.h"
#include "services/coordinator/sqlite_store.h"
#include "services/coordinator/store_choice.h"
#include "services/coordinator/store_conformance.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string NewFolder() {
  std::string folder = ::testing::TempDir() + "/backup-XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  return folder;
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

// Only its ways to make jobs are used here.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StoreConformance);

class BackupTest : public ::testing::Test {
 protected:
  BackupTest() {
    auto store = Open();
    v1::Job record = *store->AddJob(StoreConformance::Submission("request"));
    EXPECT_TRUE(StoreConformance::Advance(*store, record).ok());
    EXPECT_TRUE(store->AddJob(StoreConformance::Submission()).ok());
    EXPECT_TRUE(store->DeleteJob(2).ok());
    cluster_ = store->cluster();
    std::ofstream file(backup_, std::ios::binary);
    BackupWriter writer([&](absl::string_view bytes) {
      file << bytes;
      return absl::OkStatus();
    });
    EXPECT_TRUE(store->Export([&](const v1::BackupRecord& it) { return writer.Add(it); }).ok());
    EXPECT_TRUE(writer.Finish().ok());
  }

  std::unique_ptr<Store> Open() const {
    auto store = SqliteStore::Open(folder_ + "/coordinator.db");
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  absl::Status Restore(Occupied occupied, const std::string& folder) const {
    const auto choice = StoreChoice::FromFlags(folder);  // SQLite, where no flag says otherwise
    EXPECT_TRUE(choice.ok()) << choice.status();
    return RestoreBackup(backup_, **choice, occupied);
  }

  const std::string folder_ = NewFolder();
  const std::string backup_ = NewFolder() + "/backup";
  std::string cluster_;
};

TEST_F(BackupTest, AnEmptyFolderHasTheJobsThenAndIsAnotherCluster) {
  const std::string elsewhere = NewFolder();
  fs::create_directories(elsewhere + "/jobs/net-41");

  const absl::Status restored = Restore(Occupied::kRefuse, elsewhere);

  ASSERT_TRUE(restored.ok()) << restored;
  const auto store = SqliteStore::Open(elsewhere + "/coordinator.db");
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_NE((*store)->cluster(), cluster_);
  EXPECT_GT((*store)->term(), Store::kTermsPassedOver);
  const auto jobs = (*store)->LoadJobs();
  ASSERT_EQ(jobs->size(), 1);
  EXPECT_EQ(jobs->front().record.name(), "jobs/net-1");
  EXPECT_NE(jobs->front().plan, nullptr);
  EXPECT_EQ((*(*store)->FindRequest("request"))->job, "net-1");
  EXPECT_EQ((*store)->AddJob(StoreConformance::Submission())->number(), 42)
      << "its folder would have files of a job that the backup does not know";
}

TEST_F(BackupTest, JobsThatAreThereAreGivenUpOnlyWhenThatIsSaidAndAreKeptAside) {
  EXPECT_TRUE(Open()->AddJob(StoreConformance::Submission()).ok());

  const absl::Status refused = Restore(Occupied::kRefuse, folder_);
  EXPECT_EQ(ReasonOf(refused), "STORE_NOT_EMPTY") << refused;
  EXPECT_EQ(Open()->LoadJobs()->size(), 2);
  {
    const auto running = Open();
    EXPECT_EQ(ReasonOf(Restore(Occupied::kGiveUp, folder_)), "STORE_LOCKED");
  }
  ASSERT_TRUE(Restore(Occupied::kGiveUp, folder_).ok());

  EXPECT_EQ(Open()->LoadJobs()->size(), 1);
  int kept = 0;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    kept += entry.path().extension().string().find("before-restore") != std::string::npos;
  }
  EXPECT_GE(kept, 1);
}

TEST_F(BackupTest, InThePlaceOfADamagedStore) {
  std::ofstream(folder_ + "/coordinator.db", std::ios::trunc) << std::string(8192, 'x');

  EXPECT_EQ(ReasonOf(Restore(Occupied::kRefuse, folder_)), "STORE_CORRUPT");
  ASSERT_TRUE(Restore(Occupied::kGiveUp, folder_).ok());

  EXPECT_EQ(Open()->LoadJobs()->size(), 1);
}

TEST_F(BackupTest, ADamagedOneIsRefusedBeforeAnythingIsTouched) {
  const std::string whole = ReadAll(backup_);
  ASSERT_GT(whole.size(), 100);
  const std::string elsewhere = NewFolder();
  for (size_t at = 0; at < whole.size(); at += 7) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    std::ofstream(backup_, std::ios::binary) << damaged;
    const std::string reason = ReasonOf(Restore(Occupied::kGiveUp, elsewhere));
    EXPECT_TRUE(reason == "BACKUP_CORRUPT" || (at < 16 && reason == "BACKUP_TOO_NEW"))
        << at << ": " << reason;
    std::ofstream(backup_, std::ios::binary) << whole.substr(0, at);
    EXPECT_EQ(ReasonOf(Restore(Occupied::kGiveUp, elsewhere)), "BACKUP_CORRUPT") << at;
  }
  EXPECT_TRUE(fs::is_empty(elsewhere));
  fs::remove(backup_);
  EXPECT_TRUE(absl::IsNotFound(Restore(Occupied::kGiveUp, elsewhere)));
}

TEST_F(BackupTest, OneOfANewerMusterSaysSo) {
  std::string other = ReadAll(backup_);
  other[other.find('1')] = '2';
  std::ofstream(backup_, std::ios::binary) << other;

  EXPECT_EQ(ReasonOf(Restore(Occupied::kRefuse, NewFolder())), "BACKUP_TOO_NEW");
}

}  // namespace
}  // namespace muster
