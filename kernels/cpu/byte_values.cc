#include "kernels/byte_values.h"

#include <algorithm>

#include "kernels/cpu/parallel.h"

namespace muster::kernels {
namespace {

constexpr int64_t kGrain = 1 << 16;

}  // namespace

void DecodeBytes(float* y, const uint8_t* x, int64_t n, std::span<const ByteValues> tables,
                 int64_t plane) {
  const auto channels = static_cast<int64_t>(tables.size());
  const int64_t run = channels == 1 ? n : plane;  // elements with the same table
  ParallelFor(n, kGrain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end;) {
      const ByteValues& values = tables[i / run % channels];
      const int64_t stop = std::min(end, (i / run + 1) * run);
      for (; i < stop; ++i) y[i] = values[x[i]];
    }
  });
}

}  // namespace muster::kernels
