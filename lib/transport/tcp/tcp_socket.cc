#include "lib/transport/tcp/tcp_socket.h"

#include <arpa/inet.h>
#include <glog/logging.h>
#include <ifaddrs.h>
#include <linux/tcp.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "lib/transport/core/file_descriptor.h"

namespace muster {
namespace {

// The bytes that a sender may have in this host's memory before its turn comes. Large enough for 25
// Gbit/s over a round trip of 0.3 ms. Small, because it is the sender's lead over the others.
constexpr int kReceiveBufferBytes = 1 << 20;
// Unsent bytes in the kernel. An urgent message waits behind them: 0.2 ms at 10 Gbit/s. Sizes from
// 128 KiB to 1 MiB made no measurable difference in speed on loopback.
constexpr int kUnsentBytes = 256 << 10;

// The loss of an idle connection's machine is detected after 3 s + 3 * 1 s.
constexpr int kKeepaliveIdleSeconds = 3;
constexpr int kKeepaliveIntervalSeconds = 1;
constexpr int kKeepaliveProbes = 3;
constexpr uint32_t kSilenceMaxMilliseconds = 8000;

void Set(int socket, int level, int option, int value, const char* name) {
  if (setsockopt(socket, level, option, &value, sizeof(value)) != 0) {
    LOG_FIRST_N(WARNING, 1) << "the kernel rejects " << name << ": " << std::strerror(errno);
  }
}

const sockaddr_in* V4(const sockaddr* address) {
  return reinterpret_cast<const sockaddr_in*>(address);
}
const sockaddr_in6* V6(const sockaddr* address) {
  return reinterpret_cast<const sockaddr_in6*>(address);
}

bool IsMapped(const sockaddr* address) {
  return address->sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&V6(address)->sin6_addr);
}

std::string HostOf(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text = {};
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &V4(address)->sin_addr, text.data(), text.size());
  } else if (IsMapped(address)) {
    inet_ntop(AF_INET, &V6(address)->sin6_addr.s6_addr[12], text.data(), text.size());
  } else if (address->sa_family == AF_INET6) {
    inet_ntop(AF_INET6, &V6(address)->sin6_addr, text.data(), text.size());
  }
  return text.data();
}

bool IsLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) return ntohl(V4(address)->sin_addr.s_addr) >> 24 == 127;
  if (IsMapped(address)) return V6(address)->sin6_addr.s6_addr[12] == 127;
  return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&V6(address)->sin6_addr);
}

bool IsLinkLocal(const sockaddr* address) {
  if (address->sa_family == AF_INET) return ntohl(V4(address)->sin_addr.s_addr) >> 16 == 0xa9fe;
  return IN6_IS_ADDR_LINKLOCAL(&V6(address)->sin6_addr);
}

// Whether the interface is a bridge of containers or virtual machines. Bridges often have the same
// addresses on every host.
bool IsBridge(absl::string_view name) {
  for (absl::string_view prefix : {"docker", "br-", "virbr", "veth", "cni", "podman", "lxc"}) {
    if (absl::StartsWith(name, prefix)) return true;
  }
  return false;
}

template <typename Visit>
void ForEachInterfaceAddress(const Visit& visit) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return;
  absl::Cleanup release = [all] { freeifaddrs(all); };
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    if (one->ifa_addr->sa_family != AF_INET && one->ifa_addr->sa_family != AF_INET6) continue;
    visit(*one);
  }
}

}  // namespace

std::string ToString(const Endpoint& endpoint) {
  const bool bare_v6 = absl::StrContains(endpoint.host, ':');
  return absl::StrCat(bare_v6 ? "[" : "", endpoint.host, bare_v6 ? "]:" : ":", endpoint.port);
}

std::optional<SocketAddress> SocketAddress::Numeric(const std::string& host, uint16_t port) {
  SocketAddress address = AnyV4(port);
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage_);
  if (inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) return address;
  address = AnyV6(port);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage_);
  if (inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) return address;
  return std::nullopt;
}

absl::StatusOr<std::vector<SocketAddress>> SocketAddress::Resolve(const std::string& host,
                                                                  uint16_t port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
    return absl::UnavailableError(
        absl::StrCat("the name '", host, "' cannot be resolved: ", gai_strerror(error)));
  }
  absl::Cleanup release = [found] { freeaddrinfo(found); };
  std::vector<SocketAddress> addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (one->ai_family != AF_INET && one->ai_family != AF_INET6) continue;
    SocketAddress& address = addresses.emplace_back();
    std::memcpy(&address.storage_, one->ai_addr, one->ai_addrlen);
    address.size_ = one->ai_addrlen;
    if (one->ai_family == AF_INET) {
      reinterpret_cast<sockaddr_in*>(&address.storage_)->sin_port = htons(port);
    } else {
      reinterpret_cast<sockaddr_in6*>(&address.storage_)->sin6_port = htons(port);
    }
  }
  return addresses;
}

SocketAddress SocketAddress::AnyV4(uint16_t port) {
  SocketAddress address;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage_);
  v4->sin_family = AF_INET;
  v4->sin_port = htons(port);
  address.size_ = sizeof(*v4);
  return address;
}

