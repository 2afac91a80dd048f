#include "lib/data/stage_times.h"

#include <chrono>
#include <numeric>

#include "gtest/gtest.h"

namespace muster::stage_times_test {
namespace {

int64_t Of(const StageTimes& times, InputStage stage) {
  return times.nanoseconds[static_cast<int>(stage)];
}

void Spin(std::chrono::microseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) {
  }
}

TEST(StageTimesTest, EachMomentCountsForTheInnermostScope) {
  StageTimes times;
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(SetStageTimes(&times), nullptr);
  {
    const StageScope read(InputStage::kRead);
    Spin(std::chrono::microseconds(200));
    {
      const StageScope decode(InputStage::kDecode);
      Spin(std::chrono::microseconds(300));
    }
    Spin(std::chrono::microseconds(100));
    CountReadBytes(7);
  }
  Spin(std::chrono::microseconds(50));
  EXPECT_EQ(SetStageTimes(nullptr), &times);
  const int64_t all = std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
  EXPECT_GE(Of(times, InputStage::kRead), 300'000);
  EXPECT_GE(Of(times, InputStage::kDecode), 300'000);
  EXPECT_GE(Of(times, InputStage::kCopy), 50'000);
  EXPECT_EQ(Of(times, InputStage::kAugment), 0);
  EXPECT_LE(std::accumulate(times.nanoseconds.begin(), times.nanoseconds.end(), int64_t{0}), all);
  EXPECT_EQ(times.read_bytes, 7);
}

TEST(StageTimesTest, NothingCountsWithoutTimes) {
  StageTimes times;
  SetStageTimes(&times);
  SetStageTimes(nullptr);
  const StageTimes before = times;
  {
    const StageScope read(InputStage::kRead);
    CountReadBytes(7);
  }
  EXPECT_EQ(times.nanoseconds, before.nanoseconds);
  EXPECT_EQ(times.read_bytes, 0);
}

}  // namespace
}  // namespace muster::stage_times_test
