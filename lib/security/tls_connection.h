// The server's end of one TLS connection over a socket.
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

// Over a socket that does not block and that it does not own. Thread-compatible. The thread that
// writes must have SIGPIPE blocked: OpenSSL writes to sockets as to files.
class TlsConnection {
 public:
  // A record has at most so many bytes. Who reads with as much room leaves nothing inside, so the
  // socket alone says whether there is more.
  static constexpr size_t kRecordBytes = 16 << 10;

  TlsConnection(std::shared_ptr<SSL_CTX> context, int socket);
  ~TlsConnection();
  TlsConnection(const TlsConnection&) = delete;
  TlsConnection& operator=(const TlsConnection&) = delete;

  enum class Progress { kDone, kWantsRead, kWantsWrite, kFailed };
  // The handshake, as far as it goes now. After kFailed, fault() says why.
  Progress Shake();
  const std::string& fault() const { return fault_; }

  // After the handshake. nullopt: the client has shown no certificate. INVALID_ARGUMENT: its
  // certificate is the authority's, and names nobody of Muster.
  absl::StatusOr<std::optional<Identity>> peer() const;
  // When the peer's certificate ends; InfiniteFuture() without one.
  absl::Time peer_ends() const;

  // As recv(2) and send(2), -1 and EAGAIN included. What Write() did not take comes first in the
  // next call, perhaps with more behind it.
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
