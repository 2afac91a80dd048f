#include "kernels/cuda/convolution_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::kernels::cuda::convolution_choice_test {
namespace {

using ::testing::HasSubstr;

TEST(ConvolutionChoiceTest, DeterministicF32AdmitsOnlySums) {
  const ConvolutionPrecision f32 = {.type = Type::kF32};
  EXPECT_TRUE(Admits(ConvolutionMethod::kSums, f32));
  EXPECT_FALSE(Admits(ConvolutionMethod::kFft, f32));
  EXPECT_FALSE(Admits(ConvolutionMethod::kWinograd, f32));
  EXPECT_THAT(DescribeAdmission(f32), HasSubstr("not computed by FFT and Winograd"));
}

TEST(ConvolutionChoiceTest, CoarserTypesAdmitMoreMethods) {
  const ConvolutionPrecision f16 = {.type = Type::kF16}, tf32 = {.type = Type::kF32, .tf32 = true};
  const ConvolutionPrecision bf16 = {.type = Type::kBf16};
  for (const ConvolutionPrecision& precision : {f16, tf32}) {
    EXPECT_TRUE(Admits(ConvolutionMethod::kFft, precision));
    EXPECT_FALSE(Admits(ConvolutionMethod::kWinograd, precision));
  }
  EXPECT_TRUE(Admits(ConvolutionMethod::kWinograd, bf16));
}

TEST(ConvolutionChoiceTest, NonDeterministicAdmitsEveryMethod) {
  const ConvolutionPrecision f32 = {.type = Type::kF32, .deterministic = false};
  for (auto method :
       {ConvolutionMethod::kSums, ConvolutionMethod::kFft, ConvolutionMethod::kWinograd}) {
    EXPECT_TRUE(Admits(method, f32));
  }
  EXPECT_THAT(DescribeAdmission(f32), HasSubstr("every algorithm"));
}

TEST(ConvolutionChoiceTest, SixteenBitsAreWidenedOnlyAsALastResort) {
  for (Type type : {Type::kBf16, Type::kF16}) {
    const std::vector<ConvolutionForm> forms =
        FormsOf(type, /*tf32=*/false, /*has_few_channels=*/false);
    ASSERT_EQ(forms.size(), 4);
    EXPECT_EQ(forms[0], (ConvolutionForm{.channels_last = true}));
    EXPECT_FALSE(forms[1].is_widened);
    // The library supports this form for every convolution.
    EXPECT_EQ(forms[2], (ConvolutionForm{.channels_last = false, .is_widened = true}));
    EXPECT_TRUE(forms[3].is_widened);
  }
}

TEST(ConvolutionChoiceTest, FewChannelsOfSixteenBitsArePaddedFirst) {
  std::vector<ConvolutionForm> forms = FormsOf(Type::kBf16, /*tf32=*/false,
                                               /*has_few_channels=*/true);
  EXPECT_EQ(forms[0], (ConvolutionForm{.channels_last = true, .is_padded = true}));
  forms.erase(forms.begin());
  EXPECT_EQ(forms, FormsOf(Type::kBf16, /*tf32=*/false, /*has_few_channels=*/false));
}

TEST(ConvolutionChoiceTest, F32IsNeverWidenedAndTriesTheFastestFormFirst) {
  EXPECT_EQ(FormsOf(Type::kF32, /*tf32=*/false, /*has_few_channels=*/true),
            (std::vector<ConvolutionForm>{{.channels_last = false}, {.channels_last = true}}));
  EXPECT_EQ(FormsOf(Type::kF32, /*tf32=*/true, /*has_few_channels=*/true),
            (std::vector<ConvolutionForm>{{.channels_last = true}, {.channels_last = false}}));
}

}  // namespace
}  // namespace muster::kernels::cuda::convolution_choice_test
