// The server's side of one TLS connection over a socket.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lib/security/identity.h"

typedef struct ssl_ctx_st SSL_CTX;
typedef struct ssl_st SSL;

namespace muster {

// Uses a non-blocking socket that it does not own. Thread-compatible. The writing thread must have
// SIGPIPE blocked, because OpenSSL writes to sockets as to files.
class TlsConnection {
 public:
  // The largest record. A reader with this much room leaves nothing buffered inside, so the socket
  // alone shows whether more data is there.
  static constexpr size_t kRecordBytes = 16 << 10;

  TlsConnection(std::shared_ptr<SSL_CTX> context, int socket);
  ~TlsConnection();
  TlsConnection(const TlsConnection&) = delete;
  TlsConnection& operator=(const TlsConnection&) = delete;

  enum class Progress { kDone, kWantsRead, kWantsWrite, kFailed };
  // Continues the handshake as far as possible now. After kFailed, fault() says why.
  Progress Handshake();
  const std::string& fault() const { return fault_; }

  // Returns the client's identity, or nullopt if it has shown no certificate. Requires: the
  // handshake is complete. Returns INVALID_ARGUMENT if its certificate is signed by the authority
  // but has no Muster identity.
  absl::StatusOr<std::optional<Identity>> peer() const;
  // Returns when the peer's certificate expires; InfiniteFuture() without one.
  absl::Time peer_ends() const;

  // Behave like recv(2) and send(2), including -1 and EAGAIN. Bytes that Write() did not take must
  // come first in the next call; more may follow them.
  ssize_t Read(char* bytes, size_t size);
  ssize_t Write(const char* bytes, size_t size);

 private:
  struct Deleter {
    void operator()(SSL* ssl) const;
  };
  ssize_t Explain(int result);

  const std::unique_ptr<SSL, Deleter> ssl_;
  std::string fault_;
};

}  // namespace muster
