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
#include "lib/transport/core/carrier.h"
#include "lib/transport/core/event_loop.h"
#include "lib/transport/core/fetch_turns.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/session/session.h"
#include "lib/transport/tcp/data_port.h"
#include "lib/transport/tcp/frame_writer.h"
#include "lib/transport/tcp/tcp_connection.h"
#include "lib/transport/tcp/tcp_link.h"
#include "lib/transport/tcp/tcp_socket.h"

namespace muster {

struct TcpTransportOptions {
  // Where this process is reached; its security and checksums are those of the links.
  std::shared_ptr<DataPort> port;

  // Most connections to each peer that this side connects to; the next one is opened when all have
  // 1 MiB to send. For networks that one connection does not fill.
  int connections = 1;

  // For each of the addresses under which a peer may be found, to be connected and let in, and for
  // each name, to be resolved. So long no additional connection of a link is tried after one that
  // failed.
  std::chrono::milliseconds attempt_time_max = std::chrono::seconds(5);

  // How long an encrypted record may stay unfinished while nothing else comes. Its length is not
  // encrypted: where that was changed on the way, the two ends would wait for each other.
  std::chrono::milliseconds record_time_max = std::chrono::minutes(1);
};

// Small payloads come with their header through a buffer and are copied once. From
// FrameReader::kLargeBytes on a payload is read straight into the memory that PlacePayload names,
// when its sender has his turn (FetchTurns): a connection whose turn has not come is not read, and
// TCP's own window holds the sender back.
//
// The first message of a turn (from one Progress() to the next) is written at once, inside Send();
// others of the turn go together, with one system call, in the next Progress(). `done` comes when
// the kernel has the last byte. It may run inside Send(); all else is called from Progress() and
// may call anything here but Progress() and the destructor.
//
// Disconnect() lets go out what is done; sends that are not end with CANCELLED in the next
// Progress(). The destructor does so for every peer, for at most 0.2 s, and calls nothing any more.
//
// A peer whose bytes are no message is lost, as is one whose machine is silent for about 8 s though
// it had something to acknowledge, or 6 s while nothing is sent, and one that leaves an encrypted
// record unfinished.
class TcpTransport : public Carrier, private TcpConnection::Owner {
 public:
  static constexpr int kConnectionsMax = 16;  // of TcpTransportOptions::connections

  // `loop` outlives it. UNAVAILABLE where a resource of the machine is missing.
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

  // Links that were closed because what came over them was no message.
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

  // Becoming connected.
  int TakeDoorNews();
  void TakeMember(DataPort::Member member);
  void Approach(Peer& peer);  // tries the next address
  void Resolve(Peer& peer, const Endpoint& endpoint);
  void TakeResolved(DataPort::Resolved resolved);
  absl::Status Dial(Peer& peer, const SocketAddress& address, uint32_t number);
  absl::Status Add(Peer& peer, std::unique_ptr<Connection> connection);
  Peer* PeerOf(const DataPort::Member& member);
  void Shake(Connection& connection);
  void FailAttempt(Connection& connection, const absl::Status& why);
  void OpenConnection(Connection& connection);

  // Moving messages.
  Connection* ConnectionFor(Peer& peer);
  void PauseOpening(Peer& peer);  // more connections
  void Activate(Connection& connection) override;
  int Step(Connection& connection);
  int Read(Connection& connection);
  int Deliver(Connection& connection);
  void TellDamage() const;  // to who counts it
  void Flush(Connection& connection);
  void BeginFetches();
  void EndTurn(Connection& connection);
  OutgoingMessage* TakeOutgoing();
  void Finish(OutgoingMessage* message, const absl::Status& status);
  int FinishSends();

  // Parting.
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
  std::chrono::milliseconds LinkLook() const;  // how often links are looked at
  void LookAtLinks(Clock::time_point now);
  void Bury();

  const TcpTransportOptions options_;
  MessageReceiver* receiver_ = nullptr;
  std::unique_ptr<DataPort::Door> door_;
  std::string address_;
  int64_t malformed_ = 0;

  int32_t peers_made_ = 0;
  absl::flat_hash_map<PeerId, std::unique_ptr<Peer>> peers_;
  absl::flat_hash_map<std::array<std::byte, 16>, PeerId> links_;  // of those that joined
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<std::unique_ptr<Connection>> closed_;  // until nothing refers to them
  // Those with something to do, in the next turn and in this one.
  std::vector<Connection*> active_, stepping_;
  std::vector<Connection*> timed_;  // those with a deadline
  int64_t questions_asked_ = 0;
  std::vector<Question> questions_;  // the oldest first
  Clock::time_point look_at_links_;
  int64_t turn_ = 0;

  FetchTurns turns_;

  // As large as the largest number of messages that were under way together.
  std::vector<std::unique_ptr<OutgoingMessage>> outgoing_;
  std::vector<OutgoingMessage*> free_outgoing_;
  std::vector<OutgoingMessage*> finished_, finishing_;
  std::vector<Loss> losses_;
};

}  // namespace muster
