// Waits that end, for work that may not.
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

// A collective operation in a stream waits for ranks that may never come, and a call that blocks
// until the stream has come to its end would wait with it. So the stream is asked, again and again
// with short sleeps between, until a deadline. Thread-safe.
class PolledWait {
 public:
  struct Options {
    absl::Duration timeout;
    absl::Duration interval = absl::Microseconds(50);  // between two questions
    std::function<absl::Duration()> now = SteadyNow;
    std::function<void(absl::Duration)> sleep = absl::SleepFor;
  };
  explicit PolledWait(Options options) : options_(std::move(options)) {}

  absl::Duration timeout() const { return options_.timeout; }

  // OK once `finished` holds; its error, as it is. When the time is over, what `timed_out` returns:
  // an error that says what was waited for. `finished` is asked at least once.
  absl::Status Await(absl::FunctionRef<absl::StatusOr<bool>()> finished,
                     absl::FunctionRef<absl::Status()> timed_out) const;

 private:
  const Options options_;
};

// Something that a device does by and by.
struct PolledStream {
  std::string name;  // "the compute stream of cuda:0"
  std::function<absl::StatusOr<bool>()> finished;
};

// How a device leaves its work, finished or not, before the memory goes that it uses. First
// `abandon` frees the device from the peers that its streams wait for: without that they would
// never end. Then the streams come to their ends. A stream that fails has ended. The first error of
// a stream; DEADLINE_EXCEEDED, naming those that have not ended, when the time is over: their
// memory must not be freed.
absl::Status Drain(absl::FunctionRef<void()> abandon, const std::vector<PolledStream>& streams,
                   const PolledWait& wait);

}  // namespace muster
