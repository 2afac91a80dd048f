#include "lib/telemetry/gpu_metrics.h"

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/telemetry/metrics.h"

namespace muster::gpu_metrics_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(GpuMetricsTest, ExportsTheValuesThatEachGpuReports) {
  const char* const folder = std::getenv("TEST_SRCDIR");
  ASSERT_NE(folder, nullptr);
  auto gpus = OpenGpuMetrics(
      absl::StrCat(folder, "/", std::getenv("TEST_WORKSPACE"), "/lib/telemetry/libfake_nvml.so"));
  ASSERT_TRUE(gpus.ok()) << gpus.status();
  Metrics metrics;
  metrics.Add(*gpus);

  const std::string text = metrics.Render();
  for (const char* line : {"muster_gpu_utilization_ratio{gpu=\"0\",uuid=\"GPU-0\"} 0.87",
                           "muster_gpu_utilization_ratio{gpu=\"1\",uuid=\"GPU-1\"} 0",
                           "muster_gpu_memory_used_bytes{gpu=\"1\",uuid=\"GPU-1\"} 30000000000",
                           "muster_gpu_memory_size_bytes{gpu=\"1\",uuid=\"GPU-1\"} 80000000000",
                           "muster_gpu_power_watts{gpu=\"0\",uuid=\"GPU-0\"} 312.5",
                           "muster_gpu_temperature_celsius{gpu=\"0\",uuid=\"GPU-0\"} 61"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, Not(HasSubstr("muster_gpu_power_watts{gpu=\"1\"")));
}

TEST(GpuMetricsTest, IsNotFoundWithoutALibrary) {
  const absl::Status missing = OpenGpuMetrics("libno-such-library.so.1").status();
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
}

}  // namespace
}  // namespace muster::gpu_metrics_test
