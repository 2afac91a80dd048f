#include "lib/shard/chunks/loss_scale.h"

#include <cmath>

#include "gtest/gtest.h"

namespace muster::loss_scale_test {
namespace {

v1::TrainingSpec Fp16(double initial, int64_t growth_steps) {
  v1::TrainingSpec training;
  training.set_precision(v1::FP16);
  training.mutable_loss_scale()->set_initial(initial);
  training.mutable_loss_scale()->set_growth_steps(growth_steps);
  return training;
}

TEST(LossScaleTest, DoublesAfterManyCleanSteps) {
  LossScale scale(Fp16(65536, 2000));
  EXPECT_EQ(scale.value(), 65536);
  for (int i = 0; i < 1999; ++i) scale.StepWasClean();
  EXPECT_EQ(scale.value(), 65536);
  scale.StepWasClean();
  EXPECT_EQ(scale.value(), 131072);
  EXPECT_EQ(scale.clean_steps(), 0);
}

TEST(LossScaleTest, OverflowHalvesTheScaleAndRestartsTheCount) {
  LossScale scale(Fp16(1024, 3));
  scale.StepWasClean();
  scale.StepWasClean();
  scale.StepOverflowed();
  EXPECT_EQ(scale.value(), 512);
  scale.StepWasClean();
  scale.StepWasClean();
  EXPECT_EQ(scale.value(), 512);
  scale.StepWasClean();
  EXPECT_EQ(scale.value(), 1024);
}

TEST(LossScaleTest, StaysBetweenOneAndItsMaximum) {
  LossScale scale(Fp16(3, 1));
  for (int i = 0; i < 5; ++i) scale.StepOverflowed();
  EXPECT_EQ(scale.value(), 1);
  for (int i = 0; i < 40; ++i) scale.StepWasClean();
  EXPECT_EQ(scale.value(), LossScale::kMax);
}

TEST(LossScaleTest, OtherPrecisionsHaveNoLossScale) {
  v1::TrainingSpec training;
  training.set_precision(v1::BF16);
  LossScale scale(training);
  EXPECT_EQ(scale.value(), 0);
  scale.StepWasClean();
  scale.StepOverflowed();
  EXPECT_EQ(scale.value(), 0);
  v1::UpdateState state;
  state.set_loss_scale(512);
  EXPECT_TRUE(scale.Restore(state).ok());
  EXPECT_EQ(scale.value(), 0);
}

TEST(LossScaleTest, ContinuesFromACheckpoint) {
  LossScale scale(Fp16(1024, 5));
  v1::UpdateState state;
  EXPECT_TRUE(scale.Restore(state).ok());
  EXPECT_EQ(scale.value(), 1024) << "the checkpoint is of an fp32 job";
  state.set_loss_scale(256);
  state.set_clean_steps(4);
  ASSERT_TRUE(scale.Restore(state).ok());
  EXPECT_EQ(scale.value(), 256);
  scale.StepWasClean();
  EXPECT_EQ(scale.value(), 512);
  for (double value : {0.5, -1.0, 1e30, std::nan("")}) {
    state.set_loss_scale(value);
    EXPECT_FALSE(scale.Restore(state).ok()) << value;
  }
}

}  // namespace
}  // namespace muster::loss_scale_test
