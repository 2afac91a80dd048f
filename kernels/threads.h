// How many threads the CPU kernels of the calling thread may use (kernels/cpu/parallel.h, oneDNN).
#pragma once

namespace muster::kernels {

// Applies to the calling thread alone: several device threads of a process do not disturb one
// another. `threads` >= 1.
void SetThreads(int threads);

}  // namespace muster::kernels
