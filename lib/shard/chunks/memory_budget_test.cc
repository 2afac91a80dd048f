#include "lib/shard/chunks/memory_budget.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stop_token>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "lib/status/status.h"

namespace muster::memory_budget_test {
namespace {

// A fake file system with the files that the kernel would provide.
class DefaultMemoryBytesTest : public testing::Test {
 protected:
  ~DefaultMemoryBytesTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  const std::string root_ =
      testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(DefaultMemoryBytesTest, HalfOfTheMachineIfNoCgroupHasALimit) {
  const int64_t machine = DefaultMemoryBytes(root_);
  EXPECT_GT(machine, 1 << 20);
  Write("/proc/self/cgroup", "0::/group\n");
  Write("/sys/fs/cgroup/group/memory.max", "max\n");
  EXPECT_EQ(DefaultMemoryBytes(root_), machine);
}

TEST_F(DefaultMemoryBytesTest, HalfOfTheSmallestLimitUpToTheRoot) {
  Write("/proc/self/cgroup", "0::/system.slice/muster-ps.service\n");
  Write("/sys/fs/cgroup/system.slice/memory.max", "9000\n");
  EXPECT_EQ(DefaultMemoryBytes(root_), 4500);
  Write("/sys/fs/cgroup/system.slice/muster-ps.service/memory.max", "1000\n");
  EXPECT_EQ(DefaultMemoryBytes(root_), 500);
}

TEST_F(DefaultMemoryBytesTest, HalfOfTheLimitOfCgroupVersion1) {
  Write("/proc/self/cgroup", "4:memory:/slurm/job_7\n0::/\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("/sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes", "1000\n");
  EXPECT_EQ(DefaultMemoryBytes(root_), 500);
}

TEST(MemoryBudgetTest, RefusesAtOnceIfMemoryIsShort) {
  MemoryBudget budget(1000);
  auto first = budget.Reserve(600, absl::ZeroDuration());
  ASSERT_TRUE(first.ok());
  auto second = budget.Reserve(401, absl::InfiniteDuration());
  EXPECT_TRUE(absl::IsResourceExhausted(second.status()));
  EXPECT_EQ(ReasonOf(second.status()), "MEMORY_EXHAUSTED");
  EXPECT_TRUE(budget.Reserve(400, absl::ZeroDuration()).ok());
}

TEST(MemoryBudgetTest, WaitsForRetiredMemory) {
  MemoryBudget budget(1000);
  auto first = *budget.Reserve(600, absl::ZeroDuration());
  first->Retire();
  std::jthread release([&] { first.reset(); });
  EXPECT_TRUE(budget.Reserve(1000, absl::InfiniteDuration()).ok());
}

// The holder may not know yet that it must give its memory back.
TEST(MemoryBudgetTest, WaitsBrieflyForMemoryThatIsNotRetired) {
  MemoryBudget budget(1000);
  auto first = *budget.Reserve(600, absl::ZeroDuration());
  EXPECT_FALSE(budget.Reserve(1001, absl::InfiniteDuration(), absl::InfiniteDuration()).ok())
      << "more than the capacity";
  std::jthread release([&] { first.reset(); });
  EXPECT_TRUE(budget.Reserve(1000, absl::ZeroDuration(), absl::InfiniteDuration()).ok());
}

// The stopped waiter belongs to a halted generation; the memory is for the next one.
TEST(MemoryBudgetTest, StoppedWaiterReservesNothing) {
  MemoryBudget budget(1000);
  auto first = *budget.Reserve(600, absl::ZeroDuration());
  first->Retire();
  std::stop_source stop;
  absl::Status outcome;
  {
    std::jthread waiting([&] {
      outcome =
          budget.Reserve(500, absl::InfiniteDuration(), absl::ZeroDuration(), stop.get_token())
              .status();
    });
    stop.request_stop();
  }
  EXPECT_TRUE(absl::IsCancelled(outcome)) << outcome;
  first.reset();
  EXPECT_TRUE(absl::IsCancelled(
      budget.Reserve(500, absl::InfiniteDuration(), absl::ZeroDuration(), stop.get_token())
          .status()));
  EXPECT_EQ(budget.used_bytes(), 0);
}

TEST(MemoryBudgetTest, ASlabHoldsItsReservation) {
  MemoryBudget budget(1 << 20);
  auto slab = Slab::Allocate(1000, *budget.Reserve(1000, absl::ZeroDuration()));
  ASSERT_TRUE(slab.ok());
  EXPECT_EQ(budget.used_bytes(), 1000);
  slab->reset();
  EXPECT_EQ(budget.used_bytes(), 0);
}

TEST(MemoryBudgetTest, ASlabIsAlignedAndZero) {
  MemoryBudget budget(1 << 24);
  for (int64_t bytes : {0, 1, 4097, 5 << 20}) {
    auto slab = *Slab::Allocate(bytes, *budget.Reserve(bytes, absl::ZeroDuration()));
    const auto memory = slab->memory();
    EXPECT_EQ(memory.size(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % 64, 0);
    EXPECT_TRUE(
        std::all_of(memory.begin(), memory.end(), [](std::byte b) { return b == std::byte{0}; }));
  }
}

}  // namespace
}  // namespace muster::memory_budget_test
