// Addresses and options of the TCP sockets that data ports use.
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

// Where a data port listens, as others are told: an address or a name, and a port.
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
  // Nothing where `host` is a name.
  static std::optional<SocketAddress> Numeric(const std::string& host, uint16_t port);
  // All that a name or an address stands for. Blocks as long as the name service does. UNAVAILABLE
  // where that knows nothing.
  static absl::StatusOr<std::vector<SocketAddress>> Resolve(const std::string& host, uint16_t port);
  static SocketAddress AnyV6(uint16_t port);
  static SocketAddress AnyV4(uint16_t port);
  static SocketAddress LocalOf(int socket);
  static SocketAddress RemoteOf(int socket);

  int family() const { return storage_.ss_family; }
  const sockaddr* data() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const { return size_; }
  uint16_t port() const;
  std::string host() const;      // an IPv4 address in an IPv6 one as IPv4
  std::string ToString() const;  // "192.0.2.2:7000"
  // Whose it is, where places are shared: of IPv6 the network of 64 bits, since whoever has one
  // address of it has them all.
  std::string source() const;
  bool is_loopback() const;

 private:
  sockaddr_storage storage_ = {};
  socklen_t size_ = 0;
};

// Whether both ends of a connection are on this host: what they say crosses no wire.
bool StaysOnHost(int socket);

// The addresses under which other hosts may reach this one, the most likely first: those of
// interfaces that are up, no loopback or link-local ones, those of bridges of virtual machines and
// containers last. Loopback ones where there are no others.
std::vector<std::string> AddressesOfThisHost();
// The interface that has this address; "" where none has.
std::string InterfaceOf(const SocketAddress& address);

// Of listeners and connectors, before they listen or connect.
void SizeReceiveBuffer(int socket);
// Of a connection that is to carry messages.
void TuneLinkSocket(int socket);

// Whether the other host has been silent for so long, though it was to acknowledge something or to
// answer the probes of its closed window, that it must be gone. Keepalive sees to connections that
// wait for nothing.
bool HasVanished(int socket);
bool HasVanished(const tcp_info& info);

}  // namespace muster
