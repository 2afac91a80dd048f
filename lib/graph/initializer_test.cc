#include "lib/graph/initializer.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster::initializer_test {
namespace {

v1::Initializer Normal(double deviation) {
  v1::Initializer initializer;
  initializer.set_normal(deviation);
  return initializer;
}

v1::Initializer Uniform(double half_width) {
  v1::Initializer initializer;
  initializer.set_uniform(half_width);
  return initializer;
}

std::vector<float> Filled(const v1::Initializer& initializer, uint64_t seed, int index,
                          int64_t count) {
  std::vector<float> values(count);
  FillInitialValues(initializer, seed, index, /*offset=*/0, absl::MakeSpan(values));
  return values;
}

// Returns the mean of value^power.
double Moment(const std::vector<float>& values, int power) {
  double sum = 0;
  for (float value : values) sum += std::pow(value, power);
  return sum / values.size();
}

TEST(InitializerTest, AnySlicingGivesTheSameBits) {
  constexpr int64_t kCount = 1003;
  for (const v1::Initializer& initializer : {Normal(0.02), Uniform(0.5)}) {
    const std::vector<float> whole = Filled(initializer, /*seed=*/5, /*index=*/3, kCount);
    for (int64_t piece : {1, 2, 3, 5, 64, 1000}) {
      std::vector<float> sliced(kCount);
      for (int64_t offset = 0; offset < kCount; offset += piece) {
        FillInitialValues(initializer, 5, 3, offset, absl::MakeSpan(sliced).subspan(offset, piece));
      }
      EXPECT_EQ(sliced, whole) << "pieces of " << piece;
    }
  }
}

TEST(InitializerTest, NormalValuesHaveTheMomentsOfTheNormalDistribution) {
  constexpr int64_t kCount = 1 << 20;
  const std::vector<float> values = Filled(Normal(2), /*seed=*/1, /*index=*/0, kCount);

  // The tolerance is four standard errors of each moment: sqrt((E x^2p - (E x^p)^2) / n) with E
  // x^2, x^4, x^6, x^8 = 1, 3, 15, 105.
  const double error = 4 / std::sqrt(kCount);
  EXPECT_NEAR(Moment(values, 1) / 2, 0, error);
  EXPECT_NEAR(Moment(values, 2) / 4, 1, error * std::sqrt(2));
  EXPECT_NEAR(Moment(values, 3) / 8, 0, error * std::sqrt(15));
  EXPECT_NEAR(Moment(values, 4) / 16, 3, error * std::sqrt(96));
}

TEST(InitializerTest, UniformValuesFillTheIntervalEvenly) {
  constexpr int64_t kCount = 1 << 20;
  const std::vector<float> values = Filled(Uniform(0.5), /*seed=*/1, /*index=*/0, kCount);

  EXPECT_GE(*std::ranges::min_element(values), -0.5f);
  EXPECT_LT(*std::ranges::max_element(values), 0.5f);
  const double error = 4 / std::sqrt(kCount);
  EXPECT_NEAR(Moment(values, 1), 0, error * std::sqrt(1.0 / 12));
  EXPECT_NEAR(Moment(values, 2), 1.0 / 12, error * std::sqrt(1.0 / 180));
}

TEST(InitializerTest, NeighboursSeedsAndParametersAreIndependent) {
  constexpr int64_t kCount = 1 << 16;
  const std::vector<float> values = Filled(Normal(1), /*seed=*/1, /*index=*/0, kCount);
  const auto correlation = [&](const std::vector<float>& others, int64_t lag) {
    double sum = 0;
    for (int64_t i = 0; i + lag < kCount; ++i) sum += double{values[i]} * others[i + lag];
    return sum / kCount;
  };
  const double error = 4 / std::sqrt(kCount);

  for (int64_t lag : {1, 2, 4}) EXPECT_NEAR(correlation(values, lag), 0, error) << lag;
  EXPECT_NEAR(correlation(Filled(Normal(1), /*seed=*/2, /*index=*/0, kCount), 0), 0, error);
  EXPECT_NEAR(correlation(Filled(Normal(1), /*seed=*/1, /*index=*/1, kCount), 0), 0, error);
}

TEST(InitializerTest, OffsetsBeyondFourBillionDoNotWrap) {
  std::vector<float> near(4), far(4);
  FillInitialValues(Uniform(1), 1, 0, 0, absl::MakeSpan(near));
  FillInitialValues(Uniform(1), 1, 0, int64_t{1} << 34, absl::MakeSpan(far));

  EXPECT_NE(near, far);
}

TEST(InitializerTest, AConstantFillsAllElementsAndTheDefaultIsZero) {
  v1::Initializer one;
  one.set_constant(1);

  EXPECT_EQ(Filled(one, 9, 9, 3), std::vector<float>(3, 1.0f));
  EXPECT_EQ(Filled(v1::Initializer(), 9, 9, 3), std::vector<float>(3, 0.0f));
}

}  // namespace
}  // namespace muster::initializer_test
