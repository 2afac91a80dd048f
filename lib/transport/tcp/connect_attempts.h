// Where a peer that has several addresses is tried next, and what those before have said.
#pragma once

#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/variant.h"
#include "lib/transport/tcp/tcp_socket.h"

namespace muster {

// Of one side that connects: pure, it knows no socket and no clock. Thread-compatible.
class ConnectAttempts {
 public:
  // Of an address that was crowded: so often in all it is tried again.
  static constexpr int kRepeatsMax = 3;

  ConnectAttempts() = default;  // none
  explicit ConnectAttempts(const std::vector<Endpoint>& endpoints)
      : endpoints_(endpoints.begin(), endpoints.end()) {}

  // An address to be dialled; or a name to be resolved, which ends with Resolved() or Failed(); or,
  // when all were tried in vain, why. The order is that of the endpoints, and the addresses of a
  // name come in its place.
  using Next = absl::variant<SocketAddress, Endpoint, absl::Status>;
  Next Take();
  void Resolved(const std::vector<SocketAddress>& addresses);

  // What was tried, or its name, is of no use. Of what several have said the status in the end
  // holds what tells most (somebody who turned us away was there), and all of it that tells as
  // much.
  void Failed(const absl::Status& why);
  // Somebody hung up there without a word: whether `address` comes next once more. False when that
  // was done kRepeatsMax times.
  bool Repeat(const SocketAddress& address);

  // Nothing more is to be tried.
  void Stop();

 private:
  std::deque<Endpoint> endpoints_;
  std::deque<SocketAddress> addresses_;  // before those
  absl::Status fault_;
  int repeats_ = 0;
};

}  // namespace muster
