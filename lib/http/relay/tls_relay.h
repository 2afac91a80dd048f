// TLS in front of an unencrypted port of this host.
#pragma once

#include <cstdint>
#include <iterator>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/security/tls_folder.h"
#include "lib/transport/core/file_descriptor.h"

namespace muster {

// The HTTP library's own TLS looks for OpenSSL under a name that only development packages have. It
// also cannot read the folders in which our processes have their certificates. So this relay ends
// TLS and forwards connections unencrypted to a loopback port. That port must authenticate its
// clients as well, because other processes of this host reach it too.
//
// One thread. All its waits are limited: the handshake, the request, and a side that neither sends
// nor takes bytes. A client reaches the target only after it has sent a request, because the target
// has fewer threads than the relay has places.
class TlsRelay {
 public:
  struct Options {
    std::string address;  // "host:port"; port 0 picks a free one
    TlsServer* tls;       // must outlive the relay
    int target_port = 0;  // a loopback port
    // Further connections wait in the kernel's queue until one has ended, or has sent no request
    // for half a second.
    int connections_max = 64;
    // The limit for one address; an IPv6 network of 64 bits counts as one. Its next connection
    // replaces one that has sent no request for half a second, or is closed.
    int of_address_max = 48;
    absl::Duration handshake_max = absl::Seconds(5);
    // From the connection's start until the whole header has arrived, so it includes the handshake.
    absl::Duration request_max = absl::Seconds(10);
    absl::Duration silence_max = absl::Seconds(60);
  };
  // Returns INVALID_ARGUMENT if `address` is no host:port, UNAVAILABLE if it cannot be bound.
  static absl::StatusOr<std::unique_ptr<TlsRelay>> Listen(Options options);
  TlsRelay(const TlsRelay&) = delete;
  TlsRelay& operator=(const TlsRelay&) = delete;
  ~TlsRelay();  // closes all connections

  int port() const { return port_; }

 private:
  class Connection;

  TlsRelay(Options options, FileDescriptor listener, FileDescriptor wake, int port);
  void Run();
  void Accept();
  bool is_full() const { return std::ssize(connections_) >= options_.connections_max; }
  std::list<Connection>::iterator NextToGo(absl::Duration now, const std::string& source = "");

  const Options options_;
  const FileDescriptor listener_;
  const FileDescriptor wake_;  // readable: the relay must end
  const int port_;
  std::list<Connection> connections_;  // used only by the thread
  bool starved_ = false;  // there was no descriptor for another client; used only by the thread
  std::thread thread_;    // last, because it uses the others
};

}  // namespace muster
