#include "kernels/cpu/parallel.h"

#include <algorithm>

// Functions of the OpenMP runtime that oneDNN is linked with, called as compiled OpenMP code calls
// them. A pragma would bring in the compiler's runtime, which may be another one.
extern "C" {
void GOMP_parallel(void (*body)(void*), void* argument, unsigned threads, unsigned flags);
int omp_get_max_threads();
int omp_get_num_threads();
int omp_get_thread_num();
int omp_in_parallel();
}

namespace muster::kernels {
namespace {

struct Loop {
  int64_t n;
  int64_t grain;
  int64_t grains;
  void (*body)(void* context, int64_t begin, int64_t end);
  void* context;
};

// Runs the share of one thread of the team. The team may be smaller than requested.
void RunShare(void* argument) {
  const Loop& loop = *static_cast<const Loop*>(argument);
  const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
  const int64_t begin = loop.grains * thread / threads * loop.grain;
  const int64_t end = std::min(loop.n, loop.grains * (thread + 1) / threads * loop.grain);
  if (begin < end) loop.body(loop.context, begin, end);
}

}  // namespace

int ParallelThreads() { return omp_in_parallel() ? 1 : omp_get_max_threads(); }

void ParallelRun(int64_t n, int64_t grain, void (*body)(void* context, int64_t begin, int64_t end),
                 void* context) {
  if (n <= 0) return;
  Loop loop{n, grain, (n + grain - 1) / grain, body, context};
  const int threads = loop.grains == 1 ? 1 : ParallelThreads();
  if (threads == 1) {
    body(context, 0, n);
    return;
  }
  GOMP_parallel(RunShare, &loop, std::min<int64_t>(threads, loop.grains), /*flags=*/0);
}

}  // namespace muster::kernels
