#include "cli/text/curve.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::cli::curve_test {
namespace {

using ::testing::HasSubstr;

v1::MetricSeries Series(const std::vector<std::pair<int64_t, double>>& points) {
  v1::MetricSeries series;
  series.set_name("loss");
  for (const auto& [step, value] : points) {
    series.add_steps(step);
    series.add_values(value);
  }
  return series;
}

TEST(CurveTest, DrawsAFallingLoss) {
  EXPECT_EQ(DrawCurve(Series({{0, 4}, {10, 3}, {20, 2}, {30, 1}}), {.width = 42, .height = 4},
                      Ink::kAscii),
            "       4 |*****\n"
            "         |     ***********\n"
            "         |                **********\n"
            "       1 |                          ******\n"
            "          loss, step 0                  30\n");
}

TEST(CurveTest, BrailleHasEightDotsToACharacter) {
  const std::string text =
      DrawCurve(Series({{0, 1}, {1, 0}}), {.width = 18, .height = 2}, Ink::kBraille);
  EXPECT_THAT(text, HasSubstr("       1 |\xe2\xa0\x89"));  // the upper two dots
}

TEST(CurveTest, ASpikeIsVisibleThoughManyStepsShareItsColumn) {
  std::vector<std::pair<int64_t, double>> points;
  for (int i = 0; i < 1000; ++i) points.emplace_back(i, i == 500 ? 9 : 1);
  const std::string text = DrawCurve(Series(points), {.width = 40, .height = 3}, Ink::kAscii);
  EXPECT_THAT(text, HasSubstr("       9 |               *\n         |               *\n"));
}

TEST(CurveTest, DrawsNothingWithoutTwoFinitePoints) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(DrawCurve(Series({}), {}, Ink::kAscii), "");
  EXPECT_EQ(DrawCurve(Series({{0, 1}, {1, nan}}), {}, Ink::kAscii), "");
  EXPECT_NE(DrawCurve(Series({{0, nan}, {1, 2}, {2, 2}}), {}, Ink::kAscii), "") << "a flat curve";
  EXPECT_EQ(DrawCurve(Series({{0, 1}, {1, 2}}), {.width = 12, .height = 4}, Ink::kAscii), "");
}

}  // namespace
}  // namespace muster::cli::curve_test
