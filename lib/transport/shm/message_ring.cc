#include "lib/transport/shm/message_ring.h"

#include <glog/logging.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace muster {
namespace {

using namespace message_ring;

static_assert(kReturnsAt + kReturns * sizeof(uint64_t) <= kAreaAt && kAreaAt % 4096 == 0);
static_assert(std::atomic_ref<uint64_t>::is_always_lock_free);

// The offset of each side's words. Each side has a cache line of its own.
enum WordOffset : size_t {
  kWriterSleepsAt = 0,
  kTakenAt = 64,
  kReleasedAt = 72,
  kReaderSleepsAt = 128,
};

// The offset of each field of a descriptor.
enum Field : size_t {
  kHeaderAt = 0,
  kNumberAt = 64,
  kOffsetAt = 72,
  kLengthAt = 80,
  kPositionAt = 88,
  kSlabAt = 96,
  kLoanAt = 100,
  kZeroAt = 104,
};

template <typename T>
std::atomic_ref<T> Word(std::byte* memory, size_t at) {
  return std::atomic_ref<T>(*reinterpret_cast<T*>(memory + at));
}
uint64_t Load(std::byte* memory, size_t at) {
  return Word<uint64_t>(memory, at).load(std::memory_order_acquire);
}
// A release store: it is ordered after all earlier reads and writes of this thread.
void Store(std::byte* memory, size_t at, uint64_t value) {
  Word<uint64_t>(memory, at).store(value, std::memory_order_release);
}

uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

size_t EntryOf(uint64_t number) {
  return kEntriesAt + (number - 1) % kEntries * RingDescriptor::kBytes;
}

size_t ReturnOf(uint64_t returned) { return kReturnsAt + returned % kReturns * sizeof(uint64_t); }

// The upper half of return number `returned`, counted from 0.
uint32_t LapOf(uint64_t returned) { return static_cast<uint32_t>(returned / kReturns + 1); }

// Clears a sleep flag and returns whether it was set. Settle() orders this against changes;
// message_ring.h has the proof. A load comes first, because an exchange takes the cache line from
// the other processor.
bool TakeFlag(std::byte* memory, size_t at) {
  auto flag = Word<uint32_t>(memory, at);
  return flag.load(std::memory_order_relaxed) != 0 &&
         flag.exchange(0, std::memory_order_relaxed) != 0;
}

void SetFlag(std::byte* memory, size_t at, bool value) {
  Word<uint32_t>(memory, at).store(value ? 1 : 0, std::memory_order_relaxed);
}

template <typename T>
void Put(std::byte* bytes, Field at, T value) {
  std::memcpy(bytes + at, &value, sizeof(value));
}

template <typename T>
T Get(const std::byte* bytes, Field at) {
  T value;
  std::memcpy(&value, bytes + at, sizeof(value));
  return value;
}

absl::Status Wrong(const char* what, uint64_t value) {
  return absl::InvalidArgumentError(absl::StrCat("ring descriptor: ", what, " ", value));
}

absl::Status CheckInArea(const RingDescriptor& fragment) {
  const uint64_t whole = fragment.header.length;
  if (fragment.length > kFragmentBytesMax) return Wrong("too long a fragment:", fragment.length);
  if ((fragment.length == 0) != (whole == 0)) return Wrong("an empty fragment of", whole);
  if (fragment.position > whole || fragment.length > whole - fragment.position) {
    return Wrong("a fragment past the payload at", fragment.position);
  }
  if (fragment.offset % kAlignment != 0 ||
      fragment.offset % kAreaBytes + fragment.length > kAreaBytes) {
    return Wrong("a fragment outside the area at", fragment.offset);
  }
  if (fragment.loan != 0) return Wrong("a loan of the area:", fragment.loan);
  return absl::OkStatus();
}

absl::Status CheckInSlab(const RingDescriptor& descriptor) {
  if (descriptor.length == 0 || descriptor.length != descriptor.header.length) {
    return Wrong("a part of a payload in a slab:", descriptor.length);
  }
  if (descriptor.position != 0) return Wrong("a position in a slab:", descriptor.position);
  if (descriptor.offset + descriptor.length < descriptor.offset) {
    return Wrong("an endless payload at", descriptor.offset);
  }
  if (descriptor.loan >= kReturns) return Wrong("unknown loan", descriptor.loan);
  return absl::OkStatus();
}

}  // namespace

void message_ring::Settle() { std::atomic_thread_fence(std::memory_order_seq_cst); }

std::array<std::byte, RingDescriptor::kBytes> EncodeDescriptor(const RingDescriptor& descriptor,
                                                               uint64_t number) {
  std::array<std::byte, RingDescriptor::kBytes> encoded{};
  std::byte* bytes = encoded.data();
  Put(bytes, kHeaderAt, EncodeHeader(descriptor.header));
  Put(bytes, kNumberAt, number);
  Put(bytes, kOffsetAt, descriptor.offset);
  Put(bytes, kLengthAt, descriptor.length);
  Put(bytes, kPositionAt, descriptor.position);
  Put(bytes, kSlabAt, descriptor.slab);
  Put(bytes, kLoanAt, descriptor.loan);
  return encoded;
}

