// Addresses and options of TCP sockets that data ports use.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct tcp_info;

namespace muster {

// The place where a data port listens, as other hosts see it: an address or a name, and a port.
struct Endpoint {
  static constexpr size_t kHostBytesMax = 255;

  std::string host;
  uint16_t port = 0;

  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};
std::string ToString(const Endpoint& endpoint);  // "ps-0:7000", "[fd00::2]:7000"

// An IPv4 or IPv6 address and a port.
class SocketAddress {
 public:
  // Parses a numeric address. Returns nothing if `host` is a name.
  static std::optional<SocketAddress> Numeric(const std::string& host, uint16_t port);
  // Returns all addresses of a name or an address. Blocks as long as the name service does. Returns
  // UNAVAILABLE if that does not know the name.
  static absl::StatusOr<std::vector<SocketAddress>> Resolve(const std::string& host, uint16_t port);
  static SocketAddress AnyV6(uint16_t port);
  static SocketAddress AnyV4(uint16_t port);
  static SocketAddress LocalOf(int socket);
  static SocketAddress RemoteOf(int socket);

  int family() const { return storage_.ss_family; }
  const sockaddr* data() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const { return size_; }
  uint16_t port() const;
  std::string host() const;      // an IPv4 address mapped into IPv6 is written as IPv4
  std::string ToString() const;  // "192.0.2.2:7000"
  // The owner of the address, for sharing places fairly. For IPv6 this is the network of 64 bits,
  // because a host with one of its addresses can use all of them.
  std::string source() const;
  bool is_loopback() const;

 private:
  sockaddr_storage storage_ = {};
  socklen_t size_ = 0;
};

// Whether both ends of a connection are on this host, so that its bytes cross no network.
bool StaysOnHost(int socket);

// Returns the addresses at which other hosts may reach this one, the most likely first. They belong
// to interfaces that are up, and are not loopback or link-local. Bridges of virtual machines and
// containers come last. Returns loopback addresses if there are no others.
std::vector<std::string> AddressesOfThisHost();
// Returns the interface that has this address, or "".
std::string InterfaceOf(const SocketAddress& address);

// Sets the size of the receive buffer. Call on listeners and connectors before they listen or
// connect.
void SizeReceiveBuffer(int socket);
// Sets the options of a connection that will carry messages.
void TuneLinkSocket(int socket);

// Whether the other host must be gone: it has been silent for long, although it had to acknowledge
// bytes or to answer the probes of its closed window. Keepalive covers connections that wait for
// nothing.
bool HasVanished(int socket);
bool HasVanished(const tcp_info& info);

}  // namespace muster
