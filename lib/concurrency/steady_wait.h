// Waits and time spans that do not depend on steps of the wall clock.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace muster {

// Returns the time since a moment that is fixed for the process. Only differences are meaningful.
absl::Duration SteadyNow();

// Blocks until `condition` is true, for up to `timeout`, and returns whether it is.
// mu->AwaitWithTimeout() would use a deadline of the wall clock: a step forward ends that wait at
// once, a step back of an hour makes it an hour longer. This uses a steady clock. Requires: `mu` is
// held for writing. Allocates nothing. The first wait of the process starts a thread that keeps all
// deadlines.
bool AwaitFor(absl::Mutex* mu, const absl::Condition& condition, absl::Duration timeout)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

}  // namespace muster
