#include "services/coordinator/store/store_backup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "lib/fleet/log_ring.h"
#include "lib/status/status.h"
#include "services/coordinator/common/proto_time.h"
#include "services/coordinator/store/restore.h"
#include "services/coordinator/store/sqlite_store.h"
#include "services/coordinator/store/store_choice.h"
#include "services/coordinator/testing/store_conformance.h"

namespace muster::store_backup_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

std::string NewFolder() {
  std::string folder = ::testing::TempDir() + "/backup-XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  return folder;
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

// This test only uses the functions of StoreConformance that create jobs.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StoreConformance);

class StoreBackupTest : public ::testing::Test {
 protected:
  StoreBackupTest() {
    auto store = Open();
    v1::Job record = *store->AddJob(StoreConformance::Submission("request"));
    EXPECT_TRUE(StoreConformance::Advance(*store, record).ok());
    EXPECT_TRUE(store->AddJob(StoreConformance::Submission()).ok());
    EXPECT_TRUE(store->DeleteJob(2).ok());
    cluster_ = store->cluster();
    store.reset();
    MakeBackup();
  }
  void MakeBackup() const {
    std::ofstream file(backup_, std::ios::binary);
    StoreBackupWriter writer([&](absl::string_view bytes) {
      file << bytes;
      return absl::OkStatus();
    });
    EXPECT_TRUE(Open()->Export([&](const v1::BackupRecord& it) { return writer.Add(it); }).ok());
    EXPECT_TRUE(writer.Finish().ok());
  }

  // Makes a complete backup that has one job twice, so that the import fails midway.
  void MakeBackupThatFails() const {
    std::ofstream file(backup_, std::ios::binary);
    StoreBackupWriter writer([&](absl::string_view bytes) {
      file << bytes;
      return absl::OkStatus();
    });
    v1::BackupRecord header;
    header.mutable_header()->set_cluster(cluster_);
    v1::BackupRecord job;
    job.mutable_job()->set_number(7);
    for (const v1::BackupRecord* record : {&header, &job, &job}) {
      EXPECT_TRUE(writer.Add(*record).ok());
    }
    EXPECT_TRUE(writer.Finish().ok());
  }
  static std::vector<std::string> NamesIn(const std::string& folder) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) {
      names.push_back(entry.path().filename());
    }
    return names;
  }

  std::unique_ptr<Store> Open() const {
    auto store = SqliteStore::Open(folder_ + "/coordinator.db");
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  absl::Status Restore(Occupied occupied, const std::string& folder) const {
    const auto choice = StoreChoice::FromFlags(folder);  // no flag is set, so this is SQLite
    EXPECT_TRUE(choice.ok()) << choice.status();
    return RestoreStoreBackup(backup_, **choice, occupied);
  }

  const std::string folder_ = NewFolder();
  const std::string backup_ = NewFolder() + "/backup";
  std::string cluster_;
};

TEST_F(StoreBackupTest, RestoresJobsIntoAnEmptyFolderAsANewCluster) {
  const std::string elsewhere = NewFolder();

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
  EXPECT_EQ((*store)->AddJob(StoreConformance::Submission())->number(), 3)
      << "one job was deleted before";
}

