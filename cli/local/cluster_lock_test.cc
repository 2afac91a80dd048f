#include "cli/local/cluster_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "lib/status/status.h"

namespace muster::cli::cluster_lock_test {
namespace {

using ::testing::HasSubstr;

TEST(ClusterLockTest, ASecondProgramIsRefusedAndToldTheHolder) {
  const std::string dir = ::testing::TempDir() + "/cluster_lock_test/folder";
  auto first = ClusterLock::Take(dir, "muster chaos --local");
  ASSERT_TRUE(first.ok()) << first.status();

  const auto second = ClusterLock::Take(dir, "muster local up");

  EXPECT_EQ(ReasonOf(second.status()), "CLUSTER_BUSY");
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr(absl::StrCat("'muster chaos --local' (pid ", getpid(), ")")));
  EXPECT_TRUE(ClusterLock::Take(dir + "-other", "muster local up").ok());
  first->reset();
  EXPECT_TRUE(ClusterLock::Take(dir, "muster local up").ok()) << "it is free again";
}

TEST(ClusterLockTest, AFolderThatCannotBeMadeIsAnInvalidArgument) {
  const absl::Status status = ClusterLock::Take("/proc/no/such", "x").status();

  EXPECT_TRUE(absl::IsInvalidArgument(status)) << "a retry does not help";
  EXPECT_EQ(
      status.message(),
      "the folder /proc/no/such of a local cluster cannot be made or written: No such file or "
      "directory; choose another one with --dir");
}

}  // namespace
}  // namespace muster::cli::cluster_lock_test
