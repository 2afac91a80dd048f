#include "kernels/dropout.h"

#include <algorithm>

#include "kernels/cpu/dropout_loops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd_level.h"
#include "kernels/philox.h"

namespace muster::kernels {
namespace {

constexpr int64_t kGrain = 1 << 12;  // a multiple of 4, the words of one Philox call

}  // namespace

void Dropout(float* y, const float* x, int64_t n, int64_t first_element, float rate,
             const DropoutKey& key) {
  const auto dropout =
      ForThisProcessor(baseline::kDropoutLoops, avx2::kDropoutLoops, avx512::kDropoutLoops).dropout;
  const uint32_t threshold = DropoutThreshold(rate);
  const float factor = 1.0f / (1.0f - rate);
  const uint64_t stream = DropoutStream(key);
  // Handles the elements before the first one that begins a Philox call.
  const int64_t head = std::min(n, (4 - first_element % 4) % 4);
  for (int64_t i = 0; i < head; ++i) {
    const int64_t element = first_element + i;
    const uint32_t word = RandomWords(key.seed, stream, element / 4)[element % 4];
    y[i] = word >> 8 >= threshold ? x[i] * factor : 0.0f;
  }
  const uint64_t first_index = (first_element + head) / 4;
  ParallelFor(n - head, kGrain, [=](int64_t begin, int64_t end) {
    dropout(y + head + begin, x + head + begin, end - begin, key.seed, stream,
            first_index + begin / 4, threshold, factor);
  });
}

}  // namespace muster::kernels
