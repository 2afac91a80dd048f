#include "lib/exchange/exchange_metrics.h"

#include <optional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/telemetry/metrics.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ExchangeMetricsTest, ALinkIsShownWhileSomebodyHoldsIt) {
  Metrics metrics;
  ExchangeMetrics exchange(metrics);
  std::optional<LinkMetrics> first = exchange.Link("ps-0/1");
  std::optional<LinkMetrics> second = exchange.Link("ps-0/1");
  const LinkMetrics other = exchange.Link("ps-1/0");
  first->sent_bytes.Increment(3);
  second->sent_bytes.Increment(4);
  EXPECT_THAT(metrics.Render(),
              HasSubstr("muster_worker_link_sent_bytes_total{peer=\"ps-0/1\"} 7"));

  first.reset();
  EXPECT_THAT(metrics.Render(), HasSubstr("peer=\"ps-0/1\""));
  second.reset();
  EXPECT_THAT(metrics.Render(), Not(HasSubstr("peer=\"ps-0/1\"")));
  EXPECT_THAT(metrics.Render(), HasSubstr("peer=\"ps-1/0\""));

  EXPECT_EQ(exchange.Link("ps-0/1").sent_bytes.Value(), 0) << "it is another one";
}

}  // namespace
}  // namespace muster
