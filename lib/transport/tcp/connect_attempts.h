// Chooses the next address of a peer that has several, and collects the errors of earlier attempts.
#pragma once

#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/variant.h"
#include "lib/transport/tcp/tcp_socket.h"

namespace muster {

// The attempts of a connecting side. Pure: it knows no socket and no clock. Thread-compatible.
class ConnectAttempts {
 public:
  // The total number of repeats for addresses that hung up.
  static constexpr int kRepeatsMax = 3;

  ConnectAttempts() = default;  // no address to try
  explicit ConnectAttempts(const std::vector<Endpoint>& endpoints)
      : endpoints_(endpoints.begin(), endpoints.end()) {}

  // Returns the next thing to try:
  // - an address to dial;
  // - a name to resolve, which ends with Resolved() or Failed();
  // - a status, after all attempts failed.
  //
  // The order is that of the endpoints. The addresses of a name take the place of the name.
  using Next = absl::variant<SocketAddress, Endpoint, absl::Status>;
  Next Take();
  void Resolved(const std::vector<SocketAddress>& addresses);

  // Reports that the last address or name is of no use. The final status is the most informative
  // one: a refusal by a peer that was there outranks an unreachable address. Equally informative
  // messages are joined.
  void Failed(const absl::Status& why);
  // The peer at `address` hung up without a message. Returns whether Take() returns the address
  // once more; false after kRepeatsMax repeats.
  bool Repeat(const SocketAddress& address);

  // Drops all remaining addresses and names.
  void Stop();

 private:
  std::deque<Endpoint> endpoints_;
  std::deque<SocketAddress> addresses_;  // come before the endpoints
  absl::Status fault_;
  int repeats_ = 0;
};

}  // namespace muster
