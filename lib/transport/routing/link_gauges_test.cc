#include "lib/transport/routing/link_gauges.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/telemetry/metrics.h"
#include "lib/transport/core/transport.h"

namespace muster::link_gauges_test {
namespace {

using testing::HasSubstr;
using testing::Not;

const LinkDescription kTcp = {
    .transport = "tcp", .network = "tcp", .device = "eth0", .connections = 4};
const LinkDescription kShared = {.transport = "shm"};

TEST(LinkGaugesTest, ALinkIsShownWithAllItsLabels) {
  Metrics metrics;
  LinkGauges gauges(metrics);
  gauges.Show("job", "ps-0/1", kTcp);
  EXPECT_THAT(metrics.Render(), HasSubstr("muster_transport_info{connections=\"4\",device=\"eth0\","
                                          "device_memory=\"false\",fallback=\"\",network=\"tcp\","
                                          "peer=\"ps-0/1\",transport=\"tcp\"} 1"));
}

TEST(LinkGaugesTest, ALinkThatFellBackShowsTheReason) {
  Metrics metrics;
  LinkGauges gauges(metrics);
  LinkDescription link = kTcp;
  link.fallback = "one host, but another user";
  gauges.Show("job", "ps-0/1", link);
  EXPECT_THAT(metrics.Render(), HasSubstr("fallback=\"one host, but another user\""));
}

TEST(LinkGaugesTest, APeerWhoseTransportChangesIsShownOnce) {
  Metrics metrics;
  LinkGauges gauges(metrics);
  gauges.Show("job", "ps-0/1", kTcp);
  gauges.Show("job", "ps-0/1", kShared);
  EXPECT_THAT(metrics.Render(), HasSubstr("transport=\"shm\""));
  EXPECT_THAT(metrics.Render(), Not(HasSubstr("transport=\"tcp\"")));
}

TEST(LinkGaugesTest, LinksDisappearWithTheLastJobThatHasThem) {
  Metrics metrics;
  LinkGauges gauges(metrics);
  gauges.Show("first", "worker-0", kShared);
  gauges.Show("second", "worker-0", kShared);
  gauges.Show("second", "worker-1", kTcp);

  gauges.Forget("second");
  EXPECT_THAT(metrics.Render(), HasSubstr("peer=\"worker-0\""));
  EXPECT_THAT(metrics.Render(), Not(HasSubstr("peer=\"worker-1\"")));
  gauges.Forget("first");
  EXPECT_THAT(metrics.Render(), Not(HasSubstr("peer=")));
  gauges.Forget("first");
}

}  // namespace
}  // namespace muster::link_gauges_test
