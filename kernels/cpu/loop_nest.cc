#include "kernels/cpu/loop_nest.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace muster::kernels {

void CheckRank(size_t rank) {
  if (rank <= kDimensionsMax) return;
  std::fprintf(stderr, "a tensor of %zu dimensions; kernels take %d\n", rank, kDimensionsMax);
  std::abort();
}

void BroadcastShape::Widen(Dimensions shape) {
  CheckRank(shape.size());
  for (; rank_ < static_cast<int>(shape.size()); ++rank_) sizes_[kDimensionsMax - 1 - rank_] = 1;
  for (size_t back = 1; back <= shape.size(); ++back) {
    int64_t& size = sizes_[kDimensionsMax - back];
    size = std::max(size, shape[shape.size() - back]);
  }
}

}  // namespace muster::kernels
