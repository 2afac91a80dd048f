#include "lib/data/order/permutation.h"

#include <bit>

#include "glog/logging.h"
#include "kernels/philox.h"

namespace muster {
namespace {

// Four rounds are enough for large domains. Small domains mix slowly, and two more rounds cost only
// nanoseconds.
constexpr int kFeistelRounds = 6;

}  // namespace

int64_t Permuted(uint64_t seed, uint64_t stream, int64_t n, int64_t i) {
  CHECK(0 <= i && i < n) << "element " << i << " of " << n;
  // The network permutes [0, 4^half_bits), which is less than 4 n. Repeating it until the value is
  // below n takes fewer than four rounds on average, and permutes [0, n).
  const int half_bits = (std::bit_width(static_cast<uint64_t>(n - 1)) + 1) / 2;
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

}  // namespace muster
