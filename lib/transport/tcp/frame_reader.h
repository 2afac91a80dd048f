// Cuts a stream of bytes into messages: a header, its payload and, where agreed, its checksum.
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

//   stream  = *frame
//   frame   = header payload [crc]     ; crc only behind a payload, and only where agreed
//   header  = 64 OCTET                 ; wire.h
//   payload = header.length OCTET
//   crc     = 4 OCTET                  ; CRC-32C of the payload, little-endian
//
// Its owner reads: asks Room() where, says Took() how many bytes came, and calls Next() until that
// wants more. Small messages come many at a time through a buffer; a large payload goes straight to
// where it belongs, and with its end the next header, which tells where the next one goes.
//
// Thread-compatible. Allocates its buffer and nothing else.
class FrameReader {
 public:
  static constexpr size_t kLargeBytes = 16 << 10;
  static constexpr size_t kBufferBytes = 64 << 10;

  enum class Event {
    kMore,     // bytes are missing: read into Room()
    kHeader,   // of a message with a payload: call Place() next
    kMessage,  // a whole message that was not dropped: header(), payload()
    kBroken,   // fault(): nothing that comes after it means anything
  };

  explicit FrameReader(bool checksums);

  // Where the next bytes go, in one or two pieces; the number of pieces. Only after kMore.
  int Room(std::array<iovec, 2>& room);
  void Took(size_t bytes);
  Event Next();
  // Memory for the payload of header(), of its length; empty: it is dropped.
  void Place(absl::Span<std::byte> memory);

  const WireHeader& header() const { return header_; }
  absl::Span<const std::byte> payload() const { return {memory_, placed() ? header_.length : 0}; }
  // Memory was placed for a payload, and the message has not come as a whole.
  bool receiving() const { return receiving_; }
  // Bytes of the payload under way that have not been read from the socket.
  uint64_t missing() const;
  // In the middle of a message.
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
  size_t begin_ = 0, end_ = 0;  // in the buffer, of what is not understood yet
  State state_ = State::kHeader;
  WireHeader header_;
  std::byte* memory_ = nullptr;
  bool dropping_ = false;
  bool receiving_ = false;
  uint64_t received_ = 0;  // of the payload
  uint32_t crc_ = 0;       // of that
  bool large_ = false;     // the last payload: the next one is likely to be so too
  absl::Status fault_;
};

}  // namespace muster
