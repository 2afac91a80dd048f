// How a process dials the coordinator and how a server listens: limits, keepalive, retries and
// credentials in one place.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "grpcpp/channel.h"
#include "grpcpp/server_builder.h"

namespace grpc {
class ChannelCredentials;
}

namespace muster {

// How a client proves who it is, and whom it believes to be the coordinator.
struct ClientSecurity {
  // A folder as TlsFolder has it; without tls.crt the client shows no certificate. "": plaintext.
  // The files are read again when they change, for connections that come after.
  std::string tls;
  // Its content goes with every call, as it is then; "": none. Only with `tls`.
  std::string token_file;
};

// Where the coordinator is, and what it takes to talk to it. Cheap to copy.
struct CoordinatorTarget {
  // In plaintext.
  CoordinatorTarget(std::string host_port) : address(std::move(host_port)) {}  // NOLINT: an address
  CoordinatorTarget(const char* host_port) : address(host_port) {}  // NOLINT: is a target
  CoordinatorTarget(std::string host_port, std::shared_ptr<grpc::ChannelCredentials> proof)
      : address(std::move(host_port)), credentials(std::move(proof)) {}

  std::string address;                                    // host:port
  std::shared_ptr<grpc::ChannelCredentials> credentials;  // null: plaintext
};

// INVALID_ARGUMENT or UNAVAILABLE (reason "CERTIFICATE_FILES" or "TOKEN_FILE"): a file that is
// missing, is named and what is wrong with it. Once per process: it watches the files on a thread
// of its own.
absl::StatusOr<CoordinatorTarget> SecureTarget(const std::string& address,
                                               const ClientSecurity& security);

// Keepalive 20 s / 10 s, messages up to limits::kControlMessageBytesMax, 2 s to connect, back-off
// 100 ms..1 s, which no other channel shares. Never blocks. (While nobody waits in gRPC it goes on
// with an attempt to connect once in five seconds only: who waits between two calls does that in
// Channel::WaitForConnected(), or dials anew for each.)
std::shared_ptr<grpc::Channel> DialCoordinator(const CoordinatorTarget& target);

// How long a connection lives whose client has proved who it is: then it proves it anew.
enum class ConnectionAge { kUnbounded, kBounded };

// The matching server side: requests up to limits::kRequestBytesMax, limits::kServerThreadsMax
// threads for calls that block. Who may come in is the front door's business.
void ConfigureServer(grpc::ServerBuilder& builder, ConnectionAge age = ConnectionAge::kUnbounded);

}  // namespace muster
