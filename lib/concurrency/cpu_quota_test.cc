#include "lib/concurrency/cpu_quota.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace muster::cpu_quota_test {
namespace {

// A file system with the kernel's files.
class CgroupCpusTest : public testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  ~CgroupCpusTest() override { std::filesystem::remove_all(root_); }

  const std::string root_ =
      testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(CgroupCpusTest, AMachineWithoutCgroupsSetsNoLimit) {
  EXPECT_TRUE(std::isinf(CgroupCpus(root_)));
}

TEST_F(CgroupCpusTest, Version2GivesAFractionOfAProcessor) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/cpu.max", "150000 100000\n");
  EXPECT_DOUBLE_EQ(CgroupCpus(root_), 1.5);
}

TEST_F(CgroupCpusTest, Version2WithoutAQuotaSetsNoLimit) {
  Write("/proc/self/cgroup", "0::/group\n");
  Write("/sys/fs/cgroup/group/cpu.max", "max 100000\n");
  EXPECT_TRUE(std::isinf(CgroupCpus(root_)));
}

TEST_F(CgroupCpusTest, UsesTheSmallestQuotaUpToTheRoot) {
  Write("/proc/self/cgroup", "0::/pods/pod/container\n");
  Write("/sys/fs/cgroup/pods/cpu.max", "800000 100000\n");
  Write("/sys/fs/cgroup/pods/pod/cpu.max", "200000 100000\n");
  Write("/sys/fs/cgroup/pods/pod/container/cpu.max", "max 100000\n");
  EXPECT_DOUBLE_EQ(CgroupCpus(root_), 2);
}

TEST_F(CgroupCpusTest, Version1HasTheTwoNumbersInTwoFiles) {
  Write("/proc/self/cgroup", "5:memory:/x\n4:cpu,cpuacct:/group\n0::/\n");
  Write("/sys/fs/cgroup/cpu/group/cpu.cfs_quota_us", "250000\n");
  Write("/sys/fs/cgroup/cpu/group/cpu.cfs_period_us", "100000\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_DOUBLE_EQ(CgroupCpus(root_), 2.5);
}

TEST_F(CgroupCpusTest, FallsBackToTheMountIfThePathIsTheHosts) {
  Write("/proc/self/cgroup", "4:cpu:/kubepods/pod1234\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_DOUBLE_EQ(CgroupCpus(root_), 0.5);
}

TEST(CpuQuotaTest, AtLeastOneCpuIsUsable) {
  EXPECT_GE(UsableCpus(), 1);
  EXPECT_LE(UsableCpuTime(), UsableCpus());
  EXPECT_GT(UsableCpuTime(), 0);
}

}  // namespace
}  // namespace muster::cpu_quota_test
