#include "lib/checkpoint/coverage.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace muster::coverage_test {
namespace {

TEST(CoverageTest, EmptyRangesAreCompleteFromTheStart) {
  EXPECT_EQ(Coverage({0, 4, 0}).incomplete(), 1);
  EXPECT_EQ(Coverage({0, 4, 0}).FirstIncomplete(), 1);
}

TEST(CoverageTest, BytesWrittenTwiceCountOnce) {
  Coverage coverage({10});

  coverage.Add(0, 0, 6);
  coverage.Add(0, 2, 6);
  coverage.Add(0, 0, 9);
  EXPECT_EQ(coverage.incomplete(), 1);

  coverage.Add(0, 9, 10);
  EXPECT_EQ(coverage.incomplete(), 0);
}

TEST(CoverageTest, AgreesWithAFlagPerByteInAnyOrder) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    const int64_t size = 1 + random() % 60;
    std::vector<bool> written(size, false);
    Coverage coverage({size});
    bool complete = false;
    while (!complete) {
      const int64_t begin = random() % size, end = begin + random() % (size - begin + 1);
      coverage.Add(0, begin, end);
      for (int64_t i = begin; i < end; ++i) written[i] = true;
      complete = std::find(written.begin(), written.end(), false) == written.end();
      ASSERT_EQ(coverage.incomplete(), complete ? 0 : 1) << "round " << round;
    }
  }
}

}  // namespace
}  // namespace muster::coverage_test
