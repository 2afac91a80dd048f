#include "lib/transport/transport_flags.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/concurrency/poll_budget.h"
#include "lib/status/status.h"
#include "lib/transport/routing_transport.h"
#include "lib/transport/ucx_transport.h"

ABSL_FLAG(std::string, transport, "auto",
          "auto: shared memory to members on this host, UCX to others; shm: shared memory only; "
          "ucx: UCX only; rdma: UCX over RDMA only");
ABSL_FLAG(bool, allow_tcp_fallback, false,
          "where --transport=rdma or UCX_TLS asks for RDMA and a peer is reached over TCP: warn "
          "instead of failing");
ABSL_FLAG(int, connections_per_peer, 1,
          "most UCX connections of a thread to each peer; more than 1 for TCP faster than about 20 "
          "Gbit/s, and at a risk (docs/protocol.md)");
ABSL_FLAG(std::string, poll, "auto",
          "whether threads that wait for messages poll before they sleep: auto (while processors "
          "are idle and the cgroup's quota allows), always, never");

namespace muster {

absl::StatusOr<TransportFactory> TransportFromFlags(TransportThreads threads) {
  RoutingTransportOptions options;
  absl::StatusOr<LinkKind> links = ParseLinkKind(absl::GetFlag(FLAGS_transport));
  if (!links.ok()) return Annotate(links.status(), "--transport");
  options.links = *links;
  absl::StatusOr<PollMode> mode = ParsePollMode(absl::GetFlag(FLAGS_poll));
  if (!mode.ok()) return Annotate(mode.status(), "--poll");
  options.polling = PollingOf(*mode, threads.busy_threads, threads.pollers);
  options.connections = absl::GetFlag(FLAGS_connections_per_peer);
  if (options.connections < 1 || options.connections > UcxTransport::kConnectionsMax) {
    return absl::InvalidArgumentError(absl::StrCat("--connections_per_peer: must be in [1, ",
                                                   UcxTransport::kConnectionsMax, "] (is ",
                                                   options.connections, ")"));
  }
  options.allow_tcp_fallback = absl::GetFlag(FLAGS_allow_tcp_fallback);
  return TransportFactory([options]() -> absl::StatusOr<std::unique_ptr<Transport>> {
    return RoutingTransport::Create(options);
  });
}

std::string TransportWord() { return absl::GetFlag(FLAGS_transport); }

}  // namespace muster
