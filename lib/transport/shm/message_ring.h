// A ring of messages for one direction, in memory that two processes share.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/transport/core/wire.h"

namespace muster {

// Locates one message, or a fragment of one: in the ring's own area (slab 0) or in a slab of the
// sender.
struct RingDescriptor {
  static constexpr size_t kBytes = 128;

  WireHeader header;  // of the message
  // The offset in the slab. For the area, it counts all bytes that ever went through it.
  uint64_t offset = 0;
  uint64_t length = 0;    // bytes at `offset`
  uint64_t position = 0;  // of these bytes in the payload of the message
  uint32_t slab = 0;
  uint32_t loan = 0;  // the number to give to MessageRingReader::Return() for a payload in a slab

  friend bool operator==(const RingDescriptor&, const RingDescriptor&) = default;
};

// A ring has one writer and one reader, usually in different processes. Neither blocks, allocates
// or makes a system call. Neither trusts the other: whatever the memory contains, both stay within
// it.
//
// A side that changed something checks whether the other side sleeps. A side that is about to sleep
// checks once more for changes. This is correct only if no load overtakes the store before it. A
// barrier that ensures this costs as much as fetching a cache line from the other processor.
//
// So the check (Take...Sleeps) has no barrier: right after a change it may miss a side that falls
// asleep at that moment. After message_ring::Settle(), called once for many changes, it does not.
// Settle() is a sequentially consistent fence on both sides, and all such fences have one total
// order:
//   changing side:  c: store the change      F: fence   t: look at the flag, take it (exchange).
//   sleeping side:  s: store the flag        G: fence   l: look for changes.
// - F before G in that order: l sees c or something newer ([atomics.order] 4.4: c is sequenced
//   before F, and G before l).
// - G before F: t sees s or something newer. If it sees the flag, it rings. If it sees 0, either
//   another thread took the flag and rings, or the sleeper cleared it. That sleeper is awake, and
//   checks again behind a later fence before it sleeps.
//
// An exchange reads the last value, so if two threads check, one of them rings. For this proof, the
// accesses only have to be atomic. Release and acquire on a change's number make the bytes of the
// change visible.
//
// The ring's memory has kBytes bytes, zero at first, in the host's byte order:
//   0      u32 the writer sleeps.
//   64     u64 descriptors taken, u64 area bytes released (at 72). The reader writes both.
//   128    u32 the reader sleeps.
//   4096   kEntries descriptors of 128 bytes (RingDescriptor).
//   36864  kReturns returns: u64, the lap from 1 in the upper half, the loan in the lower.
//   49152  the area, kAreaBytes bytes.
// Descriptor n, counted from 1, is in entry (n - 1) % kEntries. It is valid when its number field
// is n.
namespace message_ring {

inline constexpr uint64_t kEntries = 256;
inline constexpr uint64_t kReturns = 1024;  // payloads in slabs that may be lent at once
inline constexpr uint64_t kAreaBytes = 1 << 20;
// The limit for a fragment. It is small, so that writer and reader copy at the same time.
inline constexpr uint64_t kFragmentBytesMax = 128 << 10;
inline constexpr uint64_t kAlignment = 64;  // of the data in the area
inline constexpr uint64_t kEntriesAt = 4096;
inline constexpr uint64_t kReturnsAt = kEntriesAt + kEntries * RingDescriptor::kBytes;
inline constexpr uint64_t kAreaAt = 49152;
inline constexpr uint64_t kBytes = kAreaAt + kAreaBytes;

// A fence: all changes of this thread to any ring come before its later reads.
void Settle();

}  // namespace message_ring

// Byte layout (offset, width): header 0,64  number 64,8  offset 72,8  length 80,8  position 88,8
// slab 96,4  loan 100,4  zero 104,24
std::array<std::byte, RingDescriptor::kBytes> EncodeDescriptor(const RingDescriptor& descriptor,
                                                               uint64_t number);
// Returns INVALID_ARGUMENT or DATA_LOSS unless a MessageRingWriter could have written `bytes`.
// Checks all that can be checked without the sender's slabs. Ignores the number. Reads only
// `bytes`.
absl::StatusOr<RingDescriptor> DecodeDescriptor(absl::Span<const std::byte> bytes);

class MessageRingWriter {
 public:
  MessageRingWriter() = default;  // without memory; no other call is allowed
  // Requires: `memory` has kBytes zero bytes and outlives this object.
  explicit MessageRingWriter(absl::Span<std::byte> memory);

  bool HasRoom() const;  // for one more descriptor
  // Returns memory for the next `bytes` (0 to kFragmentBytesMax), and the `offset` to publish them
  // with. Returns nothing if there is no room. The caller may call Publish() or drop the place.
  struct Place {
    absl::Span<std::byte> memory;
    uint64_t offset = 0;
  };
  std::optional<Place> PlaceInArea(size_t bytes) const;
  // Publishes the descriptor. Requires: HasRoom(), and room in the area for a fragment.
  void Publish(const RingDescriptor& descriptor);

  bool HasReturn() const;
  // Returns the loan of a payload that the reader has returned. It is whatever number the reader
  // wrote, so check it.
  std::optional<uint32_t> TakeReturn();

  // Sets whether this side sleeps. Call it before a sleep, then call Settle(), then check once more
  // for returns and room.
  void SetSleeps(bool sleeps);
  // Returns true once after the reader went to sleep: it must be woken to see the published
  // messages. See Settle().
  bool TakeReaderSleeps();

 private:
  uint64_t Released() const;

  std::byte* memory_ = nullptr;
  uint64_t published_ = 0;
  mutable uint64_t taken_ = 0;  // the value when the ring last seemed to be full
  uint64_t area_used_ = 0;      // the end offset of the last published fragment
  uint64_t skipped_ = 0;        // no offset before this one is in use
  uint64_t returned_ = 0;
};

class MessageRingReader {
 public:
  MessageRingReader() = default;  // without memory; no other call is allowed
  explicit MessageRingReader(absl::Span<std::byte> memory);

  bool HasMessage() const;
  // Copies the next descriptor, so that its bytes can no longer change. Returns false if there is
  // none.
  bool Take(std::array<std::byte, RingDescriptor::kBytes>& bytes);
  // Returns the bytes of a decoded descriptor of slab 0.
  absl::Span<const std::byte> InArea(const RingDescriptor& descriptor) const;
  // Gives a taken descriptor and its bytes in the area back to the writer. Call it in order, after
  // reading the bytes.
  void Release(const RingDescriptor& descriptor);
  // Returns a payload in a slab to its sender. Call it once for each descriptor that named one.
  void Return(uint32_t loan);

  // Sets whether this side sleeps. Call it before a sleep, then call Settle(), then check once more
  // for messages.
  void SetSleeps(bool sleeps);
  // Returns true once after the writer went to sleep: it must be woken to see returns and released
  // bytes. See Settle().
  bool TakeWriterSleeps();

 private:
  std::byte* memory_ = nullptr;
  uint64_t taken_ = 0;
  uint64_t returned_ = 0;
};

}  // namespace muster
