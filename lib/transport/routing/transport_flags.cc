#include "lib/transport/routing/transport_flags.h"

#include <glog/logging.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "lib/concurrency/poll_budget.h"
#include "lib/status/status.h"
#include "lib/transport/routing/routing_transport.h"
#include "lib/transport/tcp/tcp_socket.h"
#include "lib/transport/tcp/tcp_transport.h"
#include "prometheus/counter.h"

ABSL_FLAG(std::string, transport, "auto",
          "auto: shared memory to members on this host, TCP to others; shm: shared memory only; "
          "tcp: TCP only; rdma: RDMA only, with UCX");
ABSL_FLAG(
    std::string, data_port, "0",
    "the port at which members on other hosts reach this process over TCP: [HOST:]PORT or "
    "[HOST:]FIRST-LAST, the first free one; 0: any port. With a HOST (a name or an address of "
    "this machine; [::1] for IPv6) the port listens only there");
ABSL_FLAG(std::string, advertise, "",
          "the name or address at which others reach this machine, if that is none of its "
          "own addresses (NAT, a load balancer)");
ABSL_FLAG(std::string, data_security, "auth",
          "security of TCP links: auth: both sides prove that they belong to the job; encrypt: TLS "
          "1.3 as well; none: every peer that reaches the port is believed. Set the same for all "
          "members");
ABSL_FLAG(std::string, data_checksum, "auto",
          "whether payloads over TCP carry a CRC-32C: auto (between hosts), on, off");
ABSL_FLAG(
    int, connections_per_peer, 1,
    "the most TCP connections of a thread to each peer that it connects to; more than 1 if one "
    "does not fill the network");
ABSL_FLAG(std::string, poll, "auto",
          "whether threads that wait for messages poll before they sleep: auto (while processors "
          "are idle and the cgroup's quota allows), always, never");

