#include "kernels/cpu/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "kernels/threads.h"

namespace muster::kernels::parallel_test {
namespace {

class ParallelTest : public testing::TestWithParam<int> {
 protected:
  ParallelTest() { SetThreads(GetParam()); }
  ~ParallelTest() override { SetThreads(1); }
};

INSTANTIATE_TEST_SUITE_P(Threads, ParallelTest, testing::Values(1, 2, 5));

TEST_P(ParallelTest, RangesCoverEverythingOnceInWholeGrains) {
  for (int64_t n : {0, 1, 2, 7, 64, 1000}) {
    for (int64_t grain : {1, 3, 64, 2000}) {
      std::vector<std::atomic<int>> visits(n);
      ParallelFor(n, grain, [&](int64_t begin, int64_t end) {
        EXPECT_EQ(begin % grain, 0);
        EXPECT_TRUE(end % grain == 0 || end == n);
        for (int64_t i = begin; i < end; ++i) ++visits[i];
      });
      for (const std::atomic<int>& v : visits) EXPECT_EQ(v, 1) << n << " by " << grain;
    }
  }
}

TEST_P(ParallelTest, ALoopInsideALoopRunsOnItsOwnThread) {
  EXPECT_EQ(ParallelThreads(), GetParam());
  ParallelFor(8, 1, [](int64_t, int64_t) {
    int calls = 0;
    ParallelFor(100, 1, [&](int64_t begin, int64_t end) {
      ++calls;
      EXPECT_EQ(end - begin, 100);
    });
    // The inner loop runs inline, because the outer loop is parallel or there is one thread.
    EXPECT_EQ(calls, 1);
  });
}

}  // namespace
}  // namespace muster::kernels::parallel_test
