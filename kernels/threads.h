// How many threads the CPU kernels of the calling thread may use (kernels/cpu/parallel.h, oneDNN).
#pragma once

namespace muster::kernels {

// Sets that number for the calling thread alone, so that the device threads of a process do not
// disturb one another. Requires: threads >= 1.
void SetThreads(int threads);

}  // namespace muster::kernels
