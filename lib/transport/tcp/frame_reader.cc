#include "lib/transport/tcp/frame_reader.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "lib/transport/core/crc32c.h"

namespace muster {
namespace {

constexpr size_t kChecksumBytes = 4;

uint32_t LoadChecksum(const std::byte* bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < kChecksumBytes; ++i) {
    value |= std::to_integer<uint32_t>(bytes[i]) << (8 * i);
  }
  return value;
}

}  // namespace

FrameReader::FrameReader(bool checksums)
    : checksums_(checksums), buffer_(std::make_unique_for_overwrite<std::byte[]>(kBufferBytes)) {}

// Returns how many bytes to read behind a payload. If payloads are large, that is only enough for
// the next header: more would be a part of the next payload, which would then have to be copied.
size_t FrameReader::tail_bytes() const {
  if (!large_) return kBufferBytes;
  return (checksums_ ? kChecksumBytes : 0) + WireHeader::kBytes;
}

int FrameReader::Room(std::array<iovec, 2>& room) {
  CHECK(state_ != State::kUnplaced && state_ != State::kBroken);
  if (state_ == State::kPayload) {
    CHECK_EQ(buffered(), 0u);
    begin_ = end_ = 0;
    if (dropping_) {
      room[0] = {buffer_.get(), kBufferBytes};
      return 1;
    }
    // One read fills the rest of the payload and then the start of the next frame.
    room[0] = {memory_ + received_, header_.length - received_};
    room[1] = {buffer_.get(), tail_bytes()};
    return 2;
  }
  // The unparsed bytes move to the front to make room for the rest of their frame.
  if (begin_ > 0) {
    std::memmove(buffer_.get(), buffer_.get() + begin_, buffered());
    end_ = buffered();
    begin_ = 0;
  }
  const size_t limit = large_ ? tail_bytes() : kBufferBytes;
  room[0] = {buffer_.get() + end_, limit - end_};
  return 1;
}

void FrameReader::Took(size_t bytes) {
  if (state_ == State::kPayload && !dropping_) {
    const auto direct = static_cast<size_t>(std::min<uint64_t>(bytes, header_.length - received_));
    Advance(memory_ + received_, direct);
    bytes -= direct;
  }
  end_ += bytes;
}

// The payload gets `size` more bytes, located at `bytes`.
void FrameReader::Advance(const std::byte* bytes, size_t size) {
  if (checksums_) crc_ = Crc32c({bytes, size}, crc_);
  received_ += size;
}

uint64_t FrameReader::missing() const {
  const uint64_t left = header_.length - received_;
  return left - std::min<uint64_t>(left, buffered());
}

FrameReader::Event FrameReader::Break(absl::Status fault) {
  fault_ = std::move(fault);
  state_ = State::kBroken;
  return Event::kBroken;
}

void FrameReader::Place(absl::Span<std::byte> memory) {
  CHECK(state_ == State::kUnplaced);
  CHECK(memory.empty() || memory.size() == header_.length)
      << memory.size() << " bytes of memory for a payload of " << header_.length;
  memory_ = memory.data();
  dropping_ = memory.empty();
  if (dropping_) memory_ = nullptr;
  receiving_ = !dropping_;
  state_ = State::kPayload;
}

FrameReader::Event FrameReader::Next() {
  while (true) {
    const std::byte* bytes = buffer_.get() + begin_;
    switch (state_) {
      case State::kHeader: {
        if (buffered() < WireHeader::kBytes) return Event::kMore;
        absl::StatusOr<WireHeader> header = DecodeHeader({bytes, WireHeader::kBytes});
        if (!header.ok()) return Break(std::move(header).status());
        begin_ += WireHeader::kBytes;
        header_ = *header;
        memory_ = nullptr;
        received_ = 0;
        crc_ = 0;
        large_ = header_.length >= kLargeBytes;
        if (header_.length == 0) return Event::kMessage;
        state_ = State::kUnplaced;
        return Event::kHeader;
      }
      case State::kUnplaced:
        LOG(FATAL) << "Next() was called before Place()";
      case State::kPayload: {
        const auto size =
            static_cast<size_t>(std::min<uint64_t>(buffered(), header_.length - received_));
        if (!dropping_ && size > 0) std::memcpy(memory_ + received_, bytes, size);
        Advance(bytes, size);
        begin_ += size;
        if (received_ < header_.length) return Event::kMore;
        if (checksums_) {
          state_ = State::kChecksum;
          continue;
        }
        break;
      }
      case State::kChecksum: {
        if (buffered() < kChecksumBytes) return Event::kMore;
        const uint32_t told = LoadChecksum(bytes);
        if (told != crc_) {
          return Break(absl::DataLossError(
              absl::StrCat("a payload of ", header_.length, " bytes has the checksum ",
                           absl::Hex(crc_), " and was sent with ", absl::Hex(told),
                           ": the network or a network card corrupts data")));
        }
        begin_ += kChecksumBytes;
        break;
      }
      case State::kBroken:
        return Event::kBroken;
    }
    state_ = State::kHeader;
    receiving_ = false;
    if (!std::exchange(dropping_, false)) return Event::kMessage;
  }
}

}  // namespace muster
