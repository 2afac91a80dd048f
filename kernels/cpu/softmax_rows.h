// Shared code of softmax and the losses.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/softmax_loops.h"

namespace muster::kernels {

// Returns the loops for this processor.
const SoftmaxLoops& Softmaxes();

// Returns the rows per parallel piece, for rows of `classes` floats.
inline int64_t SoftmaxGrain(int64_t classes) { return std::max<int64_t>(1, (1 << 13) / classes); }

// Returns the sum of partial(begin, end) over pieces of `grain` of [0, n), added in order.
template <typename F>
double SumPieces(int64_t n, int64_t grain, F partial) {
  std::vector<double> sums((n + grain - 1) / grain);
  ParallelFor(static_cast<int64_t>(sums.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      sums[i] = partial(i * grain, std::min(n, (i + 1) * grain));
    }
  });
  double total = 0;
  for (double sum : sums) total += sum;
  return total;
}

}  // namespace muster::kernels
