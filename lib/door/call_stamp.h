// Writes on every call who its connection belongs to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace muster {

// Behind the front door gRPC sees no client, only the door. So the door adds a header field to each
// call (HTTP/2, RFC 9113): the block of header fields is not said to be over, and a CONTINUATION
// frame with one more field (HPACK, RFC 7541, 6.2.3: a literal that is never indexed) follows it.
// Nothing else of what passes is changed or understood.
//
// What it writes must not be a client's to write: see CallerStamp. A client can end its fields in
// the middle of one, so that the door's becomes a part of that: its call is then without a stamp.
// Not thread-safe.
class CallStamp {
 public:
  // Of one connection.
  CallStamp(absl::string_view field, absl::string_view value);

  // Appends `bytes` to `stamped`, with what is to be added. They are what the client sent, in
  // order, as a CallCredit let it pass: no call of Append() ends within a frame's header.
  void Append(absl::string_view bytes, std::string& stamped);

 private:
  const std::string block_;  // the field as HPACK has it
  size_t preface_left_;
  size_t frame_left_ = 0;     // of the payload that is passing
  bool in_fields_ = false;    // of a new call, which go on in the next frame
  bool ends_fields_ = false;  // the frame is the last of them
  uint32_t stream_ = 0;       // of the frame
  uint32_t last_stream_ = 0;  // of the newest call
};

}  // namespace muster
