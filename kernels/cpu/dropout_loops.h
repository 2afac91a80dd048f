// The loops of dropout.h, once per instruction set.
#pragma once

#include <cstdint>

namespace muster::kernels {

struct DropoutLoops {
  // y[i] = word i >> 8 >= threshold ? x[i] factor : 0 for i in [0, n), where word i is word i mod 4
  // of RandomWords(seed, stream, first_index + i / 4).
  void (*dropout)(float* y, const float* x, int64_t n, uint64_t seed, uint64_t stream,
                  uint64_t first_index, uint32_t threshold, float factor);
};

namespace baseline {
extern const DropoutLoops kDropoutLoops;
}
namespace avx2 {
extern const DropoutLoops kDropoutLoops;
}
namespace avx512 {
extern const DropoutLoops kDropoutLoops;
}

}  // namespace muster::kernels
