#include "services/coordinator/store/state_folder.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "lib/status/status.h"
#include "services/coordinator/testing/recorded_disk.h"

namespace muster::state_folder_test {
namespace {

namespace fs = std::filesystem;

std::string NewPath() {
  std::string path = ::testing::TempDir() + "/state-XXXXXX";
  EXPECT_NE(mkdtemp(path.data()), nullptr);
  return path;
}

TEST(StateFolderTest, AllProcessesGetTheSameId) {
  const std::string path = NewPath();
  const auto id = StateFolder::Open(path)->Id();
  ASSERT_TRUE(id.ok()) << id.status();

  EXPECT_EQ(id->size(), 36);
  EXPECT_EQ(*StateFolder::Open(path)->Id(), *id);
  EXPECT_NE(*StateFolder::Open(NewPath())->Id(), *id);
  EXPECT_EQ(std::distance(fs::directory_iterator(path), fs::directory_iterator()), 2);

  std::ofstream(path + "/folder.id", std::ios::trunc).flush();
  EXPECT_EQ(ReasonOf(StateFolder::Open(path)->Id().status()), "STATE_DIR_FAILED");
}

TEST(StateFolderTest, JobFilesAreHiddenAtOnceAndRemovedLaterDespiteACrash) {
  const std::string path = NewPath() + "/deeper/still";
  const auto folder = StateFolder::Open(path);
  ASSERT_TRUE(folder.ok()) << folder.status();
  for (const char* id : {"a-1", "b-2"}) {
    ASSERT_TRUE(folder->MakeJob(id).ok());
    std::ofstream(folder->metrics_log(id)) << "{}\n";
    ASSERT_TRUE(folder->SetJobAside(id).ok());
    EXPECT_FALSE(fs::exists(folder->job(id)));
  }

  folder->RemoveJobSetAside("a-1");
  EXPECT_EQ(std::distance(fs::directory_iterator(path + "/jobs"), fs::directory_iterator()), 1);
  folder->RemoveAllSetAside();

  EXPECT_TRUE(fs::is_empty(path + "/jobs"));
  EXPECT_TRUE(folder->SetJobAside("never-ran-3").ok());
}

TEST(StateFolderTest, ListsTheJobsThatHaveAFolder) {
  const std::string path = NewPath();
  const auto folder = StateFolder::Open(path);
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_TRUE(folder->JobFolders()->empty());
  for (const char* id : {"net-1", "a-b-20", "net-7"}) ASSERT_TRUE(folder->MakeJob(id).ok());
  ASSERT_TRUE(folder->SetJobAside("net-7").ok());
  for (const char* other : {"lost+found", "net-", "net-x", "12", "net-1000000000001"}) {
    fs::create_directory(path + "/jobs/" + other);
  }
  std::ofstream(path + "/jobs/notes-99") << "a file";

  const auto jobs = folder->JobFolders();

  ASSERT_TRUE(jobs.ok()) << jobs.status();
  std::map<std::string, uint64_t> numbers;
  for (const auto& job : *jobs) numbers[job.id] = job.number;
  EXPECT_EQ(numbers, (std::map<std::string, uint64_t>{{"net-1", 1}, {"a-b-20", 20}, {"net-7", 7}}));
  fs::remove_all(path + "/jobs");
  EXPECT_EQ(ReasonOf(folder->JobFolders().status()), "STATE_DIR_FAILED");
}

TEST(StateFolderTest, APowerCutDoesNotRestoreAJobThatWasSetAside) {
  const std::string path = NewPath();
  RecordedDisk disk(path);
  const auto folder = StateFolder::Open(path);
  ASSERT_TRUE(folder.ok()) << folder.status();
  ASSERT_TRUE(folder->MakeJob("a-1").ok());
  ASSERT_TRUE(folder->SetJobAside("a-1").ok());

  CachedTree tree;
  for (const CachedTree::Change& change : disk.Take()) tree.Apply(change);
  const std::string found = NewPath() + "/found";
  tree.Leave(CachedTree::Loss::kWhatWasNotSynced, found);

  EXPECT_FALSE(fs::exists(found + "/jobs/a-1"));
  EXPECT_TRUE(fs::exists(found + "/jobs/a-1.deleted"));
}

TEST(StateFolderTest, NamesAPathThatItCannotCreate) {
  const std::string path = NewPath() + "/file";
  std::ofstream(path) << "in the way";

  const auto folder = StateFolder::Open(path + "/state");

  EXPECT_EQ(ReasonOf(folder.status()), "STATE_DIR_FAILED");
  EXPECT_NE(folder.status().message().find("/file: "), std::string::npos) << folder.status();
}

}  // namespace
}  // namespace muster::state_folder_test
