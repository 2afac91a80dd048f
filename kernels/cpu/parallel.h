// Parallel loops on the calling thread's OpenMP team, which oneDNN's primitives use too.
#pragma once

#include <cstdint>
#include <type_traits>

namespace muster::kernels {

// Returns the number of threads that a ParallelFor of the calling thread may use: the value of
// SetThreads() (kernels/threads.h), or 1 inside another ParallelFor.
int ParallelThreads();

// Calls body(context, begin, end) as ParallelFor does.
void ParallelRun(int64_t n, int64_t grain, void (*body)(void* context, int64_t begin, int64_t end),
                 void* context);

// Calls f(begin, end) for disjoint ranges that cover [0, n), each once, on at most
// ParallelThreads() threads. Blocks until all calls have returned. Runs inline if there is one
// grain or one thread. f must not throw.
//
// Every begin is a multiple of `grain` >= 1, and so is every end except n. The range is split in
// whole grains, evenly and the same way every time. A result that is computed per grain, and
// combined in the order of the grains, does not depend on the number of threads.
template <typename F>
void ParallelFor(int64_t n, int64_t grain, F&& f) {
  ParallelRun(
      n, grain,
      [](void* context, int64_t begin, int64_t end) {
        (*static_cast<std::remove_reference_t<F>*>(context))(begin, end);
      },
      const_cast<void*>(static_cast<const void*>(&f)));
}

}  // namespace muster::kernels
