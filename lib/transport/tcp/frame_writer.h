// The messages that wait to go out on one connection, as what writev() takes.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"

namespace muster {

// A message from Send() to `done`.
struct OutgoingMessage {
  std::array<std::byte, WireHeader::kBytes> header;
  absl::Span<const std::byte> payload;
  Transport::SendDone done;
  absl::Status status;
  OutgoingMessage* next = nullptr;

  std::array<std::byte, 4> checksum;
  uint32_t crc = 0;  // of the first `summed` bytes of the payload
  size_t summed = 0;
};

// First in, first out; FrameReader says what the bytes are. Owns none of the messages.
// Thread-compatible; allocates nothing.
class FrameWriter {
 public:
  static constexpr int kPiecesMax = 64;

  explicit FrameWriter(bool checksums) : checksums_(checksums) {}

  void Push(OutgoingMessage* message);
  bool empty() const { return first_ == nullptr; }
  // Of messages that have not gone as a whole.
  size_t bytes() const { return bytes_; }

  // What is to be written next; the number of pieces.
  int Pieces(std::array<iovec, kPiecesMax>& pieces);
  // So much of that was written.
  void Wrote(size_t bytes);
  // A message that has gone as a whole; null: no more.
  OutgoingMessage* TakeGone();
  // Any message, the next to go first; null: there is none. A message of which a part has gone may
  // be among them: nothing can be written after that.
  OutgoingMessage* TakeAny();

 private:
  size_t FrameBytes(const OutgoingMessage& message) const;
  void Sum(OutgoingMessage& message, size_t end);

  const bool checksums_;
  OutgoingMessage* first_ = nullptr;
  OutgoingMessage* last_ = nullptr;
  size_t written_ = 0;  // of those in the queue
  size_t bytes_ = 0;
};

}  // namespace muster
