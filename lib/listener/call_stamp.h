// Writes on every call the identity of its connection's client.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace muster {

// gRPC behind the listener sees only the listener, no client. So the listener adds a header field
// to each call (HTTP/2, RFC 9113). It clears the flag that ends the block of header fields, and
// appends a CONTINUATION frame with one more field (HPACK, RFC 7541, 6.2.3: a literal that is never
// indexed). It neither changes nor parses anything else.
//
// A client must not be able to write this field itself: see CallerStamp. A client can end its
// fields in the middle of one, so that the listener's field becomes a part of it. Such a call has
// no stamp. Not thread-safe.
class CallStamp {
 public:
  // The stamp of one connection.
  CallStamp(absl::string_view field, absl::string_view value);

  // Appends `bytes` to `stamped`, with the added fields. `bytes` are the client's, in order, as a
  // CallCredit let them pass. Requires: no call of Append() ends within a frame's header.
  void Append(absl::string_view bytes, std::string& stamped);

 private:
  const std::string block_;  // the field in HPACK encoding
  size_t preface_left_;
  size_t frame_left_ = 0;     // of the payload that is passing
  bool in_fields_ = false;    // of a new call; they continue in the next frame
  bool ends_fields_ = false;  // the frame contains the last of them
  uint32_t stream_ = 0;       // of the frame
  uint32_t last_stream_ = 0;  // of the newest call
};

}  // namespace muster
