#include "lib/exchange/exchange_metrics.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/limits/limits.h"
#include "lib/telemetry/metrics.h"
#include "lib/transport/core/transport.h"
#include "proto/muster/v1/coordinator.pb.h"

namespace muster::exchange_metrics_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ExchangeMetricsTest, LinkIsShownWhileACopyExists) {
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

  EXPECT_EQ(exchange.Link("ps-0/1").sent_bytes.Value(), 0) << "the new metrics start at 0";
}

TEST(ExchangeMetricsTest, LinksAreReportedWithTheirTransportAndBytes) {
  Metrics metrics;
  ExchangeMetrics exchange(metrics);
  const LinkMetrics link = exchange.Link("ps-0/1");
  const LinkMetrics unconnected = exchange.Link("ps-1/0");
  exchange.ShowLink("line-1", "ps-0/1",
                    {.transport = "tcp",
                     .network = "tls",
                     .device = "eth0",
                     .security = "encrypt",
                     .fallback = "one host, but another user"});
  exchange.ShowLink("line-1", "worker-0", {.transport = "shm", .security = "host"});
  link.sent_bytes.Increment(3e9);
  link.received_bytes.Increment(5);

  v1::JobReport report;
  exchange.AddLinksTo(report);
  ASSERT_EQ(report.links_size(), 2);
  EXPECT_EQ(report.links(0).ShortDebugString(),
            "peer: \"ps-0/1\" transport: \"tcp\" security: \"encrypt\" network: \"tls\" device: "
            "\"eth0\" fallback: \"one host, but another user\" sent_bytes: 3000000000 "
            "received_bytes: 5");
  EXPECT_EQ(report.links(1).ShortDebugString(),
            "peer: \"worker-0\" transport: \"shm\" security: \"host\"")
      << "this link has no counters";
  EXPECT_EQ(report.links_left_out(), 0);
  EXPECT_THAT(metrics.Render(), Not(HasSubstr("peer=\"worker-0\"} 0")))
      << "the report must not create counters";

  exchange.ForgetLinks("line-1");
  v1::JobReport after;
  exchange.AddLinksTo(after);
  EXPECT_EQ(after.links_size(), 0);
}

TEST(ExchangeMetricsTest, ManyLinksAreNotAllReported) {
  Metrics metrics;
  ExchangeMetrics exchange(metrics);
  for (int i = 0; i < limits::kLinksReportedMax + 7; ++i) {
    exchange.ShowLink("line-1", absl::StrCat("ps-", i, "/0"), {.transport = "tcp"});
  }
  v1::JobReport report;
  exchange.AddLinksTo(report);
  EXPECT_EQ(report.links_size(), limits::kLinksReportedMax);
  EXPECT_EQ(report.links_left_out(), 7);
}

}  // namespace
}  // namespace muster::exchange_metrics_test
