#include "kernels/threads.h"

// A function of the OpenMP runtime that oneDNN is linked with. <omp.h> belongs to the compiler's
// own runtime, which may be another one.
extern "C" void omp_set_num_threads(int threads);

namespace muster::kernels {

void SetThreads(int threads) { omp_set_num_threads(threads); }

}  // namespace muster::kernels
