// cuBLASLt and cuDNN, loaded when a GPU is first asked for: a process that stays on the CPU has
// neither their start-up time (0.1 s warm, over 1 s cold), nor their 200 MB, nor the 92 KiB of
// thread-local storage that cuBLASLt would take out of every thread's stack if it were there from
// the start. A program linked with the kernels also runs where the libraries are not installed.
#pragma once

namespace muster::kernels::cuda {

// What went wrong, a constant text or one that lives as long as the process; null: nothing did.
using Failure = const char*;

// Call before anything else of the libraries. Looks where the toolkit was when this was built, then
// where the dynamic linker looks. Thread-safe; loads once.
Failure LoadLibraries();

}  // namespace muster::kernels::cuda
