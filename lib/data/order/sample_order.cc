#include "lib/data/order/sample_order.h"

#include <bit>

#include "glog/logging.h"
#include "kernels/philox.h"
#include "lib/data/order/random_stream.h"

namespace muster {
namespace {

// Four rounds are enough for large domains. Small domains mix slowly, and two more rounds cost only
// nanoseconds.
constexpr int kFeistelRounds = 6;

}  // namespace

int64_t PermutedSample(uint64_t seed, int64_t epoch, int64_t n, int64_t i) {
  CHECK(0 <= i && i < n) << "sample " << i << " of " << n;
  // The network permutes [0, 4^half_bits), which is less than 4 n. Repeating it until the value is
  // below n takes fewer than four rounds on average, and permutes [0, n).
  const int half_bits = (std::bit_width(static_cast<uint64_t>(n - 1)) + 1) / 2;
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  const uint64_t stream = StreamOf(RandomStream::kSampleOrder, epoch);
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

std::vector<SampleRef> SamplesOf(int64_t epoch, absl::Span<const int64_t> samples) {
  std::vector<SampleRef> refs;
  refs.reserve(samples.size());
  for (const int64_t sample : samples) refs.push_back({epoch, sample});
  return refs;
}

std::vector<SampleRef> SamplesOfStep(uint64_t seed, int64_t samples, int64_t batch_size,
                                     int64_t step, int64_t first_position, int64_t count) {
  CHECK(1 <= batch_size && batch_size <= samples)
      << "batch of " << batch_size << ", " << samples << " samples";
  CHECK_GE(step, 0);
  CHECK(0 <= first_position && 0 <= count && count <= batch_size - first_position)
      << "positions " << first_position << " + " << count << " of " << batch_size;
  const int64_t steps_per_epoch = samples / batch_size;
  const int64_t epoch = step / steps_per_epoch;
  std::vector<SampleRef> refs;
  refs.reserve(count);
  const int64_t first = step % steps_per_epoch * batch_size + first_position;
  for (int64_t i = first; i < first + count; ++i) {
    refs.push_back({epoch, PermutedSample(seed, epoch, samples, i)});
  }
  return refs;
}

}  // namespace muster
