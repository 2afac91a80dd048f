// TLS 1.3 over a connection whose two ends have already proved themselves and share a key.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/types/span.h"
#include "lib/transport/session/session.h"

struct ssl_st;

namespace muster {

// The key is an external PSK (RFC 8446, 4.2.11), of one connection, and besides it there is an
// ephemeral Diffie-Hellman exchange: who learns the session's token later cannot read what was
// recorded. No certificates, no tickets, one cipher: TLS_AES_128_GCM_SHA256.
//
// Over a socket that does not block and that it does not own. Thread-compatible. OpenSSL allocates
// a little for each record of 16 KiB. Several records go to the socket with one system call, and
// come from it so: a receiver that is woken for each of them is slower.
class TlsStream {
 public:
  enum class Side { kConnector, kAcceptor };
  enum class Progress { kDone, kWantsRead, kWantsWrite, kFailed };

  // An end encrypts this many records with one key, 128 GiB where all are full, and then goes over
  // to the next: for AES-GCM RFC 8446, 5.5 allows 2^24.5, five minutes of a fast link. Each end
  // counts what it sends itself and asks for nothing of the other.
  static constexpr int64_t kRecordsPerKey = int64_t{1} << 23;

  TlsStream(Side side, const SessionToken::Proof& key, int socket,
            int64_t records_per_key = kRecordsPerKey);
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
  // It has ended because what came was changed on its way. The other end, which is told of that,
  // fails as well, but has nothing to complain of.
  bool damaged() const { return damaged_; }
  // A record has begun to come and is not whole: how many bytes had been read before it. Nothing:
  // no record has. Its length comes in the clear, and nothing tells that it was changed on its way
  // before as many bytes are here.
  std::optional<int64_t> UnfinishedRecord() const;
  // As writev(2). What was not taken comes first in the next call: it may have been encrypted
  // already. What was taken has gone to the socket, so that nothing waits for another call.
  ssize_t Write(absl::Span<const iovec> pieces);

 private:
  static constexpr size_t kRecordBytes = 16 << 10;
  // Of records that go together: seven, 112 KiB. They leave the second of two segments on loopback
  // three quarters full; eight (or four) begin another one for a few bytes, and the sender takes
  // a seventh longer, the receiver a twelfth. Fifteen bring nothing more.
  static constexpr size_t kSealedBytes = 128 << 10;
  static constexpr size_t kArrivedBytes = 128 << 10;              // likewise, that come
  static constexpr size_t kSealedRecordMax = kRecordBytes + 256;  // RFC 8446, 5.2
  static constexpr size_t kKeyUpdateBytes = 27;                   // likewise 4.6.3, sealed

  struct Callbacks;  // what OpenSSL calls
  struct Deleter {
    void operator()(ssl_st* ssl) const;
  };

  // -1 and errno, of a call that did not go through.
  ssize_t Explain(int result);
  // Encrypts the next record of `pieces`, from byte `skip` on: how many bytes of them; 0: see
  // `result`.
  size_t Seal(absl::Span<const iovec> pieces, size_t skip, int& result);
  // Has what follows encrypted with the next key, and tells the other end behind what was sealed.
  // False: see `result`.
  bool ChangeKey(int& result);
  // Whether the socket has taken all records.
  bool Flush();

  const SessionToken::Proof key_;
  const int socket_;
  const int64_t records_per_key_;
  int64_t records_ = 0;  // that were sealed with this key
  int64_t bytes_read_ = 0;
  std::optional<int> end_;  // of reading: errno; 0: the other end has closed
  bool damaged_ = false;    // which is because of what came
  int write_error_ = 0;     // the end of writing; OpenSSL does not hear of it, so as to read on
  std::string fault_;
  std::unique_ptr<ssl_st, Deleter> ssl_;
  std::array<std::byte, kRecordBytes> record_;  // of several pieces
  // Records from the socket that OpenSSL has not asked for: it asks for the 5 bytes of a record's
  // header, and then for the rest. Left to its own buffer (read_ahead), OpenSSL 3.0 would move all
  // that is in it for each record.
  const std::unique_ptr<std::byte[]> arrived_;
  size_t arrived_begin_ = 0, arrived_end_ = 0;
  // Records on their way to the socket, and how many bytes of their text no Write() has told of.
  std::unique_ptr<std::byte[]> sealed_;
  size_t sealed_begin_ = 0, sealed_end_ = 0;
  size_t untold_ = 0;
  bool gathering_ = false;
};

}  // namespace muster
