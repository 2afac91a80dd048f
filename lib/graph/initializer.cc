#include "lib/graph/initializer.h"

#include <algorithm>
#include <array>

#include "kernels/philox.h"

namespace muster {
namespace {

// Marks the random streams of initial values, so that they differ from streams for other purposes
// with the same seed.
constexpr uint64_t kPurpose = uint64_t{0x696E6974} << 32;

// Sets element i to `make(words of block i / kPerBlock, i % kPerBlock)`.
template <int kPerBlock, typename Make>
void FillBlocks(uint64_t seed, int index, int64_t offset, absl::Span<float> values, Make make) {
  const uint64_t stream = kPurpose | static_cast<uint32_t>(index);
  int64_t block = offset / kPerBlock;
  int lane = offset % kPerBlock;
  for (auto value = values.begin(); value != values.end(); ++block, lane = 0) {
    const std::array<uint32_t, 4> words = kernels::RandomWords(seed, stream, block);
    for (; lane < kPerBlock && value != values.end(); ++lane) *value++ = make(words, lane);
  }
}

}  // namespace

void FillInitialValues(const v1::Initializer& initializer, uint64_t seed, int index, int64_t offset,
                       absl::Span<float> values) {
  switch (initializer.kind_case()) {
    case v1::Initializer::kNormal: {
      const double deviation = initializer.normal();
      FillBlocks<2>(
          seed, index, offset, values, [=](const std::array<uint32_t, 4>& words, int lane) {
            return static_cast<float>(
                deviation * kernels::StandardNormal(words[2 * lane], words[2 * lane + 1]));
          });
      return;
    }
    case v1::Initializer::kUniform: {
      const double half_width = initializer.uniform();
      FillBlocks<4>(
          seed, index, offset, values, [=](const std::array<uint32_t, 4>& words, int lane) {
            return static_cast<float>(half_width * (2.0 * kernels::UnitUniform(words[lane]) - 1));
          });
      return;
    }
    case v1::Initializer::kConstant:
    case v1::Initializer::KIND_NOT_SET:
      std::ranges::fill(values, static_cast<float>(initializer.constant()));
      return;
  }
}

}  // namespace muster
