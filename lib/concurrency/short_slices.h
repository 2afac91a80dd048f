// Reduces the delay until a woken thread runs.
#pragma once

namespace muster {

// Asks the kernel to run the calling thread soon after it is woken, in short slices of time. It
// then runs before computing threads, without a larger share of the processor. For threads that
// mostly wait and on which others wait. Without it a woken thread waits for the end of another
// thread's slice, some milliseconds, if every processor computes.
//
// Works on Linux from 6.12 on (EEVDF, sched_setattr(2): sched_runtime of SCHED_OTHER). Elsewhere,
// or if the machine's policy forbids it, it does nothing.
void AskForShortSlices();

}  // namespace muster
