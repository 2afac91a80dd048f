#include "lib/listener/call_credit.h"

#include <algorithm>

#include "absl/status/status.h"
#include "lib/listener/http2_frame.h"

namespace muster {
namespace {

// Shows each frame's header to `passes`. Returns how many bytes may pass: up to the first header
// that is incomplete or that `passes` rejects.
template <typename Passes>
size_t Pass(absl::string_view bytes, size_t& frame_left, Passes passes) {
  size_t passed = 0;
  while (true) {
    const size_t payload = std::min(frame_left, bytes.size() - passed);
    frame_left -= payload;
    passed += payload;
    if (bytes.size() - passed < Http2Frame::kHeaderBytes) return passed;
    const Http2Frame frame = Http2Frame::Read(bytes.data() + passed);
    if (!passes(frame)) return passed;
    passed += Http2Frame::kHeaderBytes;
    frame_left = frame.payload_bytes;
  }
}

}  // namespace

CallCredit::CallCredit(const Limits& limits, absl::Duration now)
    : limits_(limits),
      credit_(limits.first),
      counted_(now),
      control_counted_(now),
      preface_left_(Http2Frame::kPreface.size()) {}

absl::StatusOr<size_t> CallCredit::PassToServer(absl::string_view bytes, const Terms& terms,
                                                absl::Duration now) {
  const size_t preface = std::min(preface_left_, bytes.size());
  if (bytes.substr(0, preface) !=
      Http2Frame::kPreface.substr(Http2Frame::kPreface.size() - preface_left_, preface)) {
    return absl::InvalidArgumentError("not HTTP/2");
  }
  preface_left_ -= preface;
  waiting_ = false;
  absl::Status fault;
  const size_t passed =
      preface + Pass(bytes.substr(preface), frame_left_to_server_, [&](const Http2Frame& frame) {
        fault = CheckFields(frame);
        if (fault.ok()) fault = CheckControl(frame, now);
        if (!fault.ok()) return false;
        // A reset by the client gives no credit back, because the server may still work on the
        // call.
        if (frame.type == Http2Frame::kReset) End(frame.stream);
        if (frame.type == Http2Frame::kData) {
          CountMessage(frame.stream, static_cast<int64_t>(frame.payload_bytes));
        }
        // Headers of a known call are its trailers.
        if (frame.type != Http2Frame::kHeaders || frame.stream <= last_stream_) return true;
        waiting_ = !TryBegin(frame.stream, terms, now);
        return !waiting_;
      });
  if (!fault.ok()) return fault;
  return passed;
}

// Checks the limits of header fields. If a call must wait, its first frame is checked again later.
// That changes nothing, because the first frame sets the counts again.
absl::Status CallCredit::CheckFields(const Http2Frame& frame) {
  const bool begins = frame.type == Http2Frame::kHeaders;
  if (begins && frame.stream % 2 == 0) {
    return absl::InvalidArgumentError("a call of an even number");
  }
  if (!begins && frame.type != Http2Frame::kContinuation) return absl::OkStatus();
  if (!begins && !in_fields_) return absl::InvalidArgumentError("fields of no call");
  field_bytes_ = (begins ? 0 : field_bytes_) + frame.payload_bytes;
  field_frames_ = (begins ? 0 : field_frames_) + 1;
  in_fields_ = (frame.flags & Http2Frame::kEndHeaders) == 0;
  if (field_bytes_ <= kFieldBytesMax && field_frames_ <= kFieldFramesMax) return absl::OkStatus();
  return absl::InvalidArgumentError("header fields without end");
}

absl::Status CallCredit::CheckControl(const Http2Frame& frame, absl::Duration now) {
  const bool is_empty = frame.type == Http2Frame::kData && frame.payload_bytes == 0 &&
                        (frame.flags & Http2Frame::kEndStream) == 0;
  if (!is_empty && frame.type != Http2Frame::kPing && frame.type != Http2Frame::kSettings) {
    return absl::OkStatus();
  }
  control_frames_ =
      std::min(kControlFramesMax, control_frames_ + absl::ToDoubleSeconds(now - control_counted_) *
                                                        kControlFramesPerSecond);
  control_counted_ = now;
  if (control_frames_ < 1) return absl::InvalidArgumentError("a flood of control frames");
  control_frames_ -= 1;
  return absl::OkStatus();
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
  return Pass(bytes, frame_left_to_client_, [&](const Http2Frame& frame) {
    const bool ends = frame.type == Http2Frame::kReset ||
                      ((frame.type == Http2Frame::kData || frame.type == Http2Frame::kHeaders) &&
                       (frame.flags & Http2Frame::kEndStream) != 0);
    if (frame.type == Http2Frame::kPing || frame.type == Http2Frame::kSettings) {
      control_frames_ = std::min(kControlFramesMax, control_frames_ + 1);
    }
    if (ends && End(frame.stream) && returns >= 1) {
      returns -= 1;
      credit_ = std::min<double>(limits_.most, credit_ + 1);
    }
    return true;
  });
}

}  // namespace muster
