// Functions that the streams of several services share.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "grpcpp/support/sync_stream.h"
#include "lib/status/status.h"
#include "services/coordinator/common/call_watch.h"

namespace muster {

// How often a waiting call checks that its client is still there.
inline constexpr absl::Duration kCallerCheck = absl::Seconds(1);

inline absl::Status CallerGone() { return absl::CancelledError("the caller is gone"); }

// The error of a stream that the watch has ended. `what` names the event that did not happen.
inline absl::Status Stalled(absl::string_view what, absl::Duration stall_max) {
  return WithReason(
      absl::DeadlineExceededError(absl::StrCat(what, " for ", absl::FormatDuration(stall_max))),
      "STREAM_STALLED");
}

// Writes all messages of `source` to the stream. Blocks until the client has read them; `guard`
// limits the time for each.
template <typename Source, typename Message>
absl::Status SendAll(Source& source, grpc::ServerWriter<Message>& writer, CallWatch::Guard& guard,
                     absl::Duration stall_max) {
  while (true) {
    guard.Advance(absl::InfiniteDuration());  // no limit while the coordinator's disk is slow
    ASSIGN_OR_RETURN(const std::optional<Message> next, source.Next());
    if (!next) return absl::OkStatus();
    guard.Advance(stall_max);
    if (!writer.Write(*next)) {
      return guard.cancelled() ? Stalled("the caller has read nothing", stall_max) : CallerGone();
    }
  }
}

}  // namespace muster
