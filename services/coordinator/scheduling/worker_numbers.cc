#include "services/coordinator/scheduling/worker_numbers.h"

#include <algorithm>
#include <cstdint>

#include "lib/plan/sum_tree.h"

namespace muster {

int UsefulAtMost(int workers, int least, int logical) {
  if (logical == 0 || workers <= least) return workers;
  int useful = least;
  for (const UsefulWorkers& number : UsefulWorkersOf(logical)) {
    if (number.workers <= workers) useful = std::max(useful, static_cast<int>(number.workers));
  }
  return useful;
}

int MostWorkers(const v1::JobSpec& spec) {
  const v1::WorkerCount& workers = spec.resources().workers();
  const int64_t most = std::min<int64_t>(workers.max(), spec.data().batch_size());
  return UsefulAtMost(static_cast<int>(std::max<int64_t>(workers.min(), most)), workers.min(),
                      workers.logical());
}

}  // namespace muster
