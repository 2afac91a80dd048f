// Where the threads of a step meet.
#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace muster {

// A reusable barrier that sleeps (device threads own the cores, waiters must not) and that can be
// broken, so that nobody waits for a thread that will not come. Thread-safe.
class Barrier {
 public:
  explicit Barrier(int participants) : participants_(participants) {}

  // Blocks until all participants have arrived; what each did before is visible to all after.
  // The status given to Abort() once that was called, in every call that has not passed by then.
  absl::Status Await() ABSL_LOCKS_EXCLUDED(mu_);

  // Frees everybody, now and for ever. `why` must not be OK; the first one counts.
  void Abort(absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const int participants_;
  absl::Mutex mu_;
  int arrived_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t phase_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
