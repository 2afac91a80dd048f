// TLS 1.3 over a connection of two ends that have already proved their identity and share a key.
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

// The key is an external PSK (RFC 8446, 4.2.11) of one connection. There is also an ephemeral
// Diffie-Hellman exchange: a party that learns the session's token later cannot decrypt recorded
// bytes. There are no certificates and no tickets, and only one cipher: TLS_AES_128_GCM_SHA256.
//
// Requires a nonblocking socket, which it does not own. Thread-compatible. OpenSSL allocates a
// little for each record of 16 KiB. Several records share one system call in both directions: a
// receiver that is woken for each record is slower.
class TlsStream {
 public:
  enum class Side { kConnector, kAcceptor };
  enum class Progress { kDone, kWantsRead, kWantsWrite, kFailed };

  // An end encrypts this many records with one key, 128 GiB if all are full, and then switches to
  // the next key. For AES-GCM, RFC 8446, 5.5 allows 2^24.5 records, five minutes of a fast link.
  // Each end counts its own records and requests nothing from the other.
  static constexpr int64_t kRecordsPerKey = int64_t{1} << 23;

  TlsStream(Side side, const SessionToken::Proof& key, int socket,
            int64_t records_per_key = kRecordsPerKey);
  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  // Continues the handshake as far as possible now. After kFailed, fault() has the reason.
  Progress Handshake();
  const std::string& fault() const { return fault_; }

  // Like readv(2). Fewer bytes than there is room for mean that the socket is empty, or that
  // reading has ended().
  ssize_t Read(absl::Span<const iovec> room);
  // Whether reading has ended: every further Read() returns the end of the stream or an error. The
  // socket does not announce that.
  bool ended() const { return end_.has_value(); }
  // Whether reading ended because the incoming bytes were changed in transit. The other end gets an
  // alert and fails too, but is not damaged().
  bool damaged() const { return damaged_; }
  // Returns how many bytes had been read before a record that has begun to arrive and is not
  // complete; nothing if there is no such record. A record's length is not encrypted. A change of
  // it is detected only when that many bytes have arrived.
  std::optional<int64_t> UnfinishedRecord() const;
  // Like writev(2). The next call must offer the untaken bytes first, because they may have been
  // encrypted already. Taken bytes are in the socket, so nothing waits for another call.
  ssize_t Write(absl::Span<const iovec> pieces);

 private:
  static constexpr size_t kRecordBytes = 16 << 10;
  // The buffer of records that are sent together: seven, 112 KiB. They leave the second of two
  // segments on loopback three quarters full. Eight (or four) start another segment for a few
  // bytes: then the sender takes a seventh longer, and the receiver a twelfth. Fifteen gain nothing
  // more.
  static constexpr size_t kSealedBytes = 128 << 10;
  static constexpr size_t kArrivedBytes = 128 << 10;              // of incoming records
  static constexpr size_t kSealedRecordMax = kRecordBytes + 256;  // RFC 8446, 5.2
  static constexpr size_t kKeyUpdateBytes = 27;                   // RFC 8446, 4.6.3, encrypted

  struct Callbacks;  // the functions that OpenSSL calls
  struct Deleter {
    void operator()(ssl_st* ssl) const;
  };

  // The result of a call that failed: 0 if the other end has closed the stream; else -1, and sets
  // errno.
  ssize_t Explain(int result);
  // Encrypts the next record of `pieces`, starting at byte `skip`. Returns how many bytes it took;
  // if 0, `result` has the reason.
  size_t Seal(absl::Span<const iovec> pieces, size_t skip, int& result);
  // Switches to the next key, and adds a record that tells the other end behind the encrypted
  // records. If false, `result` has the reason.
  bool ChangeKey(int& result);
  // Sends the encrypted records. Returns whether the socket has taken all of them.
  bool Flush();

  const SessionToken::Proof key_;
  const int socket_;
  const int64_t records_per_key_;
  int64_t records_ = 0;  // encrypted with this key
  int64_t bytes_read_ = 0;
  std::optional<int> end_;  // how reading ended: errno; 0: the other end closed the stream
  bool damaged_ = false;    // the end was caused by incoming bytes
  int write_error_ = 0;     // why writing ended; hidden from OpenSSL, so that reading can continue
  std::string fault_;
  std::unique_ptr<ssl_st, Deleter> ssl_;
  std::array<std::byte, kRecordBytes> record_;  // joins several pieces
  // Records from the socket that OpenSSL has not requested yet: it requests the 5 bytes of a
  // record's header and then the rest. With its own buffer (read_ahead), OpenSSL 3.0 would move the
  // whole buffer for each record.
  const std::unique_ptr<std::byte[]> arrived_;
  size_t arrived_begin_ = 0, arrived_end_ = 0;
  // Records on their way to the socket. untold_ is how many bytes of their text no Write() has
  // reported.
  std::unique_ptr<std::byte[]> sealed_;
  size_t sealed_begin_ = 0, sealed_end_ = 0;
  size_t untold_ = 0;
  bool gathering_ = false;
};

}  // namespace muster