SocketAddress SocketAddress::AnyV6(uint16_t port) {
  SocketAddress address;
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage_);
  v6->sin6_family = AF_INET6;
  v6->sin6_port = htons(port);
  address.size_ = sizeof(*v6);
  return address;
}

SocketAddress SocketAddress::LocalOf(int socket) {
  SocketAddress address;
  address.size_ = sizeof(address.storage_);
  getsockname(socket, reinterpret_cast<sockaddr*>(&address.storage_), &address.size_);
  return address;
}

SocketAddress SocketAddress::RemoteOf(int socket) {
  SocketAddress address;
  address.size_ = sizeof(address.storage_);
  getpeername(socket, reinterpret_cast<sockaddr*>(&address.storage_), &address.size_);
  return address;
}

uint16_t SocketAddress::port() const {
  return ntohs(family() == AF_INET ? V4(data())->sin_port : V6(data())->sin6_port);
}

std::string SocketAddress::host() const { return HostOf(data()); }

std::string SocketAddress::ToString() const {
  return muster::ToString(Endpoint{.host = host(), .port = port()});
}

std::string SocketAddress::source() const {
  std::string host = this->host();
  if (family() != AF_INET6 || !absl::StrContains(host, ':')) return host;
  constexpr size_t kNetworkBytes = 8;
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(data());
  return absl::StrCat("network ",
                      absl::BytesToHexString(absl::string_view(
                          reinterpret_cast<const char*>(&v6->sin6_addr), kNetworkBytes)));
}

bool SocketAddress::is_loopback() const { return IsLoopback(data()); }

bool StaysOnHost(int socket) {
  const SocketAddress remote = SocketAddress::RemoteOf(socket);
  return remote.is_loopback() || remote.host() == SocketAddress::LocalOf(socket).host();
}

std::vector<std::string> AddressesOfThisHost() {
  struct Candidate {
    std::pair<bool, bool> order;
    std::string host;
  };
  std::vector<Candidate> candidates;
  ForEachInterfaceAddress([&](const ifaddrs& one) {
    const sockaddr* address = one.ifa_addr;
    if ((one.ifa_flags & IFF_UP) == 0 || IsLoopback(address) || IsLinkLocal(address)) return;
    candidates.push_back(
        {{IsBridge(one.ifa_name), address->sa_family == AF_INET6}, HostOf(address)});
  });
  std::ranges::stable_sort(candidates, {}, &Candidate::order);
  std::vector<std::string> hosts;
  for (Candidate& candidate : candidates) hosts.push_back(std::move(candidate.host));
  if (hosts.empty()) hosts = {"127.0.0.1", "::1"};
  return hosts;
}

std::string InterfaceOf(const SocketAddress& address) {
  std::string name;
  ForEachInterfaceAddress([&, host = address.host()](const ifaddrs& one) {
    if (name.empty() && HostOf(one.ifa_addr) == host) name = one.ifa_name;
  });
  return name;
}

// Sets SO_RCVBUF to kReceiveBufferBytes. If the kernel grants less (net.core.rmem_max), keeps its
// autotuning: senders then share a busy network card less evenly, but links with a long round trip
// stay fast.
void SizeReceiveBuffer(int socket) {
  static const bool granted = [] {
    const FileDescriptor scratch(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    int size = kReceiveBufferBytes;
    socklen_t length = sizeof(size);
    return scratch && setsockopt(scratch.get(), SOL_SOCKET, SO_RCVBUF, &size, sizeof(size)) == 0 &&
           getsockopt(scratch.get(), SOL_SOCKET, SO_RCVBUF, &size, &length) == 0 &&
           size >= 2 * kReceiveBufferBytes;  // the kernel doubles the size for its own bookkeeping
  }();
  if (granted) Set(socket, SOL_SOCKET, SO_RCVBUF, kReceiveBufferBytes, "SO_RCVBUF");
}

void TuneLinkSocket(int socket) {
  Set(socket, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
  Set(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentBytes, "TCP_NOTSENT_LOWAT");
  Set(socket, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE");
  Set(socket, IPPROTO_TCP, TCP_KEEPIDLE, kKeepaliveIdleSeconds, "TCP_KEEPIDLE");
  Set(socket, IPPROTO_TCP, TCP_KEEPINTVL, kKeepaliveIntervalSeconds, "TCP_KEEPINTVL");
  Set(socket, IPPROTO_TCP, TCP_KEEPCNT, kKeepaliveProbes, "TCP_KEEPCNT");
}

// Decides by the kernel's TCP_INFO. TCP_USER_TIMEOUT is no alternative: it also ends a connection
// to a receiver that is alive and acknowledges, but has not read for that time.
bool HasVanished(int socket) {
  tcp_info info = {};
  socklen_t size = sizeof(info);
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
  return HasVanished(info);
}

// A closed window means that all sent bytes are acknowledged, and that the kernel sends probes
// instead of keepalives. A live receiver answers them whether it reads or not, and its answer
// resets their count. One probe may be lost.
bool HasVanished(const tcp_info& info) {
  const bool unacknowledged = info.tcpi_unacked > 0 && info.tcpi_retransmits > 0;
  const bool unanswered = info.tcpi_probes >= 2;
  return (unacknowledged || unanswered) && info.tcpi_last_ack_recv >= kSilenceMaxMilliseconds;
}

}  // namespace muster
