#include "lib/data/data_fault.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "lib/file/beneath.h"
#include "lib/status/status.h"

namespace muster::data_fault_test {
namespace {

namespace fs = std::filesystem;

TEST(DataFaultTest, OpensFilesBeneathTheDataRootsOnly) {
  const std::string home = fs::canonical(::testing::TempDir()).string() + "/data_fault";
  fs::create_directories(home + "/root");
  std::ofstream(home + "/root/samples") << "x";
  std::ofstream(home + "/secret") << "x";
  fs::create_symlink("../secret", home + "/root/link");
  SetDataRoots({home + "/root"});

  const auto file = OpenDataFile(home + "/root/samples", "data.text.path");
  ASSERT_TRUE(file.ok()) << file.status();
  close(*file);
  for (const char* name : {"/secret", "/root/link", "/none"}) {
    const absl::Status refused = OpenDataFile(home + name, "data.text.path").status();
    EXPECT_EQ(ReasonOf(refused), "PATH_NOT_ALLOWED") << refused;
    EXPECT_TRUE(absl::StartsWith(refused.message(), "data.text.path: " + home + name + ": lies in"))
        << refused;
  }
  EXPECT_EQ(ReasonOf(OpenDataFile(home + "/root/none", "data.text.path").status()),
            "DATA_NOT_FOUND");
  SetDataRoots({});
}

TEST(DataFaultTest, AFileThatMayNotBeReadIsNoMissingFile) {
  for (const int error_number : {EACCES, EPERM}) {
    const absl::Status refused = DataPathFault("data.text.path", "/data/a", error_number);
    EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
    EXPECT_EQ(ReasonOf(refused), "DATA_FORBIDDEN");
  }
  EXPECT_EQ(ReasonOf(DataPathFault("data.text.path", "/data/a", ENOENT)), "DATA_NOT_FOUND");
}

TEST(DataFaultTest, AFaultOfTheStorageIsNoMissingFile) {
  const std::string path = ::testing::TempDir() + "/data_fault_storage";
  std::ofstream(path) << "x";
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const absl::Cleanup restore = [&] { setrlimit(RLIMIT_NOFILE, &before); };
  const rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);

  const absl::Status refused = OpenDataFile(path, "data.text.path").status();

  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_EQ(ReasonOf(refused), "DATA_UNREADABLE");
  EXPECT_TRUE(absl::StrContains(refused.message(), "data_fault_storage: too many open files"))
      << refused;
}

TEST(DataFaultTest, TriesAFaultOfTheStorageThreeTimes) {
  std::vector<int> results;
  const auto next = [&] {
    const int result = results.back();
    results.pop_back();
    return result;
  };
  results = {0, 0, EIO, ESTALE};
  EXPECT_EQ(TryThreeTimes(next), 0);
  EXPECT_EQ(results.size(), 1);
  results = {0, EIO, ETIMEDOUT, EAGAIN};
  EXPECT_EQ(TryThreeTimes(next), EIO);
  results = {0, ENOENT};
  EXPECT_EQ(TryThreeTimes(next), ENOENT);
  EXPECT_EQ(results.size(), 1) << "a missing file is not tried again";
}

}  // namespace
}  // namespace muster::data_fault_test