absl::StatusOr<RingDescriptor> DecodeDescriptor(absl::Span<const std::byte> span) {
  if (span.size() != RingDescriptor::kBytes) return Wrong("a size of", span.size());
  absl::StatusOr<WireHeader> header = DecodeHeader(span.first(WireHeader::kBytes));
  if (!header.ok()) return std::move(header).status();
  const std::byte* bytes = span.data();
  const RingDescriptor descriptor{
      .header = *header,
      .offset = Get<uint64_t>(bytes, kOffsetAt),
      .length = Get<uint64_t>(bytes, kLengthAt),
      .position = Get<uint64_t>(bytes, kPositionAt),
      .slab = Get<uint32_t>(bytes, kSlabAt),
      .loan = Get<uint32_t>(bytes, kLoanAt),
  };
  const absl::Span<const std::byte> zeros = span.subspan(kZeroAt);
  if (std::any_of(zeros.begin(), zeros.end(), [](std::byte b) { return b != std::byte{0}; })) {
    return Wrong("nonzero bytes from", kZeroAt);
  }
  absl::Status checked = descriptor.slab == 0 ? CheckInArea(descriptor) : CheckInSlab(descriptor);
  if (!checked.ok()) return checked;
  return descriptor;
}

MessageRingWriter::MessageRingWriter(absl::Span<std::byte> memory) : memory_(memory.data()) {
  CHECK_EQ(memory.size(), kBytes);
}

bool MessageRingWriter::HasRoom() const {
  if (published_ - taken_ < kEntries) return true;  // without touching the reader's cache line
  // Acquire: the reader copied the entries that it has taken before this side overwrites them.
  taken_ = Load(memory_, kTakenAt);
  return published_ - taken_ < kEntries;
}

uint64_t MessageRingWriter::Released() const {
  return std::max(Load(memory_, kReleasedAt), skipped_);
}

// Returns the next place in the area. An empty area is filled from its start again, because both
// processors have those bytes in their caches. A full area has a place only for a message without
// payload. Its rounded offset may be past the free bytes, but no byte is written there.
std::optional<MessageRingWriter::Place> MessageRingWriter::PlaceInArea(size_t bytes) const {
  CHECK_LE(bytes, kFragmentBytesMax);
  if (!HasRoom()) return std::nullopt;
  const uint64_t released = Released();
  const bool empty = released == area_used_;
  uint64_t offset = RoundUp(area_used_, kAlignment);
  if (empty || offset % kAreaBytes + bytes > kAreaBytes) offset = RoundUp(offset, kAreaBytes);
  if (bytes > 0 && !empty && offset + bytes - released > kAreaBytes) return std::nullopt;
  return Place{{memory_ + kAreaAt + offset % kAreaBytes, bytes}, offset};
}

void MessageRingWriter::Publish(const RingDescriptor& descriptor) {
  const uint64_t number = ++published_;
  if (descriptor.slab == 0) {
    if (Released() == area_used_) skipped_ = descriptor.offset;
    area_used_ = descriptor.offset + descriptor.length;
  }
  const auto encoded = EncodeDescriptor(descriptor, number);
  std::byte* entry = memory_ + EntryOf(number);
  constexpr size_t kAfterNumber = kNumberAt + sizeof(number);
  std::memcpy(entry, encoded.data(), kNumberAt);
  std::memcpy(entry + kAfterNumber, encoded.data() + kAfterNumber, encoded.size() - kAfterNumber);
  // The number is stored last, with release: a reader that sees it also sees the descriptor and the
  // bytes that it names.
  Store(entry, kNumberAt, number);
}

bool MessageRingWriter::HasReturn() const {
  return Load(memory_, ReturnOf(returned_)) >> 32 == LapOf(returned_);
}

std::optional<uint32_t> MessageRingWriter::TakeReturn() {
  const uint64_t entry = Load(memory_, ReturnOf(returned_));
  // An entry with an older lap has not been written again yet.
  if (entry >> 32 != LapOf(returned_)) return std::nullopt;
  ++returned_;
  return static_cast<uint32_t>(entry);
}

void MessageRingWriter::SetSleeps(bool sleeps) { SetFlag(memory_, kWriterSleepsAt, sleeps); }

bool MessageRingWriter::TakeReaderSleeps() { return TakeFlag(memory_, kReaderSleepsAt); }

MessageRingReader::MessageRingReader(absl::Span<std::byte> memory) : memory_(memory.data()) {
  CHECK_EQ(memory.size(), kBytes);
}

bool MessageRingReader::HasMessage() const {
  return Load(memory_ + EntryOf(taken_ + 1), kNumberAt) == taken_ + 1;
}

bool MessageRingReader::Take(std::array<std::byte, RingDescriptor::kBytes>& bytes) {
  if (!HasMessage()) return false;
  std::memcpy(bytes.data(), memory_ + EntryOf(taken_ + 1), bytes.size());
  ++taken_;
  return true;
}

absl::Span<const std::byte> MessageRingReader::InArea(const RingDescriptor& descriptor) const {
  return {memory_ + kAreaAt + descriptor.offset % kAreaBytes, descriptor.length};
}

void MessageRingReader::Release(const RingDescriptor& descriptor) {
  // Release: the writer may overwrite these bytes at once, so all reads of them must come before.
  if (descriptor.slab == 0) Store(memory_, kReleasedAt, descriptor.offset + descriptor.length);
  Store(memory_, kTakenAt, taken_);
}

void MessageRingReader::Return(uint32_t loan) {
  const uint64_t entry = static_cast<uint64_t>(LapOf(returned_)) << 32 | loan;
  Store(memory_, ReturnOf(returned_), entry);
  ++returned_;
}

void MessageRingReader::SetSleeps(bool sleeps) { SetFlag(memory_, kReaderSleepsAt, sleeps); }

bool MessageRingReader::TakeWriterSleeps() { return TakeFlag(memory_, kWriterSleepsAt); }

}  // namespace muster
