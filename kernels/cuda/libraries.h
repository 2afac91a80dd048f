// Loads cuBLASLt and cuDNN when a GPU is first used. A process that stays on the CPU avoids:
// - their start-up time (0.1 s warm, over 1 s cold).
// - their 200 MB.
// - 92 KiB of thread-local storage that cuBLASLt would take from every thread's stack if it were
//   linked.
//
// A program linked with the kernels also runs where the libraries are not installed.
#pragma once

namespace muster::kernels::cuda {

// A description of a failure; null: no failure. The text is constant or lives as long as the
// process.
using Failure = const char*;

// Call it before any other function of the libraries. Searches the toolkit's folder of the build,
// then the paths of the dynamic linker. Thread-safe; loads once.
Failure LoadLibraries();

}  // namespace muster::kernels::cuda
