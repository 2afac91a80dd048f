#include "kernels/cuda/convolution_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::kernels::cuda {
namespace {

using ::testing::HasSubstr;

TEST(ConvolutionChoiceTest, F32TakesSumsAloneWhereItMustRepeatWithinTheTolerance) {
  const ConvolutionPrecision f32 = {.type = Type::kF32};
  EXPECT_TRUE(Admits(ConvolutionMethod::kSums, f32));
  EXPECT_FALSE(Admits(ConvolutionMethod::kFft, f32));
  EXPECT_FALSE(Admits(ConvolutionMethod::kWinograd, f32));
  EXPECT_THAT(DescribeAdmission(f32), HasSubstr("not computed by FFT and Winograd"));
}

TEST(ConvolutionChoiceTest, CoarserTypesHideMore) {
  const ConvolutionPrecision f16 = {.type = Type::kF16}, tf32 = {.type = Type::kF32, .tf32 = true};
  const ConvolutionPrecision bf16 = {.type = Type::kBf16};
  for (const ConvolutionPrecision& precision : {f16, tf32}) {
    EXPECT_TRUE(Admits(ConvolutionMethod::kFft, precision));
    EXPECT_FALSE(Admits(ConvolutionMethod::kWinograd, precision));
  }
  EXPECT_TRUE(Admits(ConvolutionMethod::kWinograd, bf16));
}

TEST(ConvolutionChoiceTest, SpeedDecidesWhereNothingMustRepeat) {
  const ConvolutionPrecision f32 = {.type = Type::kF32, .deterministic = false};
  for (auto method :
       {ConvolutionMethod::kSums, ConvolutionMethod::kFft, ConvolutionMethod::kWinograd}) {
    EXPECT_TRUE(Admits(method, f32));
  }
  EXPECT_THAT(DescribeAdmission(f32), HasSubstr("every algorithm"));
}

}  // namespace
}  // namespace muster::kernels::cuda
