// The sending direction of a shared-memory link.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/transport/core/registered_slabs.h"
#include "lib/transport/core/sealed_memory.h"
#include "lib/transport/shm/control_socket.h"
#include "lib/transport/shm/message_ring.h"
#include "lib/transport/shm/pending_sends.h"

namespace muster {

// Owns the memory of one direction, the queue of messages that wait for room, and the list of
// payloads lent to the reader. Thread-compatible.
class LinkWriter {
 public:
  // Payloads in a registered slab are copied up to this size, and lent above it while a loan number
  // is free.
  static constexpr size_t kCopiedBytesMax = 512;

  // Requires: both outlive this object.
  LinkWriter(RegisteredSlabs* slabs, PendingSends* sends) : slabs_(slabs), sends_(sends) {}
  LinkWriter(const LinkWriter&) = delete;
  LinkWriter& operator=(const LinkWriter&) = delete;

  // Allocates the memory. Call before anything is published. Returns RESOURCE_EXHAUSTED if there is
  // no memory.
  absl::Status MakeMemory();
  bool has_memory() const { return !memory_.memory().empty(); }
  int file() const { return memory_.file(); }

  void Add(PendingSend* send);
  PendingSend* first() const { return first_; }  // null: no message waits

  // Publishes the first waiting message, or as much of it as there is room for.
  enum class Published {
    kAll,         // removed from the queue: the caller finishes it, unless it was lent (`slab`)
    kPart,        // a part, or nothing: there is no room
    kSocketFull,  // the slab can be announced when the socket is writable
    kTryLater,    // the kernel has no room for the slab's file; nothing reports when it has
    kSocketDead,  // the slab can never be announced
  };
  Published Publish(ControlSocket& socket);
  // Whether Publish() would do something now, unless its last result was kTryLater.
  bool CanPublish(bool socket_full) const;

  int loans_out() const;
  bool HasReturn() const { return loans_out() > 0 && ring_.HasReturn(); }
  // Takes the loans that the reader returned; their sends finish later. Returns their number, or
  // INVALID_ARGUMENT if the reader returned a loan that it does not have.
  absl::StatusOr<int> TakeReturns();

  // Withdraws slabs that are no longer registered, if no payload in them is lent.
  void Withdraw(ControlSocket& socket);

  // CancelWaiting() ends the waiting sends with `why`; EndLoans() ends the lent ones. Their `done`
  // runs in the next PendingSends::CallFinished().
  void CancelWaiting(const absl::Status& why);
  void EndLoans(const absl::Status& why);

  // See MessageRingWriter.
  void SetSleeps(bool sleeps) { ring_.SetSleeps(sleeps); }
  bool TakeReaderSleeps() { return ring_.TakeReaderSleeps(); }

 private:
  struct Announced {
    uint32_t slab = 0;
    int loans = 0;
  };

  bool MayLend(const PendingSend& send) const;
  Published Lend(PendingSend& send, uint32_t slab, ControlSocket& socket);
  Published Copy(PendingSend& send);
  absl::Status Announce(uint32_t slab, ControlSocket& socket);

  RegisteredSlabs* const slabs_;
  PendingSends* const sends_;
  SealedMemory memory_;
  MessageRingWriter ring_;
  PendingSend* first_ = nullptr;
  PendingSend* last_ = nullptr;
  std::vector<Announced> announced_;
  std::vector<PendingSend*> loans_;  // indexed by loan number; null: free
  std::vector<uint32_t> free_loans_;
};

}  // namespace muster
