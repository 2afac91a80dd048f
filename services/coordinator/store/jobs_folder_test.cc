#include "services/coordinator/store/jobs_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "lib/status/status.h"

namespace muster::jobs_folder_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class JobsFolderTest : public ::testing::Test {
 protected:
  JobsFolderTest() {
    path_ = ::testing::TempDir() + "/jobs-folder-XXXXXX";
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
    Open();
  }
  void Open() {
    auto folder = StateFolder::Open(path_);
    EXPECT_TRUE(folder.ok()) << folder.status();
    folder_.emplace(*std::move(folder));
  }
  // Simulates that no volume is mounted at jobs/.
  void Unmount() {
    fs::rename(path_ + "/jobs", path_ + "/volume");
    Open();
  }
  void Mount(const std::string& volume) {
    fs::remove_all(path_ + "/jobs");
    fs::rename(volume, path_ + "/jobs");
  }
  absl::Status Check() const { return CheckJobsFolder(*folder_, {"a-1", "b-2"}); }

  std::string path_;
  std::optional<StateFolder> folder_;
};

TEST_F(JobsFolderTest, DetectsThatTheVolumeIsNotMounted) {
  ASSERT_TRUE(CheckJobsFolder(*folder_, {}).ok()) << "no job has trained yet";
  EXPECT_TRUE(Check().ok()) << "the folder is marked now";
  Unmount();
  const absl::Status missed = Check();
  EXPECT_EQ(missed.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(missed), "JOBS_NOT_MOUNTED");
  EXPECT_THAT(
      std::string(missed.message()),
      HasSubstr("/jobs is not the folder that has the checkpoints of this coordinator's jobs: "
                "it has none of the checkpoints of 2 jobs, such as a-1. Is the right volume "
                "mounted?"));
  EXPECT_FALSE(fs::exists(path_ + "/jobs/folder.id")) << "otherwise the next start would accept it";
  Mount(path_ + "/volume");
  EXPECT_TRUE(Check().ok());
}

TEST_F(JobsFolderTest, RejectsAnotherVolume) {
  ASSERT_TRUE(CheckJobsFolder(*folder_, {}).ok());
  std::ofstream(path_ + "/jobs/folder.id") << "of another state folder";
  ASSERT_TRUE(folder_->MakeJob("a-1/checkpoints").ok())
      << "the other folder has a job of that name";
  EXPECT_THAT(std::string(Check().message()), HasSubstr("it belongs to the state folder of"));
  EXPECT_FALSE(CheckJobsFolder(*folder_, {}).ok());

  ASSERT_TRUE(AdoptJobsFolder(*folder_).ok());
  EXPECT_TRUE(Check().ok());
}

TEST_F(JobsFolderTest, RecognizesAFolderWithoutAnIdByItsJobs) {
  EXPECT_EQ(ReasonOf(Check()), "JOBS_NOT_MOUNTED");
  ASSERT_TRUE(folder_->MakeJob("a-1").ok());
  EXPECT_FALSE(Check().ok()) << "an older coordinator created an empty one";
  ASSERT_TRUE(folder_->MakeJob("b-2/checkpoints").ok());
  EXPECT_TRUE(Check().ok());
  EXPECT_TRUE(fs::exists(path_ + "/jobs/folder.id"));
}

TEST_F(JobsFolderTest, ADiskThatRejectsTheIdDoesNotPreventTheStart) {
  fs::create_directories(path_ + "/jobs/folder.id/in-the-way");
  EXPECT_TRUE(CheckJobsFolder(*folder_, {}).ok());
  fs::remove_all(path_ + "/jobs/folder.id");
  EXPECT_TRUE(CheckJobsFolder(*folder_, {}).ok());
  EXPECT_TRUE(fs::is_regular_file(path_ + "/jobs/folder.id"));
}

TEST_F(JobsFolderTest, ANewStateFolderAdoptsTheIdOfItsJobsFolder) {
  ASSERT_TRUE(CheckJobsFolder(*folder_, {}).ok());
  const std::string id = *folder_->Id();
  fs::remove(path_ + "/folder.id");
  EXPECT_FALSE(Check().ok()) << "it has none of the store's jobs";
  ASSERT_TRUE(folder_->MakeJob("a-1/checkpoints").ok());
  EXPECT_TRUE(Check().ok());
  EXPECT_EQ(*folder_->Id(), id);
}

}  // namespace
}  // namespace muster::jobs_folder_test
