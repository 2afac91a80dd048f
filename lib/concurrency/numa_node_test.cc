#include "lib/concurrency/numa_node.h"

#include <sched.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::numa_node_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int> Allowed() {
  cpu_set_t set;
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

TEST(NumaNodeTest, ParsesTheKernelsLists) {
  EXPECT_THAT(ParseCpuList("0-3,8\n").value(), ElementsAre(0, 1, 2, 3, 8));
  EXPECT_THAT(ParseCpuList("5").value(), ElementsAre(5));
  EXPECT_THAT(ParseCpuList("\n").value(), IsEmpty());
  for (const char* list : {"a", "3-1", "0-1-2", "-1", "0-99999999"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseCpuList(list).status())) << list;
  }
}

TEST(NumaNodeTest, FindsTheProcessorsOfADevice) {
  const std::string devices = testing::TempDir();
  std::filesystem::create_directories(absl::StrCat(devices, "/0000:3b:00.0"));
  std::ofstream(absl::StrCat(devices, "/0000:3b:00.0/local_cpulist")) << "2-3\n";
  EXPECT_THAT(CpusNextTo("0000:3B:00.0", devices).value(), ElementsAre(2, 3));
  EXPECT_TRUE(absl::IsNotFound(CpusNextTo("0000:3c:00.0", devices).status()));
}

TEST(NumaNodeTest, BindsTheThreadAndNoOther) {
  const std::vector<int> before = Allowed();
  std::jthread([&] {
    // Processors on which the thread may not run are left out.
    ASSERT_TRUE(BindThreadTo({before.back(), CPU_SETSIZE - 1}).ok());
    EXPECT_THAT(Allowed(), ElementsAre(before.back()));
  }).join();
  EXPECT_EQ(Allowed(), before);
}

TEST(NumaNodeTest, AThreadThatMayRunOnNoneStaysWhereItIs) {
  const std::vector<int> before = Allowed();
  EXPECT_TRUE(absl::IsFailedPrecondition(BindThreadTo({})));
  EXPECT_EQ(Allowed(), before);
}

}  // namespace
}  // namespace muster::numa_node_test
