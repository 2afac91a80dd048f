// Moves framed messages between one thread and its peers: the data plane's one interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/session/session.h"

namespace muster {

// A link of one Transport to one peer, in both directions, whichever side connected. Never reused
// within a Transport.
enum class PeerId : int32_t { kNone = -1 };

class Transport;

// A lease on a payload that the receiver reads in the sender's memory. The sender's `done` callback
// waits until the lease is destroyed.
//
// Move-only. Requires: destroyed on the transport's thread, before the transport. The memory stays
// mapped after the peer is lost. Allocates nothing.
class PayloadLease {
 public:
  PayloadLease() = default;  // empty: leases nothing
  PayloadLease(Transport* transport, uint64_t loan) : transport_(transport), loan_(loan) {}
  PayloadLease(PayloadLease&& other) noexcept
      : transport_(std::exchange(other.transport_, nullptr)), loan_(other.loan_) {}
  PayloadLease& operator=(PayloadLease&& other) noexcept {
    std::swap(transport_, other.transport_);
    std::swap(loan_, other.loan_);
    return *this;
  }
  ~PayloadLease();

  explicit operator bool() const { return transport_ != nullptr; }

 private:
  Transport* transport_ = nullptr;
  uint64_t loan_ = 0;
};

// The memory that a payload is received into.
struct PayloadPlace {
  // From this many bytes on, a receiver that reads all of them once in each step finds none in its
  // cache, because later bytes have evicted earlier ones. A sender on the same host makes this
  // worse: it keeps two versions of the bytes in memory and reads as many itself.
  static constexpr int64_t kUncachedBytesMin = int64_t{8} << 20;

  PayloadPlace() = default;                                          // no memory: drops the payload
  PayloadPlace(absl::Span<std::byte> memory, bool in_place = false)  // NOLINT: a span is a place
      : memory(memory), in_place(in_place) {}

  absl::Span<std::byte> memory;
  // The payload may stay in the sender's memory if the transport can lend that.
  bool in_place = false;
  // The payload is read only after caches would have evicted it: a copy may bypass the caches.
  bool past_caches = false;
};

// The callbacks of a Transport. Called on the transport's thread, from inside Progress().
class MessageReceiver {
 public:
  virtual ~MessageReceiver() = default;

  // A peer connected to this transport and proved that it is `who`, a member of a session that is
  // open here. Every message from `peer` comes from that member, and the receiver may send to it.
  // The receiver decides whether such a rank or shard exists, and disconnects a peer that it does
  // not know.
  virtual void PeerJoined(PeerId peer, const LinkIdentity& who) = 0;

  // A well-formed header arrived from `from`. Returns the memory for its payload (header.length
  // bytes, > 0), or an empty place to drop the payload without another callback.
  //
  // The memory must stay valid until Received or PayloadLost. Exactly one of them follows, unless
  // the receiver disconnects `from`. Registered memory (RegisterMemory) is fastest. Not called if
  // length is 0. Must not call the transport.
  virtual PayloadPlace PlacePayload(PeerId from, const WireHeader& header) = 0;

  // A whole message has arrived. `payload` is the memory that PlacePayload returned, or empty if
  // length is 0.
  //
  // If the place had in_place set, `payload` may be the sender's memory, which `lease` keeps valid.
  // It is 64-byte aligned if the sender's payload is. A faulty sender may still change it: read
  // each byte only once, or tolerate a change.
  virtual void Received(PeerId from, const WireHeader& header, absl::Span<const std::byte> payload,
                        PayloadLease lease) = 0;

  // A payload for which PlacePayload returned memory will not arrive. The memory may contain a part
  // of the payload; the transport no longer writes to it.
  virtual void PayloadLost(PeerId from, const WireHeader& header) = 0;

  // The peer is gone, has disconnected, or could not be reached. Sends to it were or will be
  // completed with an error. Called at most once for each peer, as its last callback; not for a
  // peer that the receiver has disconnected before. The transport keeps the peer's entry, so that
  // sends to it fail, until the receiver calls Disconnect().
  virtual void PeerLost(PeerId peer, const absl::Status& why) = 0;
};

// Describes the link to one peer. For logs, muster_transport_info and JobReports.
struct LinkDescription {
  std::string transport;  // "tcp", "shm", "rdma", "inprocess"
  std::string network;    // "tcp", "rc_mlx5", ...; "" if there is none
  std::string device;     // "eth0", "mlx5_0:1", ...; "" if unknown
  int connections = 1;
  bool device_memory = false;  // GPU buffers are sent without a copy to the host
  // NameOf(DataSecurity); "host" if nothing leaves the host and the kernel identifies the peer
  // process; "" for "inprocess".
  std::string security;
  // The reason for not using the faster transport that both ends have. "" unless this end connected
  // and knows the reason.
  std::string fallback;

