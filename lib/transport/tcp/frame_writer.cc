#include "lib/transport/tcp/frame_writer.h"

#include <algorithm>

#include "lib/transport/core/crc32c.h"

namespace muster {
namespace {

// The most payload bytes that are summed before they are written. The checksum is computed just
// before that, so that the kernel copies the bytes from the cache.
constexpr size_t kSummedAhead = 256 << 10;

}  // namespace

size_t FrameWriter::FrameBytes(const OutgoingMessage& message) const {
  const bool checksum = checksums_ && !message.payload.empty();
  return message.header.size() + message.payload.size() + (checksum ? message.checksum.size() : 0);
}

void FrameWriter::Push(OutgoingMessage* message) {
  message->next = nullptr;
  message->crc = 0;
  message->summed = 0;
  (first_ == nullptr ? first_ : last_->next) = message;
  last_ = message;
  bytes_ += FrameBytes(*message);
}

// Extends the checksum to the first `end` bytes of the payload.
void FrameWriter::Sum(OutgoingMessage& message, size_t end) {
  message.crc = Crc32c(message.payload.subspan(message.summed, end - message.summed), message.crc);
  message.summed = end;
  for (size_t i = 0; i < message.checksum.size(); ++i) {
    message.checksum[i] = static_cast<std::byte>(message.crc >> (8 * i));
  }
}

int FrameWriter::Pieces(std::array<iovec, kPiecesMax>& pieces) {
  int count = 0;
  size_t skip = written_;
  size_t ahead = kSummedAhead;
  // Adds the unwritten bytes of `part`. Only the first message can be partly written.
  const auto add = [&](const std::byte* part, size_t size) {
    const size_t skipped = std::min(skip, size);
    skip -= skipped;
    if (size > skipped) {
      pieces[count++] = {const_cast<std::byte*>(part) + skipped, size - skipped};
    }
  };
  for (OutgoingMessage* message = first_; message != nullptr && count + 3 <= kPiecesMax;
       message = message->next) {
    add(message->header.data(), message->header.size());
    const size_t size = message->payload.size();
    if (!checksums_ || size == 0) {
      add(message->payload.data(), size);
      continue;
    }
    const size_t end = std::min(size, std::max(message->summed, skip + ahead));
    ahead -= std::min(ahead, end - std::min(end, message->summed));
    if (end > message->summed) Sum(*message, end);
    add(message->payload.data(), end);
    if (end < size) break;
    add(message->checksum.data(), message->checksum.size());
  }
  return count;
}

void FrameWriter::Wrote(size_t bytes) { written_ += bytes; }

OutgoingMessage* FrameWriter::TakeGone() {
  if (first_ == nullptr) return nullptr;
  const size_t size = FrameBytes(*first_);
  if (written_ < size) return nullptr;
  written_ -= size;
  return TakeAny();
}

OutgoingMessage* FrameWriter::TakeAny() {
  OutgoingMessage* const message = first_;
  if (message == nullptr) return nullptr;
  first_ = message->next;
  bytes_ -= FrameBytes(*message);
  return message;
}

}  // namespace muster
