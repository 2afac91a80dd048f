// How a process dials the coordinator and how a server listens: limits, keepalive, retries and
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

// How a client proves who it is, and whom it believes to be the coordinator.
struct ClientSecurity {
  // A folder as TlsFolder has it; without tls.crt the client shows no certificate. "": plaintext.
  // The files are read again when they change, for connections that come after.
  std::string tls;
  // Its content goes with every call, as it is then; "": none. Only with `tls`.
  std::string token_file;
};

// Where the coordinator is, and what it takes to talk to it. Cheap to copy. Thread-safe.
//
// Of several addresses one leads at a time and the others refuse every call (reason "NOT_LEADER").
// All copies agree on which one is to be tried: whoever finds that it does not lead passes it over,
// for everybody.
class CoordinatorTarget {
 public:
  // In plaintext. "host:port", or several with commas between them.
  CoordinatorTarget(const std::string& addresses)  // NOLINT: an address is a target
      : CoordinatorTarget(addresses, nullptr) {}
  CoordinatorTarget(const char* addresses)  // NOLINT: likewise
      : CoordinatorTarget(std::string(addresses), nullptr) {}
  CoordinatorTarget(const std::string& addresses, std::shared_ptr<grpc::ChannelCredentials> proof);

  // The one to try.
  const std::string& address() const;
  const std::vector<std::string>& addresses() const { return *addresses_; }
  const std::shared_ptr<grpc::ChannelCredentials>& credentials() const { return credentials_; }

  // `address` does not answer, or does not lead: the next one is to be tried, unless somebody has
  // passed it over already.
  void PassOver(const std::string& address) const;

 private:
  std::shared_ptr<const std::vector<std::string>> addresses_;  // at least one
  std::shared_ptr<std::atomic<size_t>> turn_;                  // of addresses_
  std::shared_ptr<grpc::ChannelCredentials> credentials_;      // null: plaintext
};

// The errors of CheckAddresses(). INVALID_ARGUMENT or UNAVAILABLE (reason "CERTIFICATE_FILES" or
// "TOKEN_FILE"): a file is missing or faulty; the message names it. Once per process: it watches
// the files on a thread of its own.
absl::StatusOr<CoordinatorTarget> SecureTarget(const std::string& addresses,
                                               const ClientSecurity& security);

// To target.address(). Keepalive 20 s / 10 s, and 2 s / 2 s where there are others to go to;
// messages up to limits::kControlMessageBytesMax, 2 s to connect, back-off
// 100 ms..1 s, which no other channel shares. Never blocks. (While nobody waits in gRPC it goes on
// with an attempt to connect once in five seconds only: who waits between two calls does that in
// Channel::WaitForConnected(), or dials anew for each.)
std::shared_ptr<grpc::Channel> DialCoordinator(const CoordinatorTarget& target);

// How long a connection lives, so that its client proves anew who it is: as old as `most`, give or
// take a tenth, it takes no new calls, which go over another one, and after the grace its streams
// are ended. Members attach again without loss.
struct ConnectionAge {
  absl::Duration most = absl::InfiniteDuration();
  absl::Duration grace = absl::InfiniteDuration();
};

// The matching server side: requests up to limits::kRequestBytesMax, limits::kServerThreadsMax
// threads for calls that block. Who may come in is the front door's business.
void ConfigureServer(grpc::ServerBuilder& builder, const ConnectionAge& age = {});

}  // namespace muster
