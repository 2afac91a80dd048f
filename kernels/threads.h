// How many threads the matrix products of the calling thread may use.
#pragma once

namespace muster::kernels {

// Applies to the calling thread alone: several device threads of a process do not disturb one
// another. `threads` >= 1.
void SetThreads(int threads);

}  // namespace muster::kernels
