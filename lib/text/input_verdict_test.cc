#include "lib/text/input_verdict.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::input_verdict_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// 1,000 samples of 9.4 ms: 0.2 open, 0.5 read, 6.7 decode, 1.5 resample, 0.5 augment.
v1::InputTiming Timing() {
  v1::InputTiming timing;
  timing.set_samples(1000);
  timing.set_threads(2);
  timing.set_open_seconds(0.2);
  timing.set_read_seconds(0.5);
  timing.set_decode_seconds(6.7);
  timing.set_resample_seconds(1.5);
  timing.set_augment_seconds(0.5);
  timing.set_room_seconds(100);  // idle time is no cost of a sample
  return timing;
}

TEST(InputVerdictTest, NamesStageArithmeticThreadsAndRemedy) {
  EXPECT_EQ(
      InputVerdict(Timing(), 480),
      "decode takes 71 % of 9.4 ms a sample on 2 threads; 5 threads would keep up. More cores "
      "for the worker help, or images that are stored smaller, or data.image.decode: fast");
  EXPECT_NEAR(InputCapacity(Timing()), 2 / 9.4e-3, 0.1);
}

TEST(InputVerdictTest, EachStageHasItsRemedy) {
  v1::InputTiming timing = Timing();
  timing.set_open_seconds(20);
  EXPECT_THAT(InputVerdict(timing, 1000), HasSubstr("packs images into tar files"));
  timing.set_read_seconds(30);
  EXPECT_THAT(InputVerdict(timing, 1000), HasSubstr("data.shuffle"));
  timing.set_resample_seconds(40);
  EXPECT_THAT(InputVerdict(timing, 1000), HasSubstr("nearer to the model's size"));
  timing.set_augment_seconds(50);
  EXPECT_THAT(InputVerdict(timing, 1000), HasSubstr("data.image.train"));
}

TEST(InputVerdictTest, ThreadsThatSufficeOnAverageAreNoShortage) {
  EXPECT_THAT(InputVerdict(Timing(), 100),
              StartsWith("decode takes 71 % of 9.4 ms a sample on 2 threads; they read 213 "
                         "samples/s on average, but unevenly. More cores"));
}

// A CSV file, on one thread of its own.
TEST(InputVerdictTest, DataWithoutImagesHasOtherRemedies) {
  v1::InputTiming timing;
  timing.set_samples(10'000);
  timing.set_threads(1);
  timing.set_read_seconds(0.5);
  timing.set_decode_seconds(1.5);
  EXPECT_EQ(InputVerdict(timing, 12'000),
            "decode takes 75 % of 0.200 ms a sample on 1 thread; 3 threads would keep up. More "
            "workers help, because each one reads a share of the batch");
  EXPECT_EQ(InputVerdict(timing, 4000),
            "decode takes 75 % of 0.200 ms a sample on 1 thread; it reads 5000 samples/s on "
            "average, but unevenly. More workers help, because each one reads a share of the "
            "batch");
  timing.set_read_seconds(4.5);
  EXPECT_EQ(InputVerdict(timing, 12'000),
            "read takes 75 % of 0.600 ms a sample on 1 thread. Faster storage helps, or "
            "data.shuffle: {block: {}}, which reads neighbours soon after each other");
}

TEST(InputVerdictTest, ImagesThatAreNotResizedAreImages) {
  v1::InputTiming timing = Timing();
  timing.set_resample_seconds(0);
  EXPECT_THAT(InputVerdict(timing, 480), HasSubstr("data.image.decode: fast"));
}

// Text, IDX and .npy files are copied, which no stage covers.
TEST(InputVerdictTest, SamplesWithoutATimedStageGiveNoVerdict) {
  v1::InputTiming timing;
  timing.set_samples(1000);
  timing.set_threads(1);
  EXPECT_EQ(InputVerdict(timing, 100), "");
  EXPECT_EQ(InputCapacity(timing), 0);
}

TEST(InputVerdictTest, NothingReadIsNothingSaid) {
  EXPECT_EQ(InputVerdict(v1::InputTiming(), 100), "");
  EXPECT_EQ(InputCapacity(v1::InputTiming()), 0);
  EXPECT_TRUE(InputStageCosts(v1::InputTiming()).empty());
}

}  // namespace
}  // namespace muster::input_verdict_test
