#include "lib/file/replaced_file.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::replaced_file_test {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class ReplacedFileTest : public ::testing::Test {
 protected:
  ReplacedFileTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  int64_t FilesInFolder() const {
    return std::distance(std::filesystem::directory_iterator(folder_), {});
  }

  const std::string folder_ = ::testing::TempDir() + "/replaced_file";
  const std::string path_ = folder_ + "/file";
};

TEST_F(ReplacedFileTest, HasTheContentAndTheMode) {
  ASSERT_TRUE(ReplaceFile(path_, "a long first content").ok());
  ASSERT_TRUE(ReplaceFile(path_, "second", 0600).ok());

  EXPECT_EQ(Read(path_), "second");
  struct stat facts;
  ASSERT_EQ(stat(path_.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600);
  EXPECT_EQ(FilesInFolder(), 1);
}

// The limit makes the write short first, as a disk that becomes full does.
TEST_F(ReplacedFileTest, AShortWriteIsAnErrorAndLeavesTheOldFile) {
  ASSERT_TRUE(ReplaceFile(path_, "old").ok());
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {.rlim_cur = 100, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);

  const absl::Status status = ReplaceFile(path_, std::string(1000, 'n'));

  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(path_ + ": cannot be written: write "),
                                                   EndsWith(".tmp: File too large")));
  EXPECT_EQ(Read(path_), "old");
  EXPECT_EQ(FilesInFolder(), 1);
}

TEST_F(ReplacedFileTest, AFolderThatDoesNotExistIsNamed) {
  const absl::Status status = ReplaceFile(folder_ + "/none/file", "text");

  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("/none/file: cannot be written: open "),
                    EndsWith(".tmp: No such file or directory")));
}

}  // namespace
}  // namespace muster::replaced_file_test
