// Waits and spans of time that a step of the wall clock neither lengthens nor cuts short.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace muster {

// Time since some moment that is the same for the whole process. Only differences mean anything.
absl::Duration SteadyNow();

// As mu->AwaitWithTimeout(condition, timeout): waits until `condition` is true, for `timeout` at
// most, and returns whether it is. That one's deadline is a time of the wall clock: a step forward
// ends the wait at once, a step back of an hour makes it an hour longer. Here the clock is steady.
// `mu` must be held for writing. Allocates nothing; the first wait of the process starts a thread
// that keeps the deadlines of all.
bool AwaitFor(absl::Mutex* mu, const absl::Condition& condition, absl::Duration timeout)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

}  // namespace muster
