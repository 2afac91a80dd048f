#include "lib/concurrency/short_slices.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <thread>

#include "gtest/gtest.h"

namespace muster::short_slices_test {
namespace {

// Returns sched_runtime of sched_attr, or 0 if the kernel has none for this policy.
uint64_t SliceOfThisThread() {
  std::array<uint64_t, 6> attributes{};
  if (syscall(SYS_sched_getattr, 0, attributes.data(), sizeof(attributes), 0) != 0) return 0;
  return attributes[3];
}

TEST(ShortSlicesTest, ApplyOnlyToTheCallingThread) {
  const uint64_t usual = SliceOfThisThread();
  std::thread([usual] {
    const int nice = getpriority(PRIO_PROCESS, 0);
    AskForShortSlices();
    if (usual != 0) {
      EXPECT_EQ(SliceOfThisThread(), 100'000);
    }
    EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
    EXPECT_EQ(getpriority(PRIO_PROCESS, 0), nice);
  }).join();
  EXPECT_EQ(SliceOfThisThread(), usual);
}

}  // namespace
}  // namespace muster::short_slices_test
