// TLS 1.3 over a connection whose two ends have already proved themselves and share a key.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "absl/types/span.h"
#include "lib/transport/session.h"

struct ssl_st;

namespace muster {

// The key is an external PSK (RFC 8446, 4.2.11), of one connection, and besides it there is an
// ephemeral Diffie-Hellman exchange: who learns the session's token later cannot read what was
// recorded. No certificates, no tickets, one cipher: TLS_AES_128_GCM_SHA256.
//
// Over a socket that does not block and that it does not own. Thread-compatible. OpenSSL allocates
// a little for each record of 16 KiB.
class TlsStream {
 public:
  enum class Side { kConnector, kAcceptor };
  enum class Progress { kDone, kWantsRead, kWantsWrite, kFailed };

  TlsStream(Side side, const SessionToken::Proof& key, int socket);
  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  // The handshake, as far as it goes now. After kFailed, fault() says why.
  Progress Shake();
  const std::string& fault() const { return fault_; }

  // As readv(2): fewer bytes than there is room for mean that the socket is empty, or that reading
  // has ended().
  ssize_t Read(absl::Span<const iovec> room);
  // Nothing more will be read: what every further Read() returns is the end of the stream or an
  // error, of which the socket tells nothing.
  bool ended() const { return end_.has_value(); }
  // As writev(2). What was not taken comes first in the next call.
  ssize_t Write(absl::Span<const iovec> pieces);

 private:
  static constexpr size_t kRecordBytes = 16 << 10;

  struct Callbacks;  // what OpenSSL calls
  struct Deleter {
    void operator()(ssl_st* ssl) const;
  };

  // -1 and errno, of a call that did not go through.
  ssize_t Explain(int result);

  const SessionToken::Proof key_;
  const int socket_;
  std::optional<int> end_;  // of reading: errno; 0: the other end has closed
  int write_error_ = 0;     // the end of writing; OpenSSL does not hear of it, so as to read on
  std::string fault_;
  std::unique_ptr<ssl_st, Deleter> ssl_;
  std::array<std::byte, kRecordBytes> record_;  // of several pieces
};

}  // namespace muster
