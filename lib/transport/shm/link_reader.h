// The receiving direction of a shared-memory link.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "lib/concurrency/copy_crew.h"
#include "lib/transport/core/file_descriptor.h"
#include "lib/transport/core/mapped_slab.h"
#include "lib/transport/core/sealed_memory.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/shm/message_ring.h"

namespace muster {

// Maps the other side's memory and trusts nothing in it. Thread-compatible.
class LinkReader {
 public:
  // The number of slabs that a peer can make this process map.
  static constexpr size_t kSlabsMax = 4096;
  // Makes the lease of a payload in `slab`. The lease must end with Return(loan).
  using Lend = absl::FunctionRef<PayloadLease(uint32_t loan, MappedSlab slab)>;

  LinkReader() = default;
  LinkReader(const LinkReader&) = delete;
  LinkReader& operator=(const LinkReader&) = delete;

  // Map(), AddSlab() and RemoveSlab() take what the peer sends over the socket. They return
  // INVALID_ARGUMENT if the protocol forbids it, and RESOURCE_EXHAUSTED if the kernel refuses to
  // map the file.
  absl::Status Map(const FileDescriptor& file);
  absl::Status AddSlab(uint32_t number, uint64_t bytes, const FileDescriptor& file);
  absl::Status RemoveSlab(uint32_t number);

  bool mapped() const { return !memory_.memory().empty(); }
  bool Knows(uint32_t slab) const { return slabs_.contains(slab); }

  bool HasMessage() const { return ring_.HasMessage(); }
  // Copies the bytes of the next descriptor. Returns false if there is none.
  bool Next(std::array<std::byte, RingDescriptor::kBytes>& bytes) { return ring_.Take(bytes); }
  // Delivers the message or fragment to `receiver`. `crew` copies a payload that is in a slab and
  // is not lent. Returns INVALID_ARGUMENT if no correct writer publishes `descriptor`.
  absl::Status Take(const RingDescriptor& descriptor, PeerId from, MessageReceiver& receiver,
                    Lend lend, CopyCrew& crew);
  // Returns the message to the sender unread.
  void Drop(const RingDescriptor& descriptor);
  void Return(uint32_t loan) { ring_.Return(loan); }

  // Drops the message that is partly received, because the rest will not come. Returns its header
  // if it had a place.
  std::optional<WireHeader> DropArriving();

  // See MessageRingReader.
  void SetSleeps(bool sleeps) { ring_.SetSleeps(sleeps); }
  bool TakeWriterSleeps() { return ring_.TakeWriterSleeps(); }

 private:
  absl::Status TakeFragment(const RingDescriptor& fragment, PeerId from, MessageReceiver& receiver);
  absl::Status TakeFromSlab(const RingDescriptor& descriptor, PeerId from,
                            MessageReceiver& receiver, Lend lend, CopyCrew& crew);

  SealedMemory memory_;
  MessageRingReader ring_;
  absl::flat_hash_map<uint32_t, MappedSlab> slabs_;
  // The message of which fragments are arriving.
  bool arriving_ = false;
  WireHeader header_;
  absl::Span<std::byte> place_;  // empty: drop the payload
  uint64_t arrived_ = 0;
};

}  // namespace muster
