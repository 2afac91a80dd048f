// TLS in front of a port of this host that speaks in the clear.
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

// The HTTP library's own TLS looks for OpenSSL by a name that only development packages have, and
// knows nothing of the folders that our processes read their certificates from. So connections end
// here, and go on in the clear to a port of loopback, which must ask whoever comes for the same
// proof: other processes of this host reach it too.
//
// One thread, whose every wait has an end: for the handshake, for a request, and for a side that
// neither says nor takes anything. The target hears of nobody who has not asked for something: its
// threads are fewer than the places here.
class TlsRelay {
 public:
  struct Options {
    std::string address;  // "host:port", port 0 picks a free one
    TlsServer* tls;       // outlives the relay
    int target_port = 0;  // of loopback
    // The next ones wait at the door until one has ended, or has asked for nothing in half a
    // second.
    int connections_max = 64;
    // Of one address, an IPv6 network of 64 bits being one: its next one takes the place of one
    // that has asked for nothing in half a second, or is hung up on.
    int of_address_max = 48;
    absl::Duration handshake_max = absl::Seconds(5);
    absl::Duration request_max = absl::Seconds(10);  // until all of its header has come
    absl::Duration silence_max = absl::Seconds(60);
  };
  // INVALID_ARGUMENT where it is no address, UNAVAILABLE when it cannot be bound.
  static absl::StatusOr<std::unique_ptr<TlsRelay>> Listen(Options options);
  TlsRelay(const TlsRelay&) = delete;
  TlsRelay& operator=(const TlsRelay&) = delete;
  ~TlsRelay();  // hangs up

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
  const FileDescriptor wake_;  // readable: the relay is to end
  const int port_;
  std::list<Connection> connections_;  // the thread's
  bool starved_ = false;               // likewise: there was no descriptor for another client
  std::thread thread_;                 // last: it uses the others
};

}  // namespace muster
