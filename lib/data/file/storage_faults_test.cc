// System calls fail here, as they do while a network volume is away.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "lib/data/data_fault.h"
#include "lib/data/file/file_list.h"
#include "lib/status/status.h"

namespace muster::storage_faults_test {
namespace {

// The next calls of the function for paths of the test fail.
struct {
  absl::string_view function;
  int left = 0;
} faults;

constexpr absl::string_view kMark = "storage_faults";

bool Fails(absl::string_view function, absl::string_view path) {
  if (faults.left == 0 || function != faults.function) return false;
  if (path.find(kMark) == absl::string_view::npos) return false;
  --faults.left;
  errno = EIO;
  return true;
}

int Stat(int folder, const char* path, struct stat* facts, int flags) {
  return static_cast<int>(syscall(SYS_newfstatat, folder, path, facts, flags));
}

}  // namespace

extern "C" {

int stat(const char* path, struct stat* facts) noexcept {
  return Fails("stat", path) ? -1 : Stat(AT_FDCWD, path, facts, 0);
}

int fstatat(int folder, const char* path, struct stat* facts, int flags) noexcept {
  return Fails("fstatat", path) ? -1 : Stat(folder, path, facts, flags);
}

int open(const char* path, int flags, ...) {
  if (Fails("open", path)) return -1;
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

DIR* opendir(const char* path) {
  if (Fails("opendir", path)) return nullptr;
  const auto folder = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return folder < 0 ? nullptr : fdopendir(static_cast<int>(folder));
}

}  // extern "C"

namespace {

class StorageFaultsTest : public testing::Test {
 protected:
  StorageFaultsTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ + "/storage_faults.tar") << "x";
  }
  ~StorageFaultsTest() override { faults.left = 0; }

  const std::string folder_ = absl::StrCat(testing::TempDir(), "/", kMark);
};

TEST_F(StorageFaultsTest, AListIsTriedThreeTimes) {
  struct Case {
    const char* function;
    std::string path;  // below the folder
  };
  for (const Case& c : std::vector<Case>{{"stat", ""},
                                         {"stat", "/storage_faults.tar"},
                                         {"stat", "/*.tar"},
                                         {"stat", "/{storage_faults,storage_faults}.tar"},
                                         {"opendir", ""},
                                         {"opendir", "/*.tar"},
                                         {"fstatat", ""},
                                         {"fstatat", "/*.tar"}}) {
    for (const int count : {1, 2, 3}) {
      SCOPED_TRACE(absl::StrCat(c.function, " of ", c.path, " fails ", count, " times"));
      faults = {c.function, count};
      const auto files = ListFiles(folder_ + c.path, "data.tar.path");
      EXPECT_EQ(faults.left, 0);
      EXPECT_EQ(files.ok(), count < 3) << files.status();
      if (files.ok()) continue;
      EXPECT_TRUE(absl::IsUnavailable(files.status()));
      EXPECT_EQ(ReasonOf(files.status()), "DATA_UNREADABLE");
    }
  }
}

TEST_F(StorageFaultsTest, FoldersOfClassesAreTriedThreeTimes) {
  std::filesystem::create_directory(folder_ + "/storage_faults_cat");
  for (const char* function : {"opendir", "fstatat"}) {
    for (const int count : {2, 3}) {
      faults = {function, count};
      EXPECT_EQ(ListFolders(folder_, "data.images.path").ok(), count < 3) << function;
    }
  }
}

TEST_F(StorageFaultsTest, OpeningAFileIsTriedThreeTimes) {
  const std::string path = folder_ + "/storage_faults.tar";
  for (const int count : {1, 2, 3}) {
    faults = {"open", count};
    const auto file = OpenDataFile(path, "data.tar.path");
    EXPECT_EQ(faults.left, 0);
    EXPECT_EQ(file.ok(), count < 3) << file.status();
    if (file.ok()) {
      close(*file);
    } else {
      EXPECT_EQ(ReasonOf(file.status()), "DATA_UNREADABLE");
    }
  }
}

}  // namespace
}  // namespace muster::storage_faults_test
