// gRPC health (grpc.health.v1.Health) on a port of its own, for probes: Kubernetes' cannot do TLS,
// and a plaintext port of the real services would let everybody in.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "lib/limits/limits.h"

namespace muster {

// Answers Check in plaintext and nothing else. Service "" is SERVING for as long as the process
// answers, also while it drains: a probe of its life must not depend on others, nor cut a drain
// short. The service that is named like the role is SERVING while it is ready. Any other is
// NOT_FOUND. Thread-safe.
class HealthServer {
 public:
  // What strangers can have: so many connections, each of three descriptors and some 20 KB, and no
  // thread, for so long. Who is idlest goes for who comes. Of calls a connection has a few at a
  // time; see FrontDoor.
  struct Limits {
    int connections_max = limits::kHealthConnectionsMax;
    absl::Duration greeting_max = absl::Seconds(5);  // until a client speaks HTTP/2
    absl::Duration idle_max = absl::Seconds(10);     // without a call
    absl::Duration age_max = absl::Minutes(2);
  };

  // Listens at `address`, host:port, where port 0 picks one; nowhere when it is empty. The role is
  // not ready before ReadyWhile(). INVALID_ARGUMENT for what is no host:port, UNAVAILABLE when the
  // port cannot be had.
  static absl::StatusOr<std::unique_ptr<HealthServer>> Listen(const std::string& address,
                                                              absl::string_view role,
                                                              const Limits& limits);
  static absl::StatusOr<std::unique_ptr<HealthServer>> Listen(const std::string& address,
                                                              absl::string_view role) {
    return Listen(address, role, Limits());
  }
  ~HealthServer();  // hangs up

  // From now on the role is ready while `ready` says so; it is asked on gRPC's threads, by one at a
  // time, and must not block.
  void ReadyWhile(std::function<bool()> ready);

  // The role is not ready any more. What ReadyWhile() was given is not called again once this has
  // returned.
  void Leave();

  int port() const;  // 0: listens nowhere

 private:
  class Impl;
  explicit HealthServer(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;  // null: listens nowhere
};

// Where --health says. The message of an error names the flag.
absl::StatusOr<std::unique_ptr<HealthServer>> HealthServerFromFlags(absl::string_view role);

}  // namespace muster
