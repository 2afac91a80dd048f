// Splits a stream of bytes into messages: a header, its payload and, if agreed, its checksum.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "lib/transport/core/wire.h"

namespace muster {

// The grammar of the stream. The crc follows only a payload, and only if checksums were agreed:
//   stream  = *frame
//   frame   = header payload [crc]
//   header  = 64 OCTET                 ; wire.h
//   payload = header.length OCTET
//   crc     = 4 OCTET                  ; CRC-32C of the payload, little-endian
//
// The owner reads the bytes: it calls Room() for memory, Took() with the number of bytes read, and
// Next() until that returns kMore. Small messages share a buffer, many in one read. A large payload
// is read directly into its memory. The same read ends with the next header, which decides where
// the next payload goes.
//
// Thread-compatible. Allocates only its buffer.
class FrameReader {
 public:
  static constexpr size_t kLargeBytes = 16 << 10;
  static constexpr size_t kBufferBytes = 64 << 10;

  enum class Event {
    kMore,     // bytes are missing: read into Room()
    kHeader,   // of a message with a payload: call Place() next
    kMessage,  // a whole message that was not dropped: header(), payload()
    kBroken,   // see fault(): the bytes after it mean nothing
  };

  explicit FrameReader(bool checksums);

  // Returns the memory for the next bytes, in one or two pieces; the result is their number.
  // Requires: Next() returned kMore.
  int Room(std::array<iovec, 2>& room);
  void Took(size_t bytes);
  Event Next();
  // Sets the memory for the payload of header(). Requires: its length is header().length, or it is
  // empty, which drops the payload.
  void Place(absl::Span<std::byte> memory);

  const WireHeader& header() const { return header_; }
  absl::Span<const std::byte> payload() const { return {memory_, placed() ? header_.length : 0}; }
  // Whether memory was placed for a payload and the message is not complete.
  bool receiving() const { return receiving_; }
  // The number of bytes of the current payload that were not read from the socket yet.
  uint64_t missing() const;
  // Whether a part of a message was read.
  bool inside() const { return state_ != State::kHeader || end_ > begin_; }
  const absl::Status& fault() const { return fault_; }

 private:
  enum class State { kHeader, kUnplaced, kPayload, kChecksum, kBroken };

  bool placed() const { return memory_ != nullptr; }
  size_t buffered() const { return end_ - begin_; }
  size_t tail_bytes() const;
  Event Break(absl::Status fault);
  void Advance(const std::byte* bytes, size_t size);

  const bool checksums_;
  const std::unique_ptr<std::byte[]> buffer_;
  size_t begin_ = 0, end_ = 0;  // range of the buffer that was not parsed yet
  State state_ = State::kHeader;
  WireHeader header_;
  std::byte* memory_ = nullptr;
  bool dropping_ = false;
  bool receiving_ = false;
  uint64_t received_ = 0;  // bytes of the payload
  uint32_t crc_ = 0;       // of the received payload bytes
  bool large_ = false;     // the last payload was large, so the next one is likely to be large too
  absl::Status fault_;
};

}  // namespace muster
