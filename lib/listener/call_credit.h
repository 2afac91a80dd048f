// Limits how many calls a connection may begin and abandon. Counts them in the HTTP/2 frames that
// pass.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "lib/limits/limits.h"
#include "lib/listener/http2_frame.h"

namespace muster {

// A call costs its connection one credit when it begins. Credit comes back with time. If the server
// ends the call, its credit comes back at once, as long as the server ends no more calls than it
// can clear away. So a client that lets its calls end does not wait, unless another client floods
// the server.
//
// Credit of calls that the client abandons comes back only with time, because the server may still
// work on them for long.
//
// Holds only counts and the numbers of open calls: the caller keeps the bytes. Not thread-safe.
// `now` is a value of SteadyNow().
class CallCredit {
 public:
  struct Limits {
    int first;          // of a new connection
    int most;           // the limit of saved credit
    double per_second;  // credit that comes back with time
    int64_t message_bytes_max = limits::kRequestBytesMax;
  };
  CallCredit(const Limits& limits, absl::Duration now);

  // The conditions for a call to begin now.
  struct Terms {
    int open_max;      // fewer calls than this must be open
    double above = 0;  // this much credit must be left after it begins
  };

  // Returns how many of the client's `bytes` may go on to the server. It stops at an incomplete
  // frame header, or at a call that may not begin yet. Pass the remaining bytes again, in front of
  // later ones.
  //
  // Returns INVALID_ARGUMENT in these cases:
  // - The connection does not start like HTTP/2.
  // - A call has an even number. The server would take it for no call, and later ones for an older
  //   call.
  // - Header fields continue although no call has begun any.
  // - There is no end of header fields, or too many pings, settings or empty pieces of messages.
  //   The server keeps them, and nothing else limits them.
  absl::StatusOr<size_t> PassToServer(absl::string_view bytes, const Terms& terms,
                                      absl::Duration now);
  // Handles the bytes of the server in the same way, but stops only at an incomplete frame header.
  // A call that these bytes end takes one of `returns` and gives its credit back. If no `returns`
  // are left, it gives none back.
  size_t PassToClient(absl::string_view bytes, double& returns);

  int open() const { return static_cast<int>(open_.size()); }
  // Limits for the header fields of one call: bytes, and frames.
  static constexpr size_t kFieldBytesMax = 16 << 10;
  static constexpr int kFieldFramesMax = 8;

  // Limits for pings, settings and empty pieces of messages of a connection: so many at once, and
  // so many more per second. Each answer of the server to one makes room for another, because a
  // client that measures the bandwidth sends a ping in every round trip.
  static constexpr double kControlFramesMax = 512;
  static constexpr double kControlFramesPerSecond = 64;

  // The memory of the server that messages of open calls may occupy: the bytes that the client has
  // sent of each call, but at most one message each.
  int64_t message_bytes() const { return message_bytes_; }
  // Whether the last PassToServer() stopped at a call that may begin later.
  bool waiting() const { return waiting_; }
  // Whether the client has sent the start of an HTTP/2 connection.
  bool greeted() const { return preface_left_ == 0; }

 private:
  // Check a frame that is about to pass. An error means that the connection breaks the rules.
  absl::Status CheckFields(const Http2Frame& frame);
  absl::Status CheckControl(const Http2Frame& frame, absl::Duration now);
  bool End(uint32_t stream);
  void CountMessage(uint32_t stream, int64_t bytes);
  bool TryBegin(uint32_t stream, const Terms& terms, absl::Duration now);

  const Limits limits_;
  double credit_;
  absl::Duration counted_;                     // credit_ includes what came with time until then
  double control_frames_ = kControlFramesMax;  // how many more may pass
  absl::Duration control_counted_;  // control_frames_ includes what came with time until then
  // Open calls, and the share of message_bytes_ of each.
  absl::flat_hash_map<uint32_t, int64_t> open_;
  int64_t message_bytes_ = 0;
  uint32_t last_stream_ = 0;
  bool in_fields_ = false;  // header fields continue in the next frame
  size_t field_bytes_ = 0;  // of the current header fields
  int field_frames_ = 0;
  size_t preface_left_;
  size_t frame_left_to_server_ = 0;  // of the payload that is passing
  size_t frame_left_to_client_ = 0;
  bool waiting_ = false;
};

}  // namespace muster
