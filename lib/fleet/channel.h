// Connects processes to the coordinator, and configures its server: limits, keepalive, retries and
// credentials in one place.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "grpcpp/server_builder.h"

namespace grpc {
class ChannelCredentials;
}

namespace muster {

// How a client proves its identity, and which coordinator it trusts.
struct ClientSecurity {
  // A folder as described at TlsFolder. Without tls.crt the client shows no certificate. "":
  // plaintext. The files are read again when they change; new connections use the new files.
  std::string tls;
  // The file's content is sent with every call, as it is at that time. "": none. Requires `tls`.
  std::string token_file;
};

// The coordinator's address or addresses, and the credentials to reach it. Cheap to copy.
// Thread-safe.
//
// If there are several addresses, one of them leads at a time and the others refuse every call
// (reason "NOT_LEADER"). All copies share the address to try next: a caller that finds that it does
// not lead moves every copy on to the next one.
class CoordinatorTarget {
 public:
  // Makes a target that is reached in plaintext. `addresses`: "host:port", or several with commas
  // between them.
  CoordinatorTarget(const std::string& addresses)  // NOLINT: an address is a target
      : CoordinatorTarget(addresses, nullptr) {}
  CoordinatorTarget(const char* addresses)  // NOLINT: an address is a target
      : CoordinatorTarget(std::string(addresses), nullptr) {}
  CoordinatorTarget(const std::string& addresses, std::shared_ptr<grpc::ChannelCredentials> proof);

  // The address to try now.
  const std::string& address() const;
  const std::vector<std::string>& addresses() const { return *addresses_; }
  const std::shared_ptr<grpc::ChannelCredentials>& credentials() const { return credentials_; }

  // Reports that `address` does not answer or does not lead. Moves on to the next address, unless
  // another caller already has.
  void PassOver(const std::string& address) const;

 private:
  std::shared_ptr<const std::vector<std::string>> addresses_;  // at least one
  std::shared_ptr<std::atomic<size_t>> turn_;                  // index into addresses_
  std::shared_ptr<grpc::ChannelCredentials> credentials_;      // null: plaintext
};

// Makes a target with these credentials. Returns the errors of CheckAddresses(), and:
// - INVALID_ARGUMENT or UNAVAILABLE (reason "CERTIFICATE_FILES" or "TOKEN_FILE") if a file is
//   missing or faulty; the message names it.
//
// Call it once per process: the target watches the files on a thread of its own.
absl::StatusOr<CoordinatorTarget> SecureTarget(const std::string& addresses,
                                               const ClientSecurity& security);

// Makes a channel to target.address(). Never blocks.
// - Keepalive: 20 s / 10 s; 2 s / 2 s if there are several addresses.
// - Messages: up to limits::kControlMessageBytesMax.
// - A connection attempt lasts at most 2 s. The back-off of 100 ms to 1 s is the channel's own.
//
// gRPC starts an attempt to connect only every five seconds while no caller waits in it. A caller
// that waits between two calls should wait in Channel::WaitForConnected(), or dial again for each
// call.
std::shared_ptr<grpc::Channel> DialCoordinator(const CoordinatorTarget& target);

// Limits the lifetime of a connection, so that its client has to authenticate again. At the age of
// `most` (plus or minus a tenth) it takes no new calls; they go over a new connection. After
// `grace` the server ends its streams. Members attach again without loss.
struct ConnectionAge {
  absl::Duration most = absl::InfiniteDuration();
  absl::Duration grace = absl::InfiniteDuration();
};

// Configures the server for the channels of DialCoordinator(): requests up to
// limits::kRequestBytesMax, and limits::kServerThreadsMax threads for calls that block.
// GrpcListener decides which connections are accepted.
void ConfigureServer(grpc::ServerBuilder& builder, const ConnectionAge& age = {});

}  // namespace muster
