#include "kernels/byte_values.h"

#include "kernels/cpu/parallel.h"

namespace muster::kernels {
namespace {

constexpr int64_t kGrain = 1 << 16;

}  // namespace

void DecodeBytes(float* y, const uint8_t* x, int64_t n, const ByteValues& values) {
  ParallelFor(n, kGrain, [=, &values](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y[i] = values[x[i]];
  });
}

}  // namespace muster::kernels