  // Whether the peer is on this host and reads payloads in place.
  bool shares_memory() const { return transport == "shm"; }
};

// A thread's links to its peers. Thread-compatible: one thread creates, uses and destroys a
// Transport. Only Wake() may be called from other threads.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual void SetReceiver(MessageReceiver* receiver) = 0;  // call before the first Progress()

  // Opaque bytes that other transports pass to Connect(). Constant.
  virtual std::string address() const = 0;

  // The name for metrics and logs: "shm+tcp", "inprocess".
  virtual std::string name() const = 0;

  // Accepts members of this job's generation that prove to know `token`. Sessions of several jobs
  // may be open at once, but only one for each job. Opening another generation of a job, or the
  // same one with another token, replaces the job's session. Members that were accepted before stay
  // connected.
  virtual void OpenSession(uint64_t job, uint32_t generation, const SessionToken& token) = 0;
  // Accepts no more members; those that are connected stay. No-op if another generation of the job
  // is open.
  virtual void CloseSession(uint64_t job, uint32_t generation) = 0;

  // Starts a connection as the member that `credentials` name, to a transport in which that session
  // is open. Messages may be sent at once. Returns INVALID_ARGUMENT if `address` is no address.
  //
  // If the peer cannot be reached or refuses the member, PeerLost follows later. The peer answers
  // on the same link: two members need one link between them.
  virtual absl::StatusOr<PeerId> Connect(absl::string_view address,
                                         const LinkCredentials& credentials) = 0;
  // Ends a link, whichever side connected. Drops payloads that are being received from the peer:
  // when this returns, their memory is free. No callback for the peer follows.
  virtual void Disconnect(PeerId peer) = 0;
  // Disconnects without waiting until the peer, which may hang, has finished reading payloads in
  // this side's memory. The peer may then read whatever this side writes there next. Call it only
  // if the peer's session is over: results of that session are refused.
  virtual void CutOff(PeerId peer) { Disconnect(peer); }

  // Describes the link to `peer`. Complete only after the first message was sent or received.
  virtual LinkDescription Describe(PeerId /*peer*/) const { return {.transport = name()}; }

  // Starts sending. Copies the header. Messages to one peer may overtake each other. Allocates
  // nothing of the payload's size.
  //
  // `payload` must stay valid and unchanged until `done` is called: with OK when the memory may be
  // reused, or with the error. `done` may be empty, and may run inside Send().
  using SendDone = absl::AnyInvocable<void(const absl::Status&)>;
  virtual void Send(PeerId peer, const WireHeader& header, absl::Span<const std::byte> payload,
                    SendDone done) = 0;

  // Registers memory for fast transfers until the handle is destroyed or the Transport ends. The
  // default handle does nothing.
  class MemoryRegistration {
   public:
    virtual ~MemoryRegistration() = default;
  };
  virtual absl::StatusOr<std::unique_ptr<MemoryRegistration>> RegisterMemory(
      absl::Span<std::byte> memory) = 0;

  // Sends and receives what is possible now, and calls the receiver. Returns the number of events
  // handled.
  virtual int Progress() = 0;

  // Blocks until Progress() would do something, Wake() is called or `timeout` passes. Polls briefly
  // if there are idle cores, then sleeps on the transport's event file descriptor.
  virtual void Wait(absl::Duration timeout) = 0;

  // Ends the current or the next Wait() at once. Thread-safe.
  virtual void Wake() = 0;

 private:
  friend class PayloadLease;
  // Ends a lease. Called only on transports that lend payloads.
  virtual void Return(uint64_t /*loan*/) {}
};

inline PayloadLease::~PayloadLease() {
  if (transport_ != nullptr) transport_->Return(loan_);
}

// Makes the transport of a thread. Called on that thread.
using TransportFactory = std::function<absl::StatusOr<std::unique_ptr<Transport>>()>;

}  // namespace muster
