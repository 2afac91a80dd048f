#include "services/coordinator/call_credit.h"

#include <algorithm>

#include "absl/status/status.h"

namespace muster {
namespace {

// RFC 9113, sections 3.4, 4.1 and 6.
constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr uint8_t kData = 0, kHeaders = 1, kReset = 3;
constexpr uint8_t kEndStream = 1;

struct Frame {
  size_t payload_bytes;
  uint8_t type;
  uint8_t flags;
  uint32_t stream;
};

Frame ReadFrame(const char* header) {
  auto byte = [&](int i) { return static_cast<uint32_t>(static_cast<unsigned char>(header[i])); };
  return {.payload_bytes = byte(0) << 16 | byte(1) << 8 | byte(2),
          .type = static_cast<uint8_t>(byte(3)),
          .flags = static_cast<uint8_t>(byte(4)),
          .stream = (byte(5) & 0x7f) << 24 | byte(6) << 16 | byte(7) << 8 | byte(8)};
}

// Shows each frame's header to `passes` and returns how many bytes may pass: up to the first
// header that is not whole, or that may not.
template <typename Passes>
size_t Pass(absl::string_view bytes, size_t& frame_left, Passes passes) {
  size_t passed = 0;
  while (true) {
    const size_t payload = std::min(frame_left, bytes.size() - passed);
    frame_left -= payload;
    passed += payload;
    if (bytes.size() - passed < CallCredit::kHeaderBytes) return passed;
    const Frame frame = ReadFrame(bytes.data() + passed);
    if (!passes(frame)) return passed;
    passed += CallCredit::kHeaderBytes;
    frame_left = frame.payload_bytes;
  }
}

}  // namespace

CallCredit::CallCredit(const Limits& limits, absl::Duration now)
    : limits_(limits), credit_(limits.first), counted_(now), preface_left_(kPreface.size()) {}

absl::StatusOr<size_t> CallCredit::PassToServer(absl::string_view bytes, const Terms& terms,
                                                absl::Duration now) {
  const size_t preface = std::min(preface_left_, bytes.size());
  if (bytes.substr(0, preface) != kPreface.substr(kPreface.size() - preface_left_, preface)) {
    return absl::InvalidArgumentError("not HTTP/2");
  }
  preface_left_ -= preface;
  waiting_ = false;
  return preface + Pass(bytes.substr(preface), frame_left_to_server_, [&](const Frame& frame) {
           if (frame.type == kReset) End(frame.stream);
           if (frame.type == kData)
             CountMessage(frame.stream, static_cast<int64_t>(frame.payload_bytes));
           // Headers of a call that is there already are its last.
           if (frame.type != kHeaders || frame.stream <= last_stream_) return true;
           waiting_ = !TryBegin(frame.stream, terms, now);
           return !waiting_;
         });
}

bool CallCredit::TryBegin(uint32_t stream, const Terms& terms, absl::Duration now) {
  credit_ = std::min<double>(limits_.most,
                             credit_ + absl::ToDoubleSeconds(now - counted_) * limits_.per_second);
  counted_ = now;
  if (credit_ < 1 + terms.above || open() >= terms.open_max) return false;
  credit_ -= 1;
  open_.emplace(stream, 0);
  last_stream_ = stream;
  return true;
}

bool CallCredit::End(uint32_t stream) {
  const auto call = open_.find(stream);
  if (call == open_.end()) return false;
  message_bytes_ -= call->second;
  open_.erase(call);
  return true;
}

void CallCredit::CountMessage(uint32_t stream, int64_t bytes) {
  const auto call = open_.find(stream);
  if (call == open_.end()) return;
  const int64_t counted = std::min(call->second + bytes, limits_.message_bytes_max);
  message_bytes_ += counted - call->second;
  call->second = counted;
}

size_t CallCredit::PassToClient(absl::string_view bytes, double& returns) {
  return Pass(bytes, frame_left_to_client_, [&](const Frame& frame) {
    const bool ends = frame.type == kReset || ((frame.type == kData || frame.type == kHeaders) &&
                                               (frame.flags & kEndStream) != 0);
    if (ends && End(frame.stream) && returns >= 1) {
      returns -= 1;
      credit_ = std::min<double>(limits_.most, credit_ + 1);
    }
    return true;
  });
}

}  // namespace muster
