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

// The right to read a payload where its sender has it. Until it is destroyed the sender's `done`
// waits. Move-only; destroyed on the transport's thread and before the transport, also after the
// peer was lost: the memory outlives the peer. Allocates nothing.
class PayloadLease {
 public:
  PayloadLease() = default;  // of nothing
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

// Where a payload is to go.
struct PayloadPlace {
  // Who takes so many bytes in each step, and reads each of them once before the next, finds them
  // in no cache: a sender on the same host has two versions of them there and reads as many.
  static constexpr int64_t kUncachedBytesMin = int64_t{8} << 20;

  PayloadPlace() = default;                                          // nowhere: drop it
  PayloadPlace(absl::Span<std::byte> memory, bool in_place = false)  // NOLINT: a span is a place
      : memory(memory), in_place(in_place) {}

  absl::Span<std::byte> memory;
  // Where the transport can lend the sender's own memory, it may stay there.
  bool in_place = false;
  // It is read later, when caches would have lost it: a copy may go past them.
  bool past_caches = false;
};

// What a Transport calls, on its own thread, from inside Progress().
class MessageReceiver {
 public:
  virtual ~MessageReceiver() = default;

  // Somebody connected to this transport and has proved to be `who`: a member of a session that is
  // open here. What comes from `peer` comes from him, and he may be sent to. Whether there is such
  // a rank or shard is the receiver's to judge; whom it does not know it disconnects.
  virtual void PeerJoined(PeerId peer, const LinkIdentity& who) = 0;

  // A header arrived from `from` and is well formed. Returns where its payload (header.length
  // bytes, > 0) is to be placed, or nowhere to drop it (nothing more is heard of it then). The
  // memory must stay valid until Received or PayloadLost, exactly one of which follows unless the
  // receiver disconnects `from`. May not call the transport. Registered memory (RegisterMemory) is
  // fastest. Not called when length is 0.
  virtual PayloadPlace PlacePayload(PeerId from, const WireHeader& header) = 0;

  // A whole message is here. `payload` is the memory that PlacePayload named (empty when length is
  // 0); or, only where that said in_place, memory of the sender, 64-byte aligned where the sender's
  // is, that `lease` keeps. What the sender's process does wrong may still change it: read it once
  // or live with that.
  virtual void Received(PeerId from, const WireHeader& header, absl::Span<const std::byte> payload,
                        PayloadLease lease) = 0;

  // A payload for which PlacePayload named memory will not arrive. The memory may hold a part of
  // it, and nothing is written there any more.
  virtual void PayloadLost(PeerId from, const WireHeader& header) = 0;

  // The peer is gone, has disconnected, or could not be reached: sends to it were or will be
  // completed with an error. Once per peer, as the last that is heard of it; what the transport
  // keeps of it, so that sends to it fail, is kept until the receiver disconnects it.
  virtual void PeerLost(PeerId peer, const absl::Status& why) = 0;
};

// What carries the messages to one peer; for logs, muster_transport_info and JobReports.
struct LinkDescription {
  std::string transport;  // "tcp", "shm", "rdma", "inprocess"
  std::string network;    // "tcp", "rc_mlx5", ...; "" where there is none
  std::string device;     // "eth0", "mlx5_0:1", ...; "" where unknown
  int connections = 1;
  bool device_memory = false;  // GPU buffers go out directly
  // As NameOf(DataSecurity); "host" where nothing leaves the host and the kernel says whose process
  // it is; "" for "inprocess".
  std::string security;
  // Why it is not the faster one that both ends have; "" unless this end connected and knows.
  std::string fallback;

  // The peer is on this host and reads payloads where they lie.
  bool shares_memory() const { return transport == "shm"; }
};

// Thread-compatible: one thread creates, uses and destroys it; only Wake() may be called from
// others.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual void SetReceiver(MessageReceiver* receiver) = 0;  // before the first Progress()

  // Opaque bytes by which others Connect() to this transport. Constant.
  virtual std::string address() const = 0;

  // For metrics and logs: "shm+tcp", "inprocess".
  virtual std::string name() const = 0;

  // Lets in, from now on, who connects and proves to know `token` as a member of this job's
  // generation. Sessions of several jobs may be open, of each job one: opening another generation,
  // or the same one with another token, lets nobody in any more who means the one before. Those who
  // are in stay.
  virtual void OpenSession(uint64_t job, uint32_t generation, const SessionToken& token) = 0;
  // Lets nobody in any more; those who are in stay. Does nothing where another generation of the
  // job is open.
  virtual void CloseSession(uint64_t job, uint32_t generation) = 0;

  // Starts a connection, as the member of a session that `credentials` name, to a transport in
  // which that session is open; messages may be sent at once. Failure to reach the peer, or to be
  // let in, comes later as PeerLost. INVALID_ARGUMENT for bytes that are no address. The peer
  // answers on the same link: two members need one between them.
  virtual absl::StatusOr<PeerId> Connect(absl::string_view address,
                                         const LinkCredentials& credentials) = 0;
  // Also of one that joined. Payloads that were being received from it are dropped: when this
  // returns their memory is free, and nothing is heard of the peer any more.
  virtual void Disconnect(PeerId peer) = 0;
  // Likewise, and waits for nothing that the peer still reads here in place: he may stand still,
  // and reads what comes there next. For peers whose session is over, so that what they make of it
  // is refused.
  virtual void CutOff(PeerId peer) { Disconnect(peer); }

  // Complete once a message has come or gone.
  virtual LinkDescription Describe(PeerId /*peer*/) const { return {.transport = name()}; }

  // Starts sending. The header is copied; `payload` must stay valid and unchanged until `done` (may
  // be empty function) is called, with OK once the memory may be reused or with the error. `done`
  // may run inside Send(). Messages to one peer may overtake each other. No allocation of payload
  // size.
  using SendDone = absl::AnyInvocable<void(const absl::Status&)>;
  virtual void Send(PeerId peer, const WireHeader& header, absl::Span<const std::byte> payload,
                    SendDone done) = 0;

  // Registers memory for fast transfers for the life of the Transport or until the handle is
  // destroyed. The default is a handle that does nothing.
  class MemoryRegistration {
   public:
    virtual ~MemoryRegistration() = default;
  };
  virtual absl::StatusOr<std::unique_ptr<MemoryRegistration>> RegisterMemory(
      absl::Span<std::byte> memory) = 0;

  // Sends and receives what is possible now; calls the receiver. Returns how many events it
  // handled.
  virtual int Progress() = 0;

  // Waits until Progress() would do something, Wake() was called or `timeout` passed: polls briefly
  // where there are cores to spare, then blocks on the transport's event file descriptor.
  virtual void Wait(absl::Duration timeout) = 0;

  // Ends the current or next Wait() at once. Any thread.
  virtual void Wake() = 0;

 private:
  friend class PayloadLease;
  // A lease ended. Only of transports that lend.
  virtual void Return(uint64_t /*loan*/) {}
};

inline PayloadLease::~PayloadLease() {
  if (transport_ != nullptr) transport_->Return(loan_);
}

// Makes a thread's transport; called on that thread.
using TransportFactory = std::function<absl::StatusOr<std::unique_ptr<Transport>>()>;

}  // namespace muster
