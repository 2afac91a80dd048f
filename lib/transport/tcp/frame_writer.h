// The queue of outgoing messages of one connection, in the form that writev() takes.
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

// A message, from Send() to its `done`.
struct OutgoingMessage {
  std::array<std::byte, WireHeader::kBytes> header;
  absl::Span<const std::byte> payload;
  Transport::SendDone done;
  absl::Status status;
  OutgoingMessage* next = nullptr;

  std::array<std::byte, 4> checksum;
  uint32_t crc = 0;  // of the first `summed` payload bytes
  size_t summed = 0;
};

// A queue, first in, first out. FrameReader defines the bytes. Does not own the messages.
// Thread-compatible; allocates nothing.
class FrameWriter {
 public:
  static constexpr int kPiecesMax = 64;

  explicit FrameWriter(bool checksums) : checksums_(checksums) {}

  void Push(OutgoingMessage* message);
  bool empty() const { return first_ == nullptr; }
  // The bytes of all messages that were not written completely.
  size_t bytes() const { return bytes_; }

  // Returns the bytes to write next; the result is the number of pieces.
  int Pieces(std::array<iovec, kPiecesMax>& pieces);
  // Call after writing `bytes` bytes of the pieces.
  void Wrote(size_t bytes);
  // Returns a message that was written completely; null if there is none.
  OutgoingMessage* TakeGone();
  // Removes the first message, whether written or not; null if there is none. It may be partly
  // written: then nothing more may be written.
  OutgoingMessage* TakeAny();

 private:
  size_t FrameBytes(const OutgoingMessage& message) const;
  void Sum(OutgoingMessage& message, size_t end);

  const bool checksums_;
  OutgoingMessage* first_ = nullptr;
  OutgoingMessage* last_ = nullptr;
  size_t written_ = 0;  // of the messages in the queue
  size_t bytes_ = 0;
};

}  // namespace muster
