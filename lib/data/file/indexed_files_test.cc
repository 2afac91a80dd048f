#include "lib/data/file/indexed_files.h"

#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "gtest/gtest.h"
#include "lib/status/status.h"

namespace muster::indexed_files_test {
namespace {

std::shared_ptr<const RecordIndex> IndexOf(int files) {
  RecordIndex::Builder builder("key", 1, 0);
  for (int i = 0; i < files; ++i) {
    const std::string path = absl::StrCat(testing::TempDir(), "/indexed", i);
    std::ofstream(path) << i;
    const auto file = DataFile::Open(path, "data.x.path").value();
    builder.AddFile(path, file->bytes(), file->modified_ns());
  }
  return std::move(builder).Build();
}

int OpenDescriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

// Gives the process 512 descriptors.
class IndexedFilesTest : public testing::Test {
 protected:
  IndexedFilesTest() {
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit few = {.rlim_cur = 512, .rlim_max = before_.rlim_max};
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  }
  ~IndexedFilesTest() override { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_;
};

TEST_F(IndexedFilesTest, KeepsAQuarterOfTheDescriptorsAndReadsAllFiles) {
  const auto index = IndexOf(300);
  const int open_before = OpenDescriptors();
  const IndexedFiles files(index, "data.x.path");
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 300; ++i) {
      const auto file = files.Get(i);
      ASSERT_TRUE(file.ok()) << file.status();
      EXPECT_EQ((*file)->path(), index->files()[i].path);
    }
    EXPECT_EQ(OpenDescriptors(), open_before + 128);
  }
}

TEST_F(IndexedFilesTest, AllIndexesOfAProcessShareTheQuarter) {
  const auto index = IndexOf(100);
  const int open_before = OpenDescriptors();
  const auto read_all = [&](const IndexedFiles& files) {
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(files.Get(i).ok()) << i;
  };
  {
    const IndexedFiles first(index, "data.x.path"), second(index, "data.x.path");
    read_all(first);
    read_all(second);
    EXPECT_EQ(OpenDescriptors(), open_before + 128);
  }
  const IndexedFiles third(index, "data.x.path");
  read_all(third);
  EXPECT_EQ(OpenDescriptors(), open_before + 100) << "the others gave theirs back";
}

TEST_F(IndexedFilesTest, AFileThatChangedIsRefused) {
  const auto index = IndexOf(1);
  std::ofstream(index->files()[0].path) << "changed";
  const absl::Status status = IndexedFiles(index, "data.x.path").Get(0).status();
  EXPECT_EQ(ReasonOf(status), "DATA_INVALID") << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "changed after its index was made")) << status;
}

}  // namespace
}  // namespace muster::indexed_files_test
