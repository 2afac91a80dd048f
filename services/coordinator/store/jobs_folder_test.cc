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
  // As when nothing is mounted there.
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

TEST_F(JobsFolderTest, AVolumeThatIsNotMountedIsMissed) {
  ASSERT_TRUE(CheckJobsFolder(*folder_, {}).ok()) << "nothing was trained yet";
  EXPECT_TRUE(Check().ok()) << "known from now on";
  Unmount();
  const absl::Status missed = Check();
  EXPECT_EQ(missed.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(missed), "JOBS_NOT_MOUNTED");
  EXPECT_THAT(std::string(missed.message()),
              HasSubstr("/jobs is not where this coordinator's jobs have their checkpoints: it has "
                        "those of none of the 2 jobs that have some, such as a-1. Is the volume "
                        "mounted that belongs there?"));
  EXPECT_FALSE(fs::exists(path_ + "/jobs/folder.id")) << "or the next start would find it";
  Mount(path_ + "/volume");
  EXPECT_TRUE(Check().ok());
}

TEST_F(JobsFolderTest, AnotherVolumeIsNotTakenForIt) {
  ASSERT_TRUE(CheckJobsFolder(*folder_, {}).ok());
  std::ofstream(path_ + "/jobs/folder.id") << "of another state folder";
  ASSERT_TRUE(folder_->MakeJob("a-1/checkpoints").ok()) << "who has such a job too";
  EXPECT_THAT(std::string(Check().message()), HasSubstr("it belongs to the state folder of"));
  EXPECT_FALSE(CheckJobsFolder(*folder_, {}).ok());

  ASSERT_TRUE(AdoptJobsFolder(*folder_).ok());
  EXPECT_TRUE(Check().ok());
}

TEST_F(JobsFolderTest, AnOlderOneIsKnownByItsJobs) {
  EXPECT_EQ(ReasonOf(Check()), "JOBS_NOT_MOUNTED");
  ASSERT_TRUE(folder_->MakeJob("a-1").ok());
  EXPECT_FALSE(Check().ok()) << "an older coordinator made it where it found none";
  ASSERT_TRUE(folder_->MakeJob("b-2/checkpoints").ok());
  EXPECT_TRUE(Check().ok());
  EXPECT_TRUE(fs::exists(path_ + "/jobs/folder.id"));
}

TEST_F(JobsFolderTest, AnAttemptThatWasCutOffIsInNobodysWay) {
  std::ofstream(path_ + "/folder.id.tmp") << "half";
  std::ofstream(path_ + "/jobs/folder.id.tmp") << "half";
  ASSERT_TRUE(CheckJobsFolder(*folder_, {}).ok());
  EXPECT_TRUE(Check().ok());
  EXPECT_FALSE(fs::exists(path_ + "/jobs/folder.id.tmp"));
}

TEST_F(JobsFolderTest, ADiskThatTakesNoIdNowKeepsNobodyFromStarting) {
  fs::create_directories(path_ + "/jobs/folder.id.tmp/in-the-way");
  EXPECT_TRUE(CheckJobsFolder(*folder_, {}).ok());
  EXPECT_FALSE(fs::exists(path_ + "/jobs/folder.id"));
  fs::remove_all(path_ + "/jobs/folder.id.tmp");
  EXPECT_TRUE(CheckJobsFolder(*folder_, {}).ok());
  EXPECT_TRUE(fs::exists(path_ + "/jobs/folder.id"));
}

TEST_F(JobsFolderTest, AStateFolderThatWasLostTakesTheIdOfItsJobsOver) {
  ASSERT_TRUE(CheckJobsFolder(*folder_, {}).ok());
  const std::string id = *folder_->Id();
  fs::remove(path_ + "/folder.id");
  EXPECT_FALSE(Check().ok()) << "of none of the store's jobs";
  ASSERT_TRUE(folder_->MakeJob("a-1/checkpoints").ok());
  EXPECT_TRUE(Check().ok());
  EXPECT_EQ(*folder_->Id(), id);
}

}  // namespace
}  // namespace muster::jobs_folder_test
