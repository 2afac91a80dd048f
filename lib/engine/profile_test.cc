#include "lib/engine/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace muster::profile_test {
namespace {

using ::testing::HasSubstr;

TEST(ProfileTest, ReportListsTimesByOpThenTheSlowestNodes) {
  Profile profile;
  const int relu = profile.Add("act", "Relu", "f32[8] -> f32[8]");
  const int first = profile.Add("fc1", "Linear", "f32[8] -> f32[4]");
  const int second = profile.Add("fc2", "Linear", "f32[4] -> f32[4]");
  for (int disturbance : {5, 0, 7}) {
    profile.Record(relu, std::chrono::milliseconds(2 + disturbance));
    profile.Record(first, std::chrono::milliseconds(1 + disturbance));
    profile.Record(second, std::chrono::milliseconds(3 + disturbance));
  }
  const std::string report = profile.Report(/*nodes=*/2);
  EXPECT_THAT(report, HasSubstr("6.000 ms a run in 3 nodes"));
  EXPECT_THAT(report, HasSubstr("4.000 ms   66.7 %     2  Linear"));
  EXPECT_THAT(report, HasSubstr("3.000 ms  fc2 (Linear) f32[4] -> f32[4]"));
  EXPECT_LT(report.find("fc2"), report.find("act"));
  EXPECT_EQ(report.find("fc1"), std::string::npos);
}

TEST(ProfileTest, ClearingForgetsTimesButNotNodes) {
  Profile profile;
  profile.Record(profile.Add("a", "Relu", ""), std::chrono::milliseconds(5));
  profile.Clear();
  ASSERT_EQ(profile.entries().size(), 1);
  EXPECT_EQ(profile.entries()[0].runs, 0);
  EXPECT_THAT(profile.Report(1), HasSubstr("0.000 ms a run"));
}

}  // namespace
}  // namespace muster::profile_test
