#include "lib/telemetry/thread_counts.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/client_metric.h"
#include "prometheus/histogram.h"

namespace muster::thread_counts_test {
namespace {

// The sum must equal a prometheus::Histogram of the same observations.
TEST(ThreadCountsTest, HistogramsOfThreadsAddUp) {
  const std::vector<double> bounds = {0.001, 0.01, 1};
  ThreadHistogram first(bounds, 1e-3), second(bounds, 1e-3);
  prometheus::Histogram expected(bounds);
  for (const int64_t milliseconds : {0, 1, 2, 10, 11, 1000, 1001, 50'000}) {
    first.Observe(milliseconds);
    expected.Observe(static_cast<double>(milliseconds) * 1e-3);
  }
  second.Observe(5, 3);
  for (int i = 0; i < 3; ++i) expected.Observe(0.005);

  prometheus::ClientMetric::Histogram sum;
  first.AddTo(sum);
  second.AddTo(sum);

  const prometheus::ClientMetric::Histogram want = expected.Collect().histogram;
  EXPECT_EQ(sum.sample_count, want.sample_count);
  EXPECT_DOUBLE_EQ(sum.sample_sum, want.sample_sum);
  ASSERT_EQ(sum.bucket.size(), want.bucket.size());
  for (size_t i = 0; i < want.bucket.size(); ++i) {
    EXPECT_EQ(sum.bucket[i].upper_bound, want.bucket[i].upper_bound);
    EXPECT_EQ(sum.bucket[i].cumulative_count, want.bucket[i].cumulative_count) << i;
  }
  EXPECT_EQ(sum.bucket.back().upper_bound, std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace muster::thread_counts_test
