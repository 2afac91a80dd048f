#include "lib/data/order/permutation.h"

#include <algorithm>
#include <array>
#include <bit>

#include "glog/logging.h"
#include "kernels/cpu/simd_level.h"
#include "kernels/philox.h"
#include "lib/data/order/feistel_loops.h"

namespace muster {
namespace kernels {
namespace baseline {
extern const FeistelLoops kFeistelLoops;
}
namespace avx2 {
extern const FeistelLoops kFeistelLoops;
}
namespace avx512 {
extern const FeistelLoops kFeistelLoops;
}
}  // namespace kernels
namespace {

// Four rounds are enough for large domains. Small domains mix slowly, and two more rounds cost only
// nanoseconds.
constexpr uint64_t kFeistelRounds = 6;

// Values that Permute() computes side by side.
constexpr int64_t kAtOnce = 64;

const kernels::FeistelLoops& Loops() {
  static const kernels::FeistelLoops& loops =
      kernels::ForThisProcessor(kernels::baseline::kFeistelLoops, kernels::avx2::kFeistelLoops,
                                kernels::avx512::kFeistelLoops);
  return loops;
}

// The network permutes [0, 4^half_bits), which is less than 4 n. Repeating it until the value is
// below n takes fewer than four rounds on average, and permutes [0, n).
int HalfBits(int64_t n) { return (std::bit_width(static_cast<uint64_t>(n - 1)) + 1) / 2; }

}  // namespace

int64_t Permuted(uint64_t seed, uint64_t stream, int64_t n, int64_t i) {
  CHECK(0 <= i && i < n) << "element " << i << " of " << n;
  const int half_bits = HalfBits(n);
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t x = i;
  do {
    uint64_t left = x >> half_bits, right = x & mask;
    for (uint64_t round = 0; round < kFeistelRounds; ++round) {
      const uint64_t mixed = kernels::RandomWords(seed, stream, round << 32 | right)[0];
      const uint64_t next = left ^ (mixed & mask);
      left = right;
      right = next;
    }
    x = left << half_bits | right;
  } while (x >= static_cast<uint64_t>(n));
  return x;
}

void Permute(uint64_t seed, uint64_t stream, int64_t n, absl::Span<int64_t> elements) {
  const int half_bits = HalfBits(n);
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  const kernels::FeistelKey key{seed, stream, mask, kFeistelRounds};
  std::array<uint64_t, kAtOnce> left, right;
  std::array<int64_t*, kAtOnce> to;
  for (; !elements.empty(); elements.remove_prefix(std::min<size_t>(kAtOnce, elements.size()))) {
    int64_t count = 0;
    for (int64_t& element : elements.first(std::min<size_t>(kAtOnce, elements.size()))) {
      CHECK(0 <= element && element < n) << "element " << element << " of " << n;
      left[count] = static_cast<uint64_t>(element) >> half_bits;
      right[count] = static_cast<uint64_t>(element) & mask;
      to[count++] = &element;
    }
    while (count > 0) {
      Loops().apply(left.data(), right.data(), count, key);
      // Values that are not below n move to the front and go through the network again.
      int64_t again = 0;
      for (int64_t i = 0; i < count; ++i) {
        const uint64_t x = left[i] << half_bits | right[i];
        *to[i] = static_cast<int64_t>(x);
        left[again] = left[i], right[again] = right[i], to[again] = to[i];
        again += x >= static_cast<uint64_t>(n) ? 1 : 0;
      }
      count = again;
    }
  }
}

}  // namespace muster
