// The header of an HTTP/2 frame (RFC 9113, sections 3.4, 4.1 and 6), as far as the listener needs
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace muster {

struct Http2Frame {
  // The bytes that a client sends before its first frame.
  static constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  static constexpr size_t kHeaderBytes = 9;
  static constexpr size_t kPayloadBytesMin = 16 << 10;  // the size that every peer takes

  // Types, and flags.
  static constexpr uint8_t kData = 0, kHeaders = 1, kPriority = 2, kReset = 3, kSettings = 4,
                           kPing = 6, kWindowUpdate = 8, kContinuation = 9;
  static constexpr uint8_t kEndStream = 1, kEndHeaders = 4;

  size_t payload_bytes;
  uint8_t type;
  uint8_t flags;
  uint32_t stream;

  static Http2Frame Read(const char* header) {
    auto byte = [&](int i) { return static_cast<uint32_t>(static_cast<unsigned char>(header[i])); };
    return {.payload_bytes = byte(0) << 16 | byte(1) << 8 | byte(2),
            .type = static_cast<uint8_t>(byte(3)),
            .flags = static_cast<uint8_t>(byte(4)),
            .stream = (byte(5) & 0x7f) << 24 | byte(6) << 16 | byte(7) << 8 | byte(8)};
  }
  void AppendTo(std::string& bytes) const {
    for (const int shift : {16, 8, 0}) bytes.push_back(static_cast<char>(payload_bytes >> shift));
    bytes.push_back(static_cast<char>(type));
    bytes.push_back(static_cast<char>(flags));
    for (const int shift : {24, 16, 8, 0}) bytes.push_back(static_cast<char>(stream >> shift));
  }
};

}  // namespace muster
