// One socket of a TCP link: it connects or was accepted, proves itself, encrypts, carries messages
// and lingers until what was sent has arrived.
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

// What its owner knows and notes of a connection is in fields that the owner changes as well: the
// socket is the owner's to watch and to close, and reading and writing frames is its business.
// Thread-compatible: of the thread of its event loop.
struct TcpConnection : public EventLoop::Handler, public FetchTurns::Payload {
  using Clock = std::chrono::steady_clock;

  class Owner {
   public:
    // `connection` has work. Called from the event loop: it takes a note, as a Handler does.
    virtual void Activate(TcpConnection& connection) = 0;

   protected:
    ~Owner() = default;
  };

  enum class State { kConnecting, kShaking, kEncrypting, kOpen, kLingering, kClosed };
  enum class Turn { kNone, kWaiting, kReading };  // of the payload that is being received

  // Begins to connect. `hello`: who joins, and which connection of which link this one is; whether
  // checksums are wanted is found out. UNAVAILABLE with the address where that cannot be begun.
  static absl::StatusOr<std::unique_ptr<TcpConnection>> Dial(const SocketAddress& address,
                                                             const LinkHello& hello,
                                                             const SessionToken& token,
                                                             const DataPort& port, Owner* owner);
  // Takes over one that the port has let in.
  static std::unique_ptr<TcpConnection> Accept(DataPort::Member member, const DataPort& port,
                                               Owner* owner);

  // Connects, proves and encrypts, as far as that goes now: whether it is done, so that Open() may
  // come. An error ends the attempt: UNAVAILABLE where nobody is there or the other end has hung
  // up, else that of the handshake.
  absl::StatusOr<bool> Shake();
  void Open();

  void Ready(uint32_t events) override;
  bool HasWork() const;
  bool open() const { return state == State::kOpen; }
  bool encrypted() const { return tls_ != nullptr; }
  // An end of what comes in is known, and may not be announced once more.
  bool end_is_near() const { return hung_up || (tls_ != nullptr && tls_->ended()); }
  // What came was encrypted, and changed on its way: nothing more is read.
  bool damaged() const { return tls_ != nullptr && tls_->damaged(); }
  // Its link loses nothing with it.
  bool dispensable() const { return number > 0 && !carried; }

  // As readv(2) and writev(2), encrypted or not.
  ssize_t ReadInto(absl::Span<const iovec> room) const;
  ssize_t WriteFrom(absl::Span<iovec> pieces) const;

  // While it lingers: reads and throws away. Whether the socket may be closed: all that was sent
  // has arrived, or the other end reads no more.
  bool Drain();
  // Whether the other host has all that was sent.
  bool AllAcknowledged() const;

  // To be asked at intervals, while it is open: how many times before now the same encrypted record
  // was unfinished. A connection whose turn has not come is not read, and its records may wait.
  int LooksAtUnfinishedRecord();

  Owner* owner = nullptr;
  TcpLink* link = nullptr;  // null while lingering and closed
  FileDescriptor socket;
  SocketAddress remote;
  uint32_t number = 0;  // in its link
  State state = State::kConnecting;
  Turn turn = Turn::kNone;
  bool active = false;    // the owner has noted that it has work
  bool readable = false;  // as far as is known; likewise writable
  bool writable = false;
  bool hung_up = false;  // an end is in the stream: to be read up to it
  bool write_failed = false;
  bool ending = false;   // another of its link has ended
  bool carried = false;  // a byte, in either direction
  int64_t sent_in_turn = -1;
  Clock::time_point deadline;
  std::optional<FrameReader> reader;  // of an open one; likewise writer
  std::optional<FrameWriter> writer;

 private:
  absl::StatusOr<bool> ShakeHands();
  absl::StatusOr<bool> ShakeTls();
  void Encrypt(TlsStream::Side side, const SessionToken::Proof& key);

  const DataPort* port_ = nullptr;
  LinkHello hello_;     // while it connects
  SessionToken token_;  // likewise
  std::unique_ptr<HandshakeConnector> handshake_;
  std::unique_ptr<TlsStream> tls_;  // null: not encrypted
  bool tls_wants_write_ = false;
  bool checksums_ = false;
  std::optional<int64_t> unfinished_record_;  // as it was when that was last asked
  int looks_at_record_ = 0;
};

}  // namespace muster
