#include "lib/listener/call_stamp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/listener/http2_frame.h"

namespace muster::call_stamp_test {
namespace {

constexpr uint8_t kPadded = 8;

std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
  std::string bytes;
  Http2Frame{.payload_bytes = payload.size(), .type = type, .flags = flags, .stream = stream}
      .AppendTo(bytes);
  return bytes + payload;
}
std::string Headers(uint8_t flags, uint32_t stream, const std::string& payload = "fields") {
  return Frame(Http2Frame::kHeaders, flags, stream, payload);
}
std::string Continuation(uint8_t flags, uint32_t stream, const std::string& payload) {
  return Frame(Http2Frame::kContinuation, flags, stream, payload);
}
std::string Data(uint32_t stream, const std::string& payload) {
  return Frame(Http2Frame::kData, 0, stream, payload);
}

// "field" and "value" in HPACK encoding.
const std::string kLiteral = std::string("\x10") + "\x05" + "field" + "\x05" + "value";
std::string Stamp(uint32_t stream) {
  return Continuation(Http2Frame::kEndHeaders, stream, kLiteral);
}
const std::string kPreface(Http2Frame::kPreface);

std::string Stamped(const std::string& bytes) {
  CallStamp stamp("field", "value");
  std::string stamped;
  stamp.Append(kPreface + bytes, stamped);
  EXPECT_EQ(stamped.substr(0, kPreface.size()), kPreface);
  return stamped.substr(kPreface.size());
}

TEST(CallStamp, EachCallHasOneMoreField) {
  EXPECT_EQ(
      Stamped(Headers(Http2Frame::kEndHeaders, 1) + Data(1, "one") +
              Headers(Http2Frame::kEndHeaders | Http2Frame::kEndStream, 3)),
      Headers(0, 1) + Stamp(1) + Data(1, "one") + Headers(Http2Frame::kEndStream, 3) + Stamp(3));
}

TEST(CallStamp, FieldsInSeveralFramesAreStampedAtTheirEnd) {
  EXPECT_EQ(Stamped(Headers(0, 1) + Continuation(0, 1, "more") +
                    Continuation(Http2Frame::kEndHeaders, 1, "")),
            Headers(0, 1) + Continuation(0, 1, "more") + Continuation(0, 1, "") + Stamp(1));
}

TEST(CallStamp, PaddingAndTrailersAreLeftAlone) {
  EXPECT_EQ(Stamped(Headers(Http2Frame::kEndHeaders | kPadded, 5,
                            std::string("\x02"
                                        "f\0\0",
                                        4))),
            Headers(kPadded, 5,
                    std::string("\x02"
                                "f\0\0",
                                4)) +
                Stamp(5));
  const std::string trailers = Headers(Http2Frame::kEndHeaders | Http2Frame::kEndStream, 5);
  EXPECT_EQ(Stamped(Headers(Http2Frame::kEndHeaders, 5) + trailers),
            Headers(0, 5) + Stamp(5) + trailers);
}

// CallCredit passes whole frame headers, and payloads in any pieces.
TEST(CallStamp, TheSizesOfThePiecesDoNotMatter) {
  std::mt19937 random(20261123);
  std::string bytes = kPreface;
  std::vector<size_t> headers;  // the positions of frame headers
  auto add = [&](const std::string& frame) {
    headers.push_back(bytes.size());
    bytes += frame;
  };
  for (uint32_t stream = 1; stream < 200; stream += 2) {
    add(Headers(stream % 3 == 0 ? 0 : Http2Frame::kEndHeaders, stream,
                std::string(random() % 50, 'h')));
    if (stream % 3 == 0) add(Continuation(Http2Frame::kEndHeaders, stream, ""));
    add(Data(stream, std::string(random() % 300, 'd')));
  }
  CallStamp whole("field", "value");
  std::string expected;
  whole.Append(bytes, expected);

  for (int round = 0; round < 100; ++round) {
    CallStamp stamp("field", "value");
    std::string stamped;
    for (size_t at = 0; at < bytes.size();) {
      size_t end = std::min(bytes.size(), at + 1 + random() % 200);
      for (const size_t header : headers) {
        if (end > header && end < header + Http2Frame::kHeaderBytes) end = header;
      }
      if (end <= at) end = std::min(bytes.size(), at + Http2Frame::kHeaderBytes);
      stamp.Append(absl::string_view(bytes).substr(at, end - at), stamped);
      at = end;
    }
    ASSERT_EQ(stamped, expected) << "round " << round;
  }
}

TEST(CallStamp, LongTextsHaveTheirLengthInSeveralBytes) {
  CallStamp stamp("f", std::string(300, 'v'));
  std::string stamped;
  stamp.Append(kPreface + Headers(Http2Frame::kEndHeaders, 1), stamped);
  // RFC 7541, 5.1: 300 = 127 + 45 + 1 * 128.
  const std::string literal =
      std::string("\x10\x01") + "f" + "\x7f\xad\x01" + std::string(300, 'v');
  EXPECT_EQ(stamped, kPreface + Headers(0, 1) + Continuation(Http2Frame::kEndHeaders, 1, literal));
}

}  // namespace
}  // namespace muster::call_stamp_test
