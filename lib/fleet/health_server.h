// Serves gRPC health (grpc.health.v1.Health) on a port of its own, for probes. Kubernetes' probes
// cannot use TLS, and a plaintext port of the real services would admit every client.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "lib/limits/limits.h"

namespace muster {

// Answers Check in plaintext, and nothing else. Thread-safe. The status depends on the service that
// the probe names:
// - "": SERVING as long as the process answers, also while it drains. A liveness probe must not
//   depend on other processes or cut a drain short.
// - the role's name: SERVING while the role is ready, else NOT_SERVING.
// - any other: NOT_FOUND.
class HealthServer {
 public:
  // Limits for unauthenticated clients. A connection takes three descriptors and some 20 KB, but no
  // thread. At the limit a new connection replaces the one that has been idle longest. Calls per
  // connection are limited as well; see GrpcListener.
  struct Limits {
    int connections_max = limits::kHealthConnectionsMax;
    absl::Duration greeting_max = absl::Seconds(5);  // until the client has sent HTTP/2's preface
    absl::Duration idle_max = absl::Seconds(10);     // without a call
    absl::Duration age_max = absl::Minutes(2);
  };

  // Listens at `address` ("host:port"; port 0 picks one), or not at all if it is empty. The role is
  // not ready until ReadyWhile() is called. Returns INVALID_ARGUMENT if `address` is not a
  // host:port, UNAVAILABLE if the port cannot be bound.
  static absl::StatusOr<std::unique_ptr<HealthServer>> Listen(const std::string& address,
                                                              absl::string_view role,
                                                              const Limits& limits);
  static absl::StatusOr<std::unique_ptr<HealthServer>> Listen(const std::string& address,
                                                              absl::string_view role) {
    return Listen(address, role, Limits());
  }
  ~HealthServer();  // closes all connections

  // Makes the role ready while `ready` returns true. It is called on gRPC's threads, one at a time,
  // and must not block.
  void ReadyWhile(std::function<bool()> ready);

  // Makes the role not ready. The function given to ReadyWhile() is not called after this returns.
  void Leave();

  int port() const;  // 0: does not listen

 private:
  class Impl;
  explicit HealthServer(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;  // null: does not listen
};

// Listens where --health says. The message of an error names the flag.
absl::StatusOr<std::unique_ptr<HealthServer>> HealthServerFromFlags(absl::string_view role);

}  // namespace muster
