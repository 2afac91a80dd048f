#include "lib/data/pipeline/input_budget.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"

namespace muster::input_budget_test {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(InputBudgetTest, TheDefaultIsAQuarterOfTheMemoryAndAtMost2GiB) {
  const std::string root = testing::TempDir() + "/input_budget_root";
  std::filesystem::create_directories(root + "/proc/self");
  std::filesystem::create_directories(root + "/sys/fs/cgroup");
  std::ofstream(root + "/proc/meminfo") << "MemTotal: 16777216 kB\n";
  std::ofstream(root + "/proc/self/cgroup") << "0::/\n";
  v1::DataSpec data;
  EXPECT_EQ(InputMemoryOf(data, root).bytes, 2 * kGiB) << "of 16 GiB";
  EXPECT_TRUE(InputMemoryOf(data, root).is_default);
  std::ofstream(root + "/sys/fs/cgroup/memory.max") << kGiB << "\n";
  EXPECT_EQ(InputMemoryOf(data, root).bytes, kGiB / 4) << "the container has 1 GiB";
  data.set_memory_bytes(7);
  EXPECT_EQ(InputMemoryOf(data, root).bytes, 7);
  EXPECT_FALSE(InputMemoryOf(data, root).is_default);
}

TEST(InputBudgetTest, ThereAreAsManyBatchesAsFit) {
  EXPECT_EQ(*BatchesWithin({.bytes = 100}, {.batch_bytes = 1}, /*most=*/4), 4);
  EXPECT_EQ(*BatchesWithin({.bytes = 100}, {.batch_bytes = 30}, /*most=*/4), 3);
  EXPECT_EQ(*BatchesWithin({.bytes = 100}, {.batch_bytes = 30, .evaluation_bytes = 40}, /*most=*/4),
            2);
  EXPECT_EQ(*BatchesWithin({.bytes = 100}, {.batch_bytes = 50}, /*most=*/4), 2);
}

TEST(InputBudgetTest, RefusesTwoBatchesThatExceedTheMemoryOfTheJobAndStatesTheSum) {
  const absl::Status refused =
      BatchesWithin({.bytes = 2 * kGiB}, {.batch_bytes = kGiB + kGiB / 2}, 4).status();
  EXPECT_EQ(ReasonOf(refused), "MEMORY_EXHAUSTED");
  EXPECT_EQ(refused.message(),
            "data.memory_bytes: two batches need 3.0 GiB, which is more than 2.0 GiB: raise it, or "
            "use a smaller batch or more workers");
  ASSERT_EQ(FaultsOf(refused).size(), 1);
  EXPECT_EQ(FaultsOf(refused)[0].field, "data.memory_bytes");
  EXPECT_EQ(
      BatchesWithin({.bytes = kGiB}, {.batch_bytes = kGiB / 2, .evaluation_bytes = kGiB / 4}, 4)
          .status()
          .message(),
      "data.memory_bytes: two batches need 1.2 GiB (with 256.0 MiB for held-out samples), which is "
      "more than 1.0 GiB: raise it, or use a smaller batch or more workers");
}

class FakeDataset : public Dataset {
 public:
  explicit FakeDataset(bool is_slow) : is_slow_(is_slow) {}
  int64_t samples() const override { return 1; }
  int64_t evaluation_samples() const override { return 0; }
  bool is_slow() const override { return is_slow_; }
  absl::Status Read(absl::Span<const SampleRef>, Rows) const override { return absl::OkStatus(); }
  absl::Status ReadEvaluation(int64_t, int64_t, Rows) const override { return absl::OkStatus(); }

 private:
  const bool is_slow_;
};

TEST(InputBudgetTest, MoreSmallBatchesOfSlowSamplesAreReadAhead) {
  const FakeDataset slow(/*is_slow=*/true), fast(/*is_slow=*/false);
  EXPECT_EQ(BatchesAhead(slow, /*samples=*/1), 16);
  EXPECT_EQ(BatchesAhead(slow, 32), 7);
  EXPECT_EQ(BatchesAhead(slow, 64), 4);
  EXPECT_EQ(BatchesAhead(slow, 1 << 20), 3) << "one in use, one ready, one being read";
  EXPECT_EQ(BatchesAhead(fast, 1), 4);
  EXPECT_EQ(NiceBesideCpu(slow), 5);
  EXPECT_EQ(NiceBesideCpu(fast), 0);
}

TEST(InputBudgetTest, TheDefaultRefusesNoJob) {
  const InputMemory memory{.bytes = 100, .is_default = true};
  EXPECT_EQ(*BatchesWithin(memory, {.batch_bytes = 30}, /*most=*/4), 3);
  EXPECT_EQ(*BatchesWithin(memory, {.batch_bytes = 1000}, /*most=*/4), 2);
  EXPECT_EQ(*BatchesWithin(memory, {.batch_bytes = 1, .evaluation_bytes = 1000}, /*most=*/4), 2);
}

}  // namespace
}  // namespace muster::input_budget_test
