#include "lib/transport/routing/transport_flags.h"

#include <cstdint>
#include <string>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/telemetry/metrics.h"
#include "lib/transport/tcp/data_port.h"

ABSL_DECLARE_FLAG(std::string, transport);
ABSL_DECLARE_FLAG(std::string, advertise);
ABSL_DECLARE_FLAG(std::string, data_port);
ABSL_DECLARE_FLAG(std::string, data_security);
ABSL_DECLARE_FLAG(std::string, data_checksum);
ABSL_DECLARE_FLAG(int, connections_per_peer);
ABSL_DECLARE_FLAG(std::string, poll);

namespace muster::transport_flags_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(DataPortFlagTest, IsAPortOrARangeWithOrWithoutAHost) {
  struct Case {
    const char* text;
    const char* host;
    uint16_t first, last;
  };
  for (const Case& c : {Case{"0", "", 0, 0}, Case{"9500", "", 9500, 9500},
                        Case{"9500-9531", "", 9500, 9531}, Case{"127.0.0.1:0", "127.0.0.1", 0, 0},
                        Case{"node-7.fleet:9500-9501", "node-7.fleet", 9500, 9501},
                        Case{"[fd00::7]:9500", "fd00::7", 9500, 9500}}) {
    DataPortOptions options;
    EXPECT_TRUE(ParseDataPort(c.text, options).ok()) << c.text;
    EXPECT_EQ(options.bind_host, c.host);
    EXPECT_EQ(options.port_first, c.first) << c.text;
    EXPECT_EQ(options.port_last, c.last) << c.text;
  }
  for (const char* text : {"", "x", "-1", "65536", "9501-9500", "0-9", "1-2-3", ":9500", "[]:9500",
                           "fd00::7:9500", "host:"}) {
    DataPortOptions options;
    EXPECT_EQ(ParseDataPort(text, options).code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

class TransportFlagsTest : public testing::Test {
 protected:
  absl::Status Faulty(DataReach reach = DataReach::kAnywhere) {
    return TransportFromFlags({}, metrics_, reach).status();
  }

  Metrics metrics_;
  absl::FlagSaver saver_;
};

TEST_F(TransportFlagsTest, AFaultyFlagIsNamed) {
  const auto expect_named = [this](const char* flag) {
    const absl::Status fault = Faulty();
    EXPECT_EQ(fault.code(), absl::StatusCode::kInvalidArgument) << fault;
    EXPECT_THAT(std::string(fault.message()), HasSubstr(flag));
  };
  absl::SetFlag(&FLAGS_data_checksum, "maybe");
  expect_named("--data_checksum");
  absl::SetFlag(&FLAGS_data_security, "tls");
  expect_named("--data_security");
  for (const char* host : {"here:9500", "[fd00::7]", "http://here"}) {
    absl::SetFlag(&FLAGS_advertise, host);
    expect_named("--advertise");
  }
  absl::SetFlag(&FLAGS_data_port, "web");
  expect_named("--data_port");
  absl::SetFlag(&FLAGS_connections_per_peer, 0);
  expect_named("--connections_per_peer");
  absl::SetFlag(&FLAGS_poll, "sometimes");
  expect_named("--poll");
  absl::SetFlag(&FLAGS_transport, "ucx");
  expect_named("--transport");
}

TEST_F(TransportFlagsTest, APortInUseIsNamedWithAdvice) {
  const auto taken = DataPort::Open({.bind_host = "127.0.0.1"});
  ASSERT_TRUE(taken.ok()) << taken.status();
  absl::SetFlag(&FLAGS_data_port, "127.0.0.1:" + std::to_string((*taken)->port()));
  const absl::Status fault = Faulty();
  EXPECT_EQ(fault.code(), absl::StatusCode::kUnavailable) << fault;
  EXPECT_THAT(std::string(fault.message()), HasSubstr("--data_port"));
}

// A TCP transport's address contains, as text, the address where it listens, if there is only one.
TEST_F(TransportFlagsTest, APortForThisHostListensOnlyOnLoopback) {
  absl::SetFlag(&FLAGS_transport, "tcp");
  const auto expect_at = [this](const std::string& data_port, const std::string& host) {
    absl::SetFlag(&FLAGS_data_port, data_port);
    const auto factory = TransportFromFlags({}, metrics_, DataReach::kThisHost);
    ASSERT_TRUE(factory.ok()) << factory.status();
    const auto transport = (*factory)();
    ASSERT_TRUE(transport.ok()) << transport.status();
    EXPECT_THAT((*transport)->address(), HasSubstr(host)) << data_port;
  };
  expect_at("0", "127.0.0.1");
  expect_at("127.0.0.2:0", "127.0.0.2");
  for (const char* beyond : {"0.0.0.0:0", "[::]:0", "10.0.0.7:9500", "[fd00::7]:0", "node-7:0"}) {
    absl::SetFlag(&FLAGS_data_port, beyond);
    const absl::Status fault = Faulty(DataReach::kThisHost);
    EXPECT_EQ(fault.code(), absl::StatusCode::kInvalidArgument) << beyond << ": " << fault;
    EXPECT_THAT(std::string(fault.message()), HasSubstr("--data_port"));
  }
}

TEST_F(TransportFlagsTest, TransportsOfAProcessShareAPortAndRefusedPeersAreExported) {
  absl::SetFlag(&FLAGS_data_port, "127.0.0.1:0");
  const auto factory = TransportFromFlags({}, metrics_);
  ASSERT_TRUE(factory.ok()) << factory.status();
  const auto one = (*factory)(), two = (*factory)();
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_NE((*one)->address(), (*two)->address());
  EXPECT_THAT(metrics_.Render(),
              AllOf(HasSubstr("muster_data_port_strangers_total{reason=\"not_proven\"} 0"),
                    HasSubstr("\nmuster_data_port_damaged_frames_total 0\n")));
}

}  // namespace
}  // namespace muster::transport_flags_test
