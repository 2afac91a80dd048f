// The data plane between hosts: messages over TCP connections between members of a session.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "lib/transport/core/event_loop.h"
#include "lib/transport/core/fetch_turns.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/transport_backend.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/session/session.h"
#include "lib/transport/tcp/data_port.h"
#include "lib/transport/tcp/frame_writer.h"
#include "lib/transport/tcp/tcp_connection.h"
#include "lib/transport/tcp/tcp_link.h"
#include "lib/transport/tcp/tcp_socket.h"

namespace muster {

struct TcpTransportOptions {
  // The port at which this process is reached. Its security and checksums apply to the links.
  std::shared_ptr<DataPort> port;

  // The most connections to each peer that this side connects to. The next one is opened when all
  // have 1 MiB to send. Use more than one if one connection does not fill the network.
  int connections = 1;

  // The time limit for connecting and the handshake at each of a peer's addresses, and for
  // resolving each name. It is also the pause after an additional connection of a link failed.
  std::chrono::milliseconds attempt_time_max = std::chrono::seconds(5);

  // How long one encrypted record may take to arrive completely while its connection is read. The
  // record's length is not encrypted: if it was changed in transit, the two ends would wait for
  // each other.
  std::chrono::milliseconds record_time_max = std::chrono::minutes(1);
};

// Small payloads are read with their header through a buffer and copied once. A payload of
// FrameReader::kLargeBytes or more is read directly into the memory that PlacePayload returned,
// when its sender has its turn (FetchTurns). A connection that waits for its turn is not read, and
// TCP's window holds the sender back.
//
// The first message of a turn (from one Progress() to the next) on each connection is written at
// once, inside Send(). Later messages of the turn are written together in the next Progress(), with
// one system call.
//
// `done` is called when the kernel has the last byte. It may run inside Send(). All other callbacks
// run in Progress(). All callbacks except PlacePayload may call everything here except Progress()
// and the destructor. PlacePayload only returns memory.
//
// Disconnect() still sends what is done; sends that are not end with CANCELLED in the next
// Progress(). The destructor does the same for every peer, for at most 0.2 s, and calls no
// callbacks.
//
// A peer is lost if it cannot be reached or closes the link, and also in these cases:
// - Its bytes are no message.
// - Its machine is silent for about 8 s although it had something to acknowledge, or for 6 s while
//   nothing is sent.
// - It leaves an encrypted record unfinished.
class TcpTransport : public TransportBackend, private TcpConnection::Owner {
 public:
  static constexpr int kConnectionsMax = 16;  // limit of TcpTransportOptions::connections

  // Requires: `loop` outlives the transport, and options.port is not null. Always returns OK.
  static absl::StatusOr<std::unique_ptr<TcpTransport>> Create(EventLoop* loop,
                                                              TcpTransportOptions options);
  ~TcpTransport() override;

  void SetReceiver(MessageReceiver* receiver) override { receiver_ = receiver; }
  std::string address() const override { return address_; }
  std::string name() const override { return "tcp"; }
  void OpenSession(uint64_t job, uint32_t generation, const SessionToken& token) override;
  void CloseSession(uint64_t job, uint32_t generation) override;
  absl::StatusOr<PeerId> Connect(absl::string_view address,
                                 const LinkCredentials& credentials) override;
  void Disconnect(PeerId peer) override;
  LinkDescription Describe(PeerId peer) const override;
  void Send(PeerId peer, const WireHeader& header, absl::Span<const std::byte> payload,
            SendDone done) override;
  absl::StatusOr<std::unique_ptr<MemoryRegistration>> RegisterMemory(
      absl::Span<std::byte> memory) override;

  int Advance() override;
  bool HasNews() const override;
  absl::Duration SleepMax() const override;

  // The number of links that were closed because their bytes were no message.
  int64_t malformed_links() const { return malformed_; }

 private:
  using Clock = std::chrono::steady_clock;
  using Connection = TcpConnection;
  using Peer = TcpLink;
  struct Loss {
    PeerId peer;
    std::vector<WireHeader> payloads;
    absl::Status why;
  };

  // A name that is being resolved.
  struct Question {
    int64_t number;
    PeerId peer;
    std::string host;
    Clock::time_point deadline;
  };

  TcpTransport(EventLoop* loop, TcpTransportOptions options);

  Peer& Find(PeerId id) const;
  Peer& AddPeer();

  // Connecting.
  int TakeListenerNews();
  void TakeMember(DataPort::Member member);
  void ConnectNext(Peer& peer);  // tries the next address
  void Resolve(Peer& peer, const Endpoint& endpoint);
  void TakeResolved(DataPort::Resolved resolved);
  absl::Status Dial(Peer& peer, const SocketAddress& address, uint32_t number);
  absl::Status Add(Peer& peer, std::unique_ptr<Connection> connection);
  Peer* PeerOf(const DataPort::Member& member);
  void Handshake(Connection& connection);
  void FailAttempt(Connection& connection, const absl::Status& why);
  void OpenConnection(Connection& connection);

  // Moving messages.
  Connection* ConnectionFor(Peer& peer);
  void PauseOpening(Peer& peer);  // pauses opening additional connections
  void Activate(Connection& connection) override;
  int Step(Connection& connection);
  int Read(Connection& connection);
  int Deliver(Connection& connection);
  void TellDamage() const;  // reports it to the owner of the port
  void Flush(Connection& connection);
  void BeginFetches();
  void EndTurn(Connection& connection);
  OutgoingMessage* TakeOutgoing();
  void Finish(OutgoingMessage* message, const absl::Status& status);
  int FinishSends();

  // Disconnecting.
  void DoWithout(Connection& connection, const absl::Status& why);
  void EndStream(Connection& connection, const absl::Status& why);
  void BreakLink(Connection& connection, const absl::Status& why);
  void Forget(Peer& peer);
  void EndLink(Peer& peer, const absl::Status& why);
  void FailSends(Peer& peer, const absl::Status& why);
  void Linger(Connection& connection);
  void Discard(Connection& connection);
  void Close(Connection& connection);
  int ReportLosses();
  void LookAtClock();
  std::chrono::milliseconds LinkLook() const;  // the interval between two checks of the links
  void LookAtLinks(Clock::time_point now);
  void Reap();

  const TcpTransportOptions options_;
  MessageReceiver* receiver_ = nullptr;
  std::unique_ptr<DataPort::Listener> listener_;
  std::string address_;
  int64_t malformed_ = 0;

  int32_t peers_made_ = 0;
  absl::flat_hash_map<PeerId, std::unique_ptr<Peer>> peers_;
  absl::flat_hash_map<std::array<std::byte, 16>, PeerId> links_;  // of peers that joined
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<std::unique_ptr<Connection>> closed_;  // kept until nothing refers to them
  // Connections with work: in the next turn, and in this one.
  std::vector<Connection*> active_, stepping_;
  std::vector<Connection*> timed_;  // connections with a deadline
  int64_t questions_asked_ = 0;
  std::vector<Question> questions_;  // oldest first
  Clock::time_point look_at_links_;
  int64_t turn_ = 0;

  FetchTurns turns_;

  // A pool as large as the largest number of messages in progress at once.
  std::vector<std::unique_ptr<OutgoingMessage>> outgoing_;
  std::vector<OutgoingMessage*> free_outgoing_;
  std::vector<OutgoingMessage*> finished_, finishing_;
  std::vector<Loss> losses_;
};

}  // namespace muster
