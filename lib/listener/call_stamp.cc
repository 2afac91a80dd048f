#include "lib/listener/call_stamp.h"

#include <glog/logging.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "lib/listener/http2_frame.h"

namespace muster {
namespace {

// Appends `text` as an HPACK string (RFC 7541): its length with a prefix of 7 bits (5.1), then its
// bytes without Huffman code (5.2).
void AppendText(absl::string_view text, std::string& block) {
  constexpr size_t kPrefixMax = 0x7f;
  if (text.size() < kPrefixMax) {
    block.push_back(static_cast<char>(text.size()));
  } else {
    block.push_back(static_cast<char>(kPrefixMax));
    size_t rest = text.size() - kPrefixMax;
    for (; rest >= 0x80; rest >>= 7) block.push_back(static_cast<char>(rest | 0x80));
    block.push_back(static_cast<char>(rest));
  }
  absl::StrAppend(&block, text);
}

std::string Literal(absl::string_view field, absl::string_view value) {
  std::string block = {'\x10'};  // never indexed, with a new name
  AppendText(field, block);
  AppendText(value, block);
  CHECK_LT(block.size(), Http2Frame::kPayloadBytesMin) << "it must fit any peer's frame";
  return block;
}

}  // namespace

CallStamp::CallStamp(absl::string_view field, absl::string_view value)
    : block_(Literal(field, value)), preface_left_(Http2Frame::kPreface.size()) {}

void CallStamp::Append(absl::string_view bytes, std::string& stamped) {
  const size_t preface = std::min(preface_left_, bytes.size());
  absl::StrAppend(&stamped, bytes.substr(0, preface));
  preface_left_ -= preface;
  bytes.remove_prefix(preface);
  while (true) {
    const size_t payload = std::min(frame_left_, bytes.size());
    absl::StrAppend(&stamped, bytes.substr(0, payload));
    frame_left_ -= payload;
    bytes.remove_prefix(payload);
    if (frame_left_ == 0 && ends_fields_) {
      ends_fields_ = false;
      Http2Frame{.payload_bytes = block_.size(),
                 .type = Http2Frame::kContinuation,
                 .flags = Http2Frame::kEndHeaders,
                 .stream = stream_}
          .AppendTo(stamped);
      absl::StrAppend(&stamped, block_);
    }
    if (bytes.empty()) return;
    CHECK_GE(bytes.size(), Http2Frame::kHeaderBytes) << "a part of a frame's header";
    Http2Frame frame = Http2Frame::Read(bytes.data());
    bytes.remove_prefix(Http2Frame::kHeaderBytes);
    frame_left_ = frame.payload_bytes;
    stream_ = frame.stream;
    // Header fields of a known call are its trailers. Those of a new call may continue in
    // CONTINUATION frames, and no other frame may come in between.
    const bool begins = frame.type == Http2Frame::kHeaders && frame.stream > last_stream_;
    if (begins) last_stream_ = frame.stream;
    in_fields_ = begins || (in_fields_ && frame.type == Http2Frame::kContinuation);
    if (in_fields_ && (frame.flags & Http2Frame::kEndHeaders) != 0) {
      in_fields_ = false;
      ends_fields_ = true;
      frame.flags &= static_cast<uint8_t>(~Http2Frame::kEndHeaders);
    }
    frame.AppendTo(stamped);
  }
}

}  // namespace muster
