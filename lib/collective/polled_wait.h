// Waits with a deadline for work that may never end.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "lib/concurrency/steady_wait.h"

namespace muster {

// A collective operation on a stream waits for ranks that may never come, so a call that blocks
// until the stream ends would hang as well. This class polls instead, with short sleeps, until a
// deadline. Thread-safe.
class PolledWait {
 public:
  struct Options {
    absl::Duration timeout;
    absl::Duration interval = absl::Microseconds(50);  // between two polls
    std::function<absl::Duration()> now = SteadyNow;
    std::function<void(absl::Duration)> sleep = absl::SleepFor;
  };
  explicit PolledWait(Options options) : options_(std::move(options)) {}

  absl::Duration timeout() const { return options_.timeout; }

  // Blocks until `finished` returns true, and returns OK. Returns an error of `finished` unchanged.
  // After the timeout returns what `timed_out` returns: an error that names the awaited work. Polls
  // at least once.
  absl::Status Await(absl::FunctionRef<absl::StatusOr<bool>()> finished,
                     absl::FunctionRef<absl::Status()> timed_out) const;

 private:
  const Options options_;
};

// Work that a device does asynchronously.
struct PolledStream {
  std::string name;  // "the compute stream of cuda:0"
  std::function<absl::StatusOr<bool>()> finished;
};

// Makes a device leave its work, finished or not, before the memory that it uses is freed. First
// `abandon` releases the device from peers for which its streams wait; otherwise the streams would
// never end. Then waits for the end of each stream. A stream that fails counts as ended. Returns
// the first error of a stream. Returns DEADLINE_EXCEEDED, naming the streams that have not ended,
// after the timeout: their memory must not be freed.
absl::Status Drain(absl::FunctionRef<void()> abandon, const std::vector<PolledStream>& streams,
                   const PolledWait& wait);

}  // namespace muster
