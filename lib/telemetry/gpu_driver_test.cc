// Checks the values that this machine's driver reports. Skipped without a driver.
#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/telemetry/gpu_metrics.h"
#include "prometheus/client_metric.h"
#include "prometheus/metric_family.h"

namespace muster::gpu_driver_test {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::Gt;
using ::testing::Le;
using ::testing::Lt;
using ::testing::StartsWith;

TEST(GpuDriverTest, ReportsPlausibleValues) {
  const auto gpus = OpenGpuMetrics();
  if (!gpus.ok()) GTEST_SKIP() << "no GPU's driver is here: " << gpus.status();

  std::map<std::string, std::map<std::string, double>> values;  // by family and GPU
  for (const prometheus::MetricFamily& family : (*gpus)->Collect()) {
    for (const prometheus::ClientMetric& metric : family.metric) {
      ASSERT_EQ(metric.label.size(), 2);
      EXPECT_THAT(metric.label[1].value, StartsWith("GPU-"));
      values[family.name][metric.label[0].value] = metric.gauge.value;
    }
  }
  // Every GPU reports its memory. GPUs shared by MIG do not report all other values.
  const auto& sizes = values["muster_gpu_memory_size_bytes"];
  ASSERT_FALSE(sizes.empty());
  for (const auto& [gpu, size] : sizes) {
    SCOPED_TRACE(gpu);
    EXPECT_THAT(size, AllOf(Gt(1e9), Lt(1e13)));
    EXPECT_THAT(values["muster_gpu_memory_used_bytes"][gpu], AllOf(Gt(0), Le(size)));
  }
  for (const auto& [gpu, degrees] : values["muster_gpu_temperature_celsius"]) {
    EXPECT_THAT(degrees, AllOf(Gt(0), Lt(120))) << gpu;
  }
  for (const auto& [gpu, ratio] : values["muster_gpu_utilization_ratio"]) {
    EXPECT_THAT(ratio, AllOf(Ge(0), Le(1))) << gpu;
  }
  for (const auto& [gpu, watts] : values["muster_gpu_power_watts"]) {
    EXPECT_THAT(watts, AllOf(Gt(1), Lt(3000))) << gpu;
  }
}

}  // namespace
}  // namespace muster::gpu_driver_test
