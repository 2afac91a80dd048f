// One socket of a TCP link. It connects or was accepted, does the handshake, encrypts, and carries
// messages. At the end it lingers until the sent bytes have arrived.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/transport/core/event_loop.h"
#include "lib/transport/core/fetch_turns.h"
#include "lib/transport/core/file_descriptor.h"
#include "lib/transport/session/session.h"
#include "lib/transport/session/session_handshake.h"
#include "lib/transport/tcp/data_port.h"
#include "lib/transport/tcp/frame_reader.h"
#include "lib/transport/tcp/frame_writer.h"
#include "lib/transport/tcp/tcp_socket.h"
#include "lib/transport/tcp/tls_stream.h"

namespace muster {

struct TcpLink;

// The state is in public fields that the owner also changes: the owner watches and closes the
// socket, and reads and writes the frames. Thread-compatible: used on the thread of its event loop.
struct TcpConnection : public EventLoop::Handler, public FetchTurns::Payload {
  using Clock = std::chrono::steady_clock;

  class Owner {
   public:
    // `connection` has work. Called from the event loop: like a Handler, it must only record that.
    virtual void Activate(TcpConnection& connection) = 0;

   protected:
    ~Owner() = default;
  };

  enum class State { kConnecting, kShaking, kEncrypting, kOpen, kLingering, kClosed };
  enum class Turn { kNone, kWaiting, kReading };  // of the payload that is being received

  // Begins to connect. `hello` names the joining member, the port and transport to reach, the link,
  // and this connection's number in it. Handshake() decides whether this end wants checksums.
  // Returns UNAVAILABLE with the address if the attempt cannot begin.
  static absl::StatusOr<std::unique_ptr<TcpConnection>> Dial(const SocketAddress& address,
                                                             const LinkHello& hello,
                                                             const SessionToken& token,
                                                             const DataPort& port, Owner* owner);
  // Takes over a connection that the port has accepted.
  static std::unique_ptr<TcpConnection> Accept(DataPort::Member member, const DataPort& port,
                                               Owner* owner);

  // Continues to connect, to do the handshake and to encrypt, as far as possible now. Returns true
  // when all is done; then call Open(). An error ends the attempt: UNAVAILABLE if no peer is there,
  // the peer hung up or TLS failed, else the error of the session handshake.
  absl::StatusOr<bool> Handshake();
  void Open();

  void Ready(uint32_t events) override;
  bool HasWork() const;
  bool open() const { return state == State::kOpen; }
  bool encrypted() const { return tls_ != nullptr; }
  // Whether the end of the incoming stream is known, and may not be announced again.
  bool end_is_near() const { return hung_up || (tls_ != nullptr && tls_->ended()); }
  // Whether an incoming encrypted record was changed in transit: nothing more can be read.
  bool damaged() const { return tls_ != nullptr && tls_->damaged(); }
  // Whether the link loses nothing with this connection.
  bool dispensable() const { return number > 0 && !carried; }

  // Like readv(2) and writev(2), encrypted or not.
  ssize_t ReadInto(absl::Span<const iovec> room) const;
  ssize_t WriteFrom(absl::Span<iovec> pieces) const;

  // Call on a lingering connection. Reads and drops bytes. Returns whether the socket may be
  // closed: all sent bytes have arrived, or the incoming stream has ended.
  bool Drain();
  // Whether the other host has acknowledged all sent bytes.
  bool AllAcknowledged() const;

  // Call at intervals while the connection is open. Returns how many earlier calls found the same
  // encrypted record unfinished. A connection that waits for its turn is not read, so its records
  // do not count.
  int LooksAtUnfinishedRecord();

  Owner* owner = nullptr;
  TcpLink* link = nullptr;  // null while lingering and closed
  FileDescriptor socket;
  SocketAddress remote;
  uint32_t number = 0;  // number of the connection in its link
  State state = State::kConnecting;
  Turn turn = Turn::kNone;
  bool active = false;    // the owner has recorded that it has work
  bool readable = false;  // as far as known, like writable
  bool writable = false;
  bool hung_up = false;  // the incoming stream ends: read the bytes before its end
  bool write_failed = false;
  bool ending = false;   // another connection of the link has ended
  bool carried = false;  // at least one byte was sent or received
  int64_t sent_in_turn = -1;
  Clock::time_point deadline;
  std::optional<FrameReader> reader;  // only while open, like writer
  std::optional<FrameWriter> writer;

 private:
  absl::StatusOr<bool> HandshakeSession();
  absl::StatusOr<bool> HandshakeTls();
  void Encrypt(TlsStream::Side side, const SessionToken::Proof& key);

  const DataPort* port_ = nullptr;
  LinkHello hello_;  // only while connecting, like token_
  SessionToken token_;
  std::unique_ptr<HandshakeConnector> handshake_;
  std::unique_ptr<TlsStream> tls_;  // null: not encrypted
  bool tls_wants_write_ = false;
  bool checksums_ = false;
  std::optional<int64_t> unfinished_record_;  // the result of the last look
  int looks_at_record_ = 0;
};

}  // namespace muster
