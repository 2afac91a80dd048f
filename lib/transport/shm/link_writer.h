// The way out of a shared-memory link: what this side sends.
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

// Owns the memory of one direction, the queue of what waits for room there, and the list of what
// the reader has been lent. Thread-compatible.
class LinkWriter {
 public:
  // Larger payloads in a registered slab are not copied.
  static constexpr size_t kCopiedBytesMax = 512;

  // Both outlive it.
  LinkWriter(RegisteredSlabs* slabs, PendingSends* sends) : slabs_(slabs), sends_(sends) {}
  LinkWriter(const LinkWriter&) = delete;
  LinkWriter& operator=(const LinkWriter&) = delete;

  // Before anything is published. RESOURCE_EXHAUSTED.
  absl::Status MakeMemory();
  bool has_memory() const { return !memory_.memory().empty(); }
  int file() const { return memory_.file(); }

  void Add(PendingSend* send);
  PendingSend* first() const { return first_; }  // null: nothing waits

  // Publishes what there is room for of the first that waits.
  enum class Published {
    kAll,         // it waits no more: to be finished unless it was lent (`slab`)
    kPart,        // or nothing: there is no room
    kSocketFull,  // a slab can be announced when the socket is writable
    kTryLater,    // or some time: the kernel has no room for it
    kSocketDead,  // or never
  };
  Published Publish(ControlSocket& socket);
  // Whether that would do something, unless it has to be tried later.
  bool CanPublish(bool socket_full) const;

  int loans_out() const;
  bool HasReturn() const { return loans_out() > 0 && ring_.HasReturn(); }
  // Finishes (later) what the reader has let go. How many; INVALID_ARGUMENT: it returned what it
  // does not have.
  absl::StatusOr<int> TakeReturns();

  // Takes back the slabs that nobody registers any more, once no payload in them is out.
  void Withdraw(ControlSocket& socket);

  // Finish (later) what waits, and what is lent.
  void CancelWaiting(const absl::Status& why);
  void EndLoans(const absl::Status& why);

  // As the ring's.
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
  std::vector<PendingSend*> loans_;  // by their numbers; null: free
  std::vector<uint32_t> free_loans_;
};

}  // namespace muster
