// How messages of one direction lie in the memory that two processes share.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/transport/core/wire.h"

namespace muster {

// Says where one message, or a fragment of one, lies: in the ring's own area (slab 0) or in a slab
// of the sender.
struct RingDescriptor {
  static constexpr size_t kBytes = 128;

  WireHeader header;      // of the message
  uint64_t offset = 0;    // in the slab; in the area: counted on over all that ever went through it
  uint64_t length = 0;    // bytes there
  uint64_t position = 0;  // of these bytes in the message's payload
  uint32_t slab = 0;
  uint32_t loan = 0;  // what MessageRingReader::Return() is to say of a payload in a slab

  friend bool operator==(const RingDescriptor&, const RingDescriptor&) = default;
};

// A ring has one writer and one reader, in different processes as a rule. Neither blocks, allocates
// or calls the system; neither believes the other: whatever bytes the memory holds, both stay
// within it.
//
// Who has changed something looks whether the other side sleeps, and who goes to sleep looks once
// more for changes. Both only meet if no load overtakes the store before it, and a barrier that
// sees to it costs as much as fetching a cache line from the other processor. So a look
// (Take...Sleeps) has none: right after a change it may miss a side that falls asleep at this
// moment. After message_ring::Settle(), once for many changes, it does not: Settle() is a
// sequentially consistent fence on both sides, and there is one order of all such fences.
//   changing side:  c: store the change      F: fence   t: look at the flag, take it (exchange)
//   sleeping side:  s: store the flag        G: fence   l: look for changes
// If F comes before G in that order, l sees c or something newer ([atomics.order] 4.4: c is
// sequenced before F, G before l). If G comes before F, t sees s or something newer: the flag, so
// that it rings; or 0, which either another one stored who took the flag and rings, or the sleeper
// itself, who is awake then and looks again behind a later fence before he sleeps. An exchange
// reads the last value, so that of two who look one rings. No access needs more than to be atomic
// for this; that the change's own bytes are there is what release and acquire of its number are
// for.
//
// The ring's memory, kBytes bytes and zero at first, in the host's byte order:
//   0      u32 the writer sleeps
//   64     u64 descriptors taken   72 u64 area bytes released     (by the reader)
//   128    u32 the reader sleeps
//   4096   kEntries descriptors of 128 bytes (RingDescriptor)
//   36864  kReturns returns: u64, the lap from 1 in the upper half, the loan in the lower
//   49152  the area, kAreaBytes bytes
// Descriptor n, counted from 1, lies in entry (n - 1) % kEntries and is there once its number is n.
namespace message_ring {

inline constexpr uint64_t kEntries = 256;
inline constexpr uint64_t kReturns = 1024;  // payloads in slabs that may be out together
inline constexpr uint64_t kAreaBytes = 1 << 20;
inline constexpr uint64_t kFragmentBytesMax = 128 << 10;  // both sides copy at the same time
inline constexpr uint64_t kAlignment = 64;                // of what lies in the area
inline constexpr uint64_t kEntriesAt = 4096;
inline constexpr uint64_t kReturnsAt = kEntriesAt + kEntries * RingDescriptor::kBytes;
inline constexpr uint64_t kAreaAt = 49152;
inline constexpr uint64_t kBytes = kAreaAt + kAreaBytes;

// What this thread has changed in any ring is there before what it reads next.
void Settle();

}  // namespace message_ring

// Byte layout (offset, width): header 0,64  number 64,8  offset 72,8  length 80,8  position 88,8
// slab 96,4  loan 100,4  zero 104,24
std::array<std::byte, RingDescriptor::kBytes> EncodeDescriptor(const RingDescriptor& descriptor,
                                                               uint64_t number);
// INVALID_ARGUMENT or DATA_LOSS unless a MessageRingWriter could have written `bytes`: all that can
// be judged without knowing the sender's slabs. Ignores the number. Touches only `bytes`.
absl::StatusOr<RingDescriptor> DecodeDescriptor(absl::Span<const std::byte> bytes);

class MessageRingWriter {
 public:
  MessageRingWriter() = default;  // of nothing
  // `memory` has kBytes zero bytes and outlives this.
  explicit MessageRingWriter(absl::Span<std::byte> memory);

  bool HasRoom() const;  // for one more descriptor
  // Where the next `bytes` (at most kFragmentBytesMax, or none) may be put, and the `offset` to
  // publish them with. Nothing: there is no room for them. Publish() or forget.
  struct Place {
    absl::Span<std::byte> memory;
    uint64_t offset = 0;
  };
  std::optional<Place> PlaceInArea(size_t bytes) const;
  // There must be room.
  void Publish(const RingDescriptor& descriptor);

  bool HasReturn() const;
  // The loan of a payload that the reader has let go, whatever number the reader wrote.
  std::optional<uint32_t> TakeReturn();

  // Going to sleep: SetSleeps(true), Settle(), then look once more for returns and room.
  void SetSleeps(bool sleeps);
  // True once after the reader went to sleep: it must be woken to see what was published. See
  // Settle().
  bool TakeReaderSleeps();

 private:
  uint64_t Released() const;

  std::byte* memory_ = nullptr;
  uint64_t published_ = 0;
  mutable uint64_t taken_ = 0;  // when there last seemed to be no room
  uint64_t area_used_ = 0;      // the offset after what was published last
  uint64_t skipped_ = 0;        // nothing before this offset is in use
  uint64_t returned_ = 0;
};

class MessageRingReader {
 public:
  MessageRingReader() = default;  // of nothing
  explicit MessageRingReader(absl::Span<std::byte> memory);

  bool HasMessage() const;
  // The next descriptor's bytes, copied so that they cannot change any more. False: there is none.
  bool Take(std::array<std::byte, RingDescriptor::kBytes>& bytes);
  // What a decoded descriptor of slab 0 names.
  absl::Span<const std::byte> InArea(const RingDescriptor& descriptor) const;
  // Gives what was taken back to the writer: in order, after its bytes were read.
  void Release(const RingDescriptor& descriptor);
  // Says that a payload in a slab is not needed any more: once per descriptor that named one.
  void Return(uint32_t loan);

  // Going to sleep: SetSleeps(true), Settle(), then look once more for messages.
  void SetSleeps(bool sleeps);
  // True once after the writer went to sleep: it must be woken to see what was returned, or
  // released. See Settle().
  bool TakeWriterSleeps();

 private:
  std::byte* memory_ = nullptr;
  uint64_t taken_ = 0;
  uint64_t returned_ = 0;
};

}  // namespace muster
