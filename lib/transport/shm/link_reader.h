// The way in of a shared-memory link: what the other side sends.
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

// Maps the other side's memory and believes nothing that lies there. Thread-compatible.
class LinkReader {
 public:
  // What a peer can make us map.
  static constexpr size_t kSlabsMax = 4096;
  // Makes the lease of a payload in `slab`, which is to end with Return(loan).
  using Lend = absl::FunctionRef<PayloadLease(uint32_t loan, MappedSlab slab)>;

  LinkReader() = default;
  LinkReader(const LinkReader&) = delete;
  LinkReader& operator=(const LinkReader&) = delete;

  // What the peer hands over on the socket. INVALID_ARGUMENT for what it may not.
  absl::Status Map(const FileDescriptor& file);
  absl::Status AddSlab(uint32_t number, uint64_t bytes, const FileDescriptor& file);
  absl::Status RemoveSlab(uint32_t number);

  bool mapped() const { return !memory_.memory().empty(); }
  bool Knows(uint32_t slab) const { return slabs_.contains(slab); }

  bool HasMessage() const { return ring_.HasMessage(); }
  // The bytes of the next descriptor. False: there is none.
  bool Next(std::array<std::byte, RingDescriptor::kBytes>& bytes) { return ring_.Take(bytes); }
  // Gives its message, or fragment, to `receiver`. What lies in a slab and is not lent is copied by
  // `crew`. INVALID_ARGUMENT: no writer publishes that.
  absl::Status Take(const RingDescriptor& descriptor, PeerId from, MessageReceiver& receiver,
                    Lend lend, CopyCrew& crew);
  // Gives it back unread.
  void Drop(const RingDescriptor& descriptor);
  void Return(uint32_t loan) { ring_.Return(loan); }

  // The rest of the message that is arriving will not come: its header, if it has a place.
  std::optional<WireHeader> DropArriving();

  // As the ring's.
  void SetSleeps(bool sleeps) { ring_.SetSleeps(sleeps); }
  bool TakeWriterSleeps() { return ring_.TakeWriterSleeps(); }

 private:
  absl::Status TakeFragment(const RingDescriptor& fragment, PeerId from, MessageReceiver& receiver);
  absl::Status TakeFromSlab(const RingDescriptor& descriptor, PeerId from,
                            MessageReceiver& receiver, Lend lend, CopyCrew& crew);

  SealedMemory memory_;
  MessageRingReader ring_;
  absl::flat_hash_map<uint32_t, MappedSlab> slabs_;
  // The message whose fragments arrive.
  bool arriving_ = false;
  WireHeader header_;
  absl::Span<std::byte> place_;  // empty: drop it
  uint64_t arrived_ = 0;
};

}  // namespace muster