TEST_F(StoreBackupTest, ReplacesExistingJobsOnlyIfAllowedAndKeepsTheOldStore) {
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

// The coordinator of a systemd unit does not run as root, but a user may restore a backup as root.
TEST_F(StoreBackupTest, RootRestoresFilesForTheOwnerOfTheFolder) {
  constexpr uid_t kOwner = 65532;
  for (const bool give_up : {false, true}) {
    const std::string elsewhere = NewFolder();
    const std::string outside = NewFolder() + "/file";
    std::ofstream(outside) << "root's";
    fs::create_symlink(outside, elsewhere + "/folder.id");
    if (geteuid() != 0 || lchown(elsewhere.c_str(), kOwner, kOwner) != 0) {
      GTEST_SKIP() << "only root can change the owner of files";
    }
    if (give_up) {
      std::ofstream(elsewhere + "/coordinator.db") << std::string(8192, 'x');
      ASSERT_EQ(lchown((elsewhere + "/coordinator.db").c_str(), kOwner, kOwner), 0);
    }

    ASSERT_TRUE(Restore(give_up ? Occupied::kGiveUp : Occupied::kRefuse, elsewhere).ok());

    for (const auto& entry : fs::directory_iterator(elsewhere)) {
      struct stat its {};
      ASSERT_EQ(lstat(entry.path().c_str(), &its), 0);
      EXPECT_EQ(its.st_uid, entry.is_symlink() ? 0 : kOwner) << entry.path();
    }
    struct stat its {};
    ASSERT_EQ(stat(outside.c_str(), &its), 0);
    EXPECT_EQ(its.st_uid, 0);
  }
}

class TokenBackupTest : public StoreBackupTest {
 protected:
  TokenBackupTest() {
    for (const char* id : {"t-1", "t-2", "t-3"}) Put(id, /*revoked=*/false);
    MakeBackup();
    Put("t-1", /*revoked=*/true);
    Put("t-4", /*revoked=*/true);
  }
  void Put(const std::string& id, bool revoked) const {
    Store::Token token{.record = {}, .hash = "hash of " + id};
    token.record.set_id(id);
    *token.record.mutable_expire_time() = ToProto(absl::Now() + absl::Hours(id == "t-3" ? -1 : 1));
    if (revoked) *token.record.mutable_revoke_time() = ToProto(absl::Now());
    EXPECT_TRUE(Open()->PutToken(token).ok());
  }
  std::string Logged() const { return log_.Read(0, 1 << 20).text; }

  const LogRing log_{1 << 20};
};

TEST_F(TokenBackupTest, TokensRevokedInTheReplacedStoreStayRevoked) {
  ASSERT_TRUE(Restore(Occupied::kGiveUp, folder_).ok());

  const auto tokens = Open()->Tokens();
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  ASSERT_EQ(tokens->size(), 3);
  for (const Store::Token& token : *tokens) {
    EXPECT_EQ(token.record.has_revoke_time(), token.record.id() == "t-1") << token.record.id();
    EXPECT_EQ(token.hash, "hash of " + token.record.id());
  }
  EXPECT_THAT(Logged(), HasSubstr("1 tokens stay revoked"));
  EXPECT_THAT(Logged(), HasSubstr("1 tokens are valid, as at the time of the backup"));
}

TEST_F(TokenBackupTest, WarnsThatTokensAreValidAgainInAnotherFolder) {
  ASSERT_TRUE(Restore(Occupied::kRefuse, NewFolder()).ok());

  EXPECT_THAT(Logged(),
              HasSubstr("2 tokens are valid, as at the time of the backup. Tokens revoked "
                        "since then are valid again: muster token list"));
}

TEST_F(TokenBackupTest, WarnsIfTheReplacedStoreCannotBeRead) {
  std::ofstream(folder_ + "/coordinator.db", std::ios::trunc) << std::string(8192, 'x');

  ASSERT_TRUE(Restore(Occupied::kGiveUp, folder_).ok());

  EXPECT_THAT(Logged(), HasSubstr("cannot read which tokens were revoked in the replaced store"));
  EXPECT_THAT(Logged(), HasSubstr("2 tokens are valid"));
}

TEST_F(StoreBackupTest, ReplacesADamagedStore) {
  std::ofstream(folder_ + "/coordinator.db", std::ios::trunc) << std::string(8192, 'x');

  EXPECT_EQ(ReasonOf(Restore(Occupied::kRefuse, folder_)), "STORE_CORRUPT");
  ASSERT_TRUE(Restore(Occupied::kGiveUp, folder_).ok());

  EXPECT_EQ(Open()->LoadJobs()->size(), 1);
}

TEST_F(StoreBackupTest, AFailedRestoreLeavesTheStoreUnchanged) {
  MakeBackupThatFails();

  EXPECT_EQ(ReasonOf(Restore(Occupied::kGiveUp, folder_)), "STORE_FAILED");

  const auto store = Open();
  EXPECT_EQ(store->cluster(), cluster_);
  ASSERT_EQ(store->LoadJobs()->size(), 1);
  EXPECT_EQ(store->LoadJobs()->front().record.name(), "jobs/net-1");
  for (const std::string& name : NamesIn(folder_)) {
    EXPECT_THAT(name, Not(HasSubstr("restor"))) << "fills the disk";
  }
}

// A coordinator that started with an empty store would remove all model values, because no job of
// that store uses them.
TEST_F(StoreBackupTest, AFailedRestoreIntoAnEmptyFolderLeavesNoStore) {
  const std::string whole = ReadAll(backup_);
  const std::string elsewhere = NewFolder();
  MakeBackupThatFails();
  for (const Occupied occupied : {Occupied::kRefuse, Occupied::kGiveUp}) {
    EXPECT_EQ(ReasonOf(Restore(occupied, elsewhere)), "STORE_FAILED");

    EXPECT_FALSE(fs::exists(elsewhere + "/coordinator.db"));
    const absl::Status none = SqliteStore::Open(elsewhere + "/coordinator.db").status();
    EXPECT_EQ(ReasonOf(none), "STORE_CORRUPT") << none;
    EXPECT_THAT(std::string(none.message()), HasSubstr("has not ended"));
  }
  std::ofstream(backup_, std::ios::binary) << whole;
  ASSERT_TRUE(Restore(Occupied::kRefuse, elsewhere).ok()) << "the restore is repeated";

  EXPECT_EQ((*SqliteStore::Open(elsewhere + "/coordinator.db"))->LoadJobs()->size(), 1);
}

TEST_F(StoreBackupTest, TheNextRestoreRemovesTheFilesOfOneThatCrashed) {
  const auto leave = [&] {
    for (const char* suffix : {"", "-wal", "-shm"}) {
      std::ofstream(folder_ + "/coordinator.db.restoring" + suffix) << std::string(8192, 'x');
    }
  };
  const auto expect_none_left = [&] {
    for (const std::string& name : NamesIn(folder_)) {
      EXPECT_THAT(name, Not(HasSubstr("restoring")));
    }
  };
  leave();
  EXPECT_EQ(Open()->cluster(), cluster_);
  expect_none_left();
  // Simulates a crash after the old store was renamed and before the new one was.
  leave();
  fs::rename(folder_ + "/coordinator.db", folder_ + "/kept");
  std::ofstream(folder_ + "/coordinator.db-wal") << "of the old one";
  EXPECT_EQ(ReasonOf(SqliteStore::Open(folder_ + "/coordinator.db").status()), "STORE_CORRUPT");
  EXPECT_FALSE(fs::exists(folder_ + "/coordinator.db"));

  ASSERT_TRUE(Restore(Occupied::kRefuse, folder_).ok());

  EXPECT_EQ(Open()->LoadJobs()->size(), 1);
  expect_none_left();
}

TEST_F(StoreBackupTest, RejectsADamagedBackupBeforeAnyChange) {
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

TEST_F(StoreBackupTest, RejectsABackupOfANewerMuster) {
  std::string other = ReadAll(backup_);
  other[other.find('1')] = '2';
  std::ofstream(backup_, std::ios::binary) << other;

  EXPECT_EQ(ReasonOf(Restore(Occupied::kRefuse, NewFolder())), "BACKUP_TOO_NEW");
}

}  // namespace
}  // namespace muster::store_backup_test
