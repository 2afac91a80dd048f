// How many calls one connection may have begun and left behind, read off the HTTP/2 frames that
// pass by.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "lib/door/http2_frame.h"
#include "lib/limits/limits.h"

namespace muster {

// A call costs its connection one credit when it begins, and credit comes back with time. Where the
// server ends a call it comes back at once, as long as the server ends no more calls than it can
// clear away: who lets his calls end does not wait, unless somebody floods the server. What the
// client abandons comes back with time alone, for the server may have work with it for long after.
//
// Holds nothing but counts and the numbers of open calls: bytes stay with the caller. Not
// thread-safe; `now` is of SteadyNow().
class CallCredit {
 public:
  struct Limits {
    int first;          // of a new connection
    int most;           // that it can save up
    double per_second;  // what comes back with time
    int64_t message_bytes_max = limits::kRequestBytesMax;
  };
  CallCredit(const Limits& limits, absl::Duration now);

  // What a call needs that is to begin now.
  struct Terms {
    int open_max;      // fewer calls than this are open
    double above = 0;  // this much credit must be left when it has begun
  };

  // How many bytes that the client has sent may go on to the server: all up to a part of a frame's
  // header, or to a call that may not begin yet. What is left is to be shown again, in front of
  // what follows it. INVALID_ARGUMENT: the connection does not begin as HTTP/2 does, a call has an
  // even number (which the server would take for no call, and what comes after it for an older
  // one), or header fields without end, or too many pings, settings or empty pieces of messages:
  // the server keeps them, and nothing else bounds them.
  absl::StatusOr<size_t> PassToServer(absl::string_view bytes, const Terms& terms,
                                      absl::Duration now);
  // The same for what the server has sent: all but a part of a frame's header. Each call that this
  // ends takes one of `returns`; those that find none do not give back their credit.
  size_t PassToClient(absl::string_view bytes, double& returns);

  int open() const { return static_cast<int>(open_.size()); }
  // Of the header fields of one call, and in so many frames.
  static constexpr size_t kFieldBytesMax = 16 << 10;
  static constexpr int kFieldFramesMax = 8;

  // Pings, settings and empty pieces of messages of a connection, at once and with time. The
  // server's answer to one makes room for another: who measures how much the way holds sends a ping
  // in every round trip.
  static constexpr double kControlFramesMax = 512;
  static constexpr double kControlFramesPerSecond = 64;

  // What the messages of open calls may hold of the server's memory: what the client has sent of
  // each call, a message at most.
  int64_t message_bytes() const { return message_bytes_; }
  // Whether the last PassToServer() stopped at a call that may begin later.
  bool waiting() const { return waiting_; }
  // Whether the client has begun as HTTP/2 does.
  bool greeted() const { return preface_left_ == 0; }

 private:
  // Of a frame that is about to pass. An error: the connection breaks the rules.
  absl::Status CheckFields(const Http2Frame& frame);
  absl::Status CheckControl(const Http2Frame& frame, absl::Duration now);
  bool End(uint32_t stream);
  void CountMessage(uint32_t stream, int64_t bytes);
  bool TryBegin(uint32_t stream, const Terms& terms, absl::Duration now);

  const Limits limits_;
  double credit_;
  absl::Duration counted_;                       // until when credit_ has what came with time
  double control_frames_ = kControlFramesMax;    // that may still come
  absl::Duration control_counted_;               // until when they have
  absl::flat_hash_map<uint32_t, int64_t> open_;  // calls, and what of message_bytes_ each has
  int64_t message_bytes_ = 0;
  uint32_t last_stream_ = 0;
  bool in_fields_ = false;  // they go on in the next frame
  size_t field_bytes_ = 0;  // of these fields
  int field_frames_ = 0;
  size_t preface_left_;
  size_t frame_left_to_server_ = 0;  // of the payload that is passing
  size_t frame_left_to_client_ = 0;
  bool waiting_ = false;
};

}  // namespace muster
