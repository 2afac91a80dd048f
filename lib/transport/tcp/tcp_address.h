// The address of a TcpTransport: the port of a process, and the endpoints at which it may be found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "lib/transport/tcp/tcp_socket.h"

namespace muster {

// Encoded by SealAddress("MUT1"): port id (8), transport (4), then for each endpoint its port (2),
// the length of its host (1) and the host. Numbers are little-endian.
struct TcpAddress {
  static constexpr size_t kEndpointsMax = 8;

  uint64_t port = 0;                // DataPort::id()
  uint32_t transport = 0;           // DataPort::Listener::number()
  std::vector<Endpoint> endpoints;  // in the order to try them; 1 to kEndpointsMax

  friend bool operator==(const TcpAddress&, const TcpAddress&) = default;
};

std::string EncodeTcpAddress(const TcpAddress& address);

// Returns INVALID_ARGUMENT for bytes that EncodeTcpAddress does not make.
absl::StatusOr<TcpAddress> DecodeTcpAddress(absl::string_view sealed);

}  // namespace muster
