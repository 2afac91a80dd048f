#include "kernels/cpu/recurrence.h"

#include <algorithm>

#include "kernels/cpu/simd_level.h"

namespace muster::kernels {

const RecurrentLoops& Recurrent() {
  return ForThisProcessor(baseline::kRecurrentLoops, avx2::kRecurrentLoops,
                          avx512::kRecurrentLoops);
}

void Direction::GatherPrevious(float* rows, const float* y, const float* h0) const {
  const int64_t hidden = shape_.hidden;
  ForEachSample(shape_.batch, shape_.time * hidden, [&](int64_t b) {
    for (int64_t step = 0; step < shape_.time; ++step) {
      const float* from = Previous(y, h0, step).Of(b);
      float* to = rows + (b * shape_.time + TimeOf(step)) * hidden;
      if (from == nullptr) {
        std::fill_n(to, hidden, 0.0f);
      } else {
        std::copy_n(from, hidden, to);
      }
    }
  });
}

}  // namespace muster::kernels
