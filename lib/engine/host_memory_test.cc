#include "lib/engine/host_memory.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace muster::host_memory_test {
namespace {

class HostMemoryTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  const std::string root_ = testing::TempDir() + "/root";
};

TEST_F(HostMemoryTest, WithoutALimitTheResultIsTheKernelsMemAvailable) {
  Write("/proc/meminfo", "MemTotal:  900 kB\nMemFree:  100 kB\nMemAvailable:  400 kB\n");
  EXPECT_EQ(AvailableHostBytes(root_), 400 * 1024);
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/memory.max", "max\n");
  Write("/sys/fs/cgroup/memory.current", "5\n");
  EXPECT_EQ(AvailableHostBytes(root_), 400 * 1024);
}

TEST_F(HostMemoryTest, ACgroupHasUnusedMemoryAndDroppableCacheLeft) {
  Write("/proc/meminfo", "MemAvailable:  400 kB\n");
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/memory.max", "1000\n");
  Write("/sys/fs/cgroup/memory.current", "700\n");
  EXPECT_EQ(AvailableHostBytes(root_), 300);
  Write("/sys/fs/cgroup/memory.stat", "anon 500\ninactive_file 100\nactive_file 50\n");
  EXPECT_EQ(AvailableHostBytes(root_), 450) << "cache that is read repeatedly can be dropped too";
  Write("/sys/fs/cgroup/memory.current", "2000\n");
  EXPECT_EQ(AvailableHostBytes(root_), 0);
}

TEST_F(HostMemoryTest, TheTightestGroupUpToTheRootDecides) {
  Write("/proc/meminfo", "MemAvailable:  400 kB\n");
  Write("/proc/self/cgroup", "0::/system.slice/muster-ps.service\n");
  Write("/sys/fs/cgroup/system.slice/memory.max", "9000\n");
  Write("/sys/fs/cgroup/system.slice/memory.current", "8800\n");
  Write("/sys/fs/cgroup/system.slice/muster-ps.service/memory.max", "1000\n");
  Write("/sys/fs/cgroup/system.slice/muster-ps.service/memory.current", "700\n");
  EXPECT_EQ(AvailableHostBytes(root_), 200);
  Write("/sys/fs/cgroup/system.slice/memory.current", "800\n");
  EXPECT_EQ(AvailableHostBytes(root_), 300);
}

TEST_F(HostMemoryTest, Version1HasOtherNames) {
  Write("/proc/meminfo", "MemAvailable:  400 kB\n");
  Write("/proc/self/cgroup", "4:memory:/slurm/job_7\n1:cpu:/\n0::/\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "100000\n");
  Write("/sys/fs/cgroup/memory/memory.stat", "total_inactive_file 0\n");
  Write("/sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes", "1000\n");
  Write("/sys/fs/cgroup/memory/slurm/job_7/memory.usage_in_bytes", "700\n");
  Write("/sys/fs/cgroup/memory/slurm/job_7/memory.stat",
        "inactive_file 10\ntotal_inactive_file 100\ntotal_active_file 50\n");
  EXPECT_EQ(AvailableHostBytes(root_), 450);
}

TEST_F(HostMemoryTest, TheLimitIsThatOfTheTightestGroupOrTheMachine) {
  Write("/proc/meminfo", "MemTotal:  900 kB\nMemAvailable:  400 kB\n");
  EXPECT_EQ(HostBytesLimit(root_), 900 * 1024);
  Write("/proc/self/cgroup", "0::/pods/pod\n");
  Write("/sys/fs/cgroup/pods/memory.max", "9000\n");
  Write("/sys/fs/cgroup/pods/pod/memory.max", "max\n");
  EXPECT_EQ(HostBytesLimit(root_), 9000);
}

TEST_F(HostMemoryTest, ThisMachineHasMemoryLeft) { EXPECT_GT(AvailableHostBytes(), 1 << 20); }

}  // namespace
}  // namespace muster::host_memory_test
