// How soon a thread runs once it is woken.
#pragma once

namespace muster {

// Tells the kernel that the calling thread, when it is woken, would rather run at once, for short
// slices of time, than longer and later: it then goes before threads that compute, with no more of
// the processor than before. For threads that others wait for and that themselves mostly wait.
// Without it a woken thread waits for the slice of whoever has its processor, some milliseconds,
// where every processor computes.
//
// Of Linux from 6.12 on (EEVDF, sched_setattr(2): sched_runtime of SCHED_OTHER); elsewhere, and
// where a policy of the machine forbids it, it does nothing.
void AskForShortSlices();

}  // namespace muster