namespace muster {
namespace {

absl::Status ParsePorts(absl::string_view text, DataPortOptions& options) {
  const std::vector<absl::string_view> ends = absl::StrSplit(text, '-');
  uint32_t first = 0, last = 0;
  bool good = ends.size() <= 2 && absl::SimpleAtoi(ends.front(), &first) &&
              absl::SimpleAtoi(ends.back(), &last);
  good = good && first <= last && last <= UINT16_MAX && (ends.size() == 1 || first > 0);
  if (!good) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is no port and no range of ports; try 0, 9500 or 9500-9531"));
  }
  options.port_first = static_cast<uint16_t>(first);
  options.port_last = static_cast<uint16_t>(last);
  return absl::OkStatus();
}

// Checks that `host` is only a name or an address: the port is that of --data_port.
absl::Status CheckAdvertised(const std::string& host) {
  const bool is_address = SocketAddress::Numeric(host, /*port=*/1).has_value();
  if (host.size() <= 255 && (is_address || host.find_first_of(":[]/ ") == std::string::npos)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--advertise: must be a name or an address without a port or brackets (is '", host, "')"));
}

absl::StatusOr<DataSecurity> ParseDataSecurity(absl::string_view word) {
  if (word == "auth") return DataSecurity::kAuth;
  if (word == "encrypt") return DataSecurity::kEncrypt;
  if (word == "none") return DataSecurity::kNone;
  return absl::InvalidArgumentError(
      absl::StrCat("must be auth, encrypt or none (is '", word, "')"));
}

absl::StatusOr<Checksums> ParseChecksums(absl::string_view word) {
  if (word == "auto") return Checksums::kAuto;
  if (word == "on") return Checksums::kOn;
  if (word == "off") return Checksums::kOff;
  return absl::InvalidArgumentError(absl::StrCat("must be auto, on or off (is '", word, "')"));
}

prometheus::Counter& UnauthenticatedPeersOf(Metrics& metrics, absl::string_view why) {
  return metrics.Counter("muster_data_port_strangers_total",
                         "Connections to the data port that were turned away",
                         {{"reason", std::string(why)}});
}

absl::StatusOr<std::shared_ptr<DataPort>> PortFromFlags(Metrics& metrics, DataReach reach) {
  DataPortOptions options;
  for (int why = 0; why < DataPort::kUnauthenticatedPeerKinds; ++why) {
    UnauthenticatedPeersOf(metrics,
                           DataPort::NameOf(static_cast<DataPort::UnauthenticatedPeer>(why)));
  }
  options.turned_away = [&metrics](absl::string_view why) {
    UnauthenticatedPeersOf(metrics, why).Increment();
  };
  prometheus::Counter& damaged =
      metrics.Counter("muster_data_port_damaged_frames_total",
                      "Messages of members that changed on their way and ended their link");
  options.damaged_frame = [&damaged] { damaged.Increment(); };
  const absl::Status port = ParseDataPort(absl::GetFlag(FLAGS_data_port), options);
  if (!port.ok()) return Annotate(port, "--data_port");
  if (reach == DataReach::kThisHost) {
    if (options.bind_host.empty()) options.bind_host = "127.0.0.1";
    const auto address = SocketAddress::Numeric(options.bind_host, /*port=*/1);
    if (options.bind_host != "localhost" && (!address || !address->is_loopback())) {
      return absl::InvalidArgumentError(
          absl::StrCat("--data_port: ", options.bind_host,
                       " can be reached from beyond this host: give certificates (--tls=DIR), or "
                       "say --insecure"));
    }
  }
  options.advertise_host = absl::GetFlag(FLAGS_advertise);
  if (const absl::Status host = CheckAdvertised(options.advertise_host); !host.ok()) return host;
  const absl::StatusOr<DataSecurity> security =
      ParseDataSecurity(absl::GetFlag(FLAGS_data_security));
  if (!security.ok()) return Annotate(security.status(), "--data_security");
  options.security = *security;
  const absl::StatusOr<Checksums> checksums = ParseChecksums(absl::GetFlag(FLAGS_data_checksum));
  if (!checksums.ok()) return Annotate(checksums.status(), "--data_checksum");
  options.checksums = *checksums;
  absl::StatusOr<std::shared_ptr<DataPort>> opened = DataPort::Open(std::move(options));
  if (!opened.ok()) return Annotate(opened.status(), "--data_port");
  return opened;
}

}  // namespace

absl::Status ParseDataPort(absl::string_view text, DataPortOptions& options) {
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return ParsePorts(text, options);
  absl::string_view host = text.substr(0, colon);
  const bool bracketed = absl::ConsumePrefix(&host, "[") && absl::ConsumeSuffix(&host, "]");
  if (host.empty() || (!bracketed && host.find(':') != absl::string_view::npos)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text, "' has no host before its port; try 10.0.0.7:9500 or [fd00::7]:9500"));
  }
  options.bind_host = std::string(host);
  return ParsePorts(text.substr(colon + 1), options);
}

absl::StatusOr<TransportFactory> TransportFromFlags(TransportThreads threads, Metrics& metrics,
                                                    DataReach reach) {
  RoutingTransportOptions options;
  absl::StatusOr<LinkKind> links = ParseLinkKind(absl::GetFlag(FLAGS_transport));
  if (!links.ok()) return Annotate(links.status(), "--transport");
  options.links = *links;
  absl::StatusOr<PollMode> mode = ParsePollMode(absl::GetFlag(FLAGS_poll));
  if (!mode.ok()) return Annotate(mode.status(), "--poll");
  options.polling = PollingOf(*mode, threads.busy_threads, threads.pollers);
  if (*links == LinkKind::kAuto || *links == LinkKind::kTcp) {
    options.connections = absl::GetFlag(FLAGS_connections_per_peer);
    if (options.connections < 1 || options.connections > TcpTransport::kConnectionsMax) {
      return absl::InvalidArgumentError(absl::StrCat("--connections_per_peer: must be in [1, ",
                                                     TcpTransport::kConnectionsMax, "] (is ",
                                                     options.connections, ")"));
    }
    ASSIGN_OR_RETURN(options.port, PortFromFlags(metrics, reach));
  }
  return TransportFactory([options]() -> absl::StatusOr<std::unique_ptr<Transport>> {
    return RoutingTransport::Create(options);
  });
}

std::string TransportWord() { return absl::GetFlag(FLAGS_transport); }

}  // namespace muster
