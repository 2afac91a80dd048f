#include "lib/telemetry/metrics.h"

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(MetricsTest, SameNameAndLabelsAreOneMetric) {
  Metrics metrics;
  metrics.Counter("muster_test_total", "Help.", {{"kind", "a"}}).Increment();
  metrics.Counter("muster_test_total", "Help.", {{"kind", "a"}}).Increment(2);
  metrics.Counter("muster_test_total", "Help.", {{"kind", "b"}}).Increment();

  EXPECT_THAT(metrics.Render(), HasSubstr("muster_test_total{kind=\"a\"} 3"));
  EXPECT_THAT(metrics.Render(), HasSubstr("muster_test_total{kind=\"b\"} 1"));
}

TEST(MetricsTest, RemovedGaugeIsNotRendered) {
  Metrics metrics;
  auto& gauge = metrics.Gauge("muster_test_step", "Help.", {{"job", "j"}});
  gauge.Set(5);
  EXPECT_THAT(metrics.Render(), HasSubstr("muster_test_step{job=\"j\"} 5"));

  metrics.RemoveGauge("muster_test_step", gauge);

  EXPECT_THAT(metrics.Render(), Not(HasSubstr("muster_test_step{")));
}

TEST(MetricsTest, EveryProcessReportsItself) {
  Metrics metrics;
  const std::string text = metrics.Render();
  for (const char* name :
       {"muster_build_info{version=", "process_cpu_seconds_total ",
        "process_resident_memory_bytes ", "process_open_fds ", "process_start_time_seconds "}) {
    EXPECT_THAT(text, HasSubstr(name));
  }
}

TEST(MetricsTest, ServesOnAFreePortAndRefusesATakenOne) {
  Metrics first, second;
  ASSERT_TRUE(first.Serve("127.0.0.1:0").ok());
  EXPECT_THAT(first.url(), HasSubstr("http://127.0.0.1:"));
  const std::string taken = first.url().substr(7, first.url().rfind('/') - 7);

  absl::Status status = second.Serve(taken);

  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(taken));
  EXPECT_TRUE(absl::IsInvalidArgument(second.Serve("nonsense")));
}

}  // namespace
}  // namespace muster
