// A barrier for the threads of a step.
#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace muster {

// A reusable barrier that can be aborted, so that no thread waits for one that will not come.
// Thread-safe. Waiting threads sleep, because the device threads need the cores.
class Barrier {
 public:
  explicit Barrier(int participants) : participants_(participants) {}

  // Blocks until all participants have arrived. Everything that each did before is visible to all
  // afterwards. Returns the status given to Abort() in every call that has not passed by then.
  absl::Status Await() ABSL_LOCKS_EXCLUDED(mu_);

  // Releases all waiting and later calls. `why` must not be OK; the first one counts.
  void Abort(absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const int participants_;
  absl::Mutex mu_;
  int arrived_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t phase_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
