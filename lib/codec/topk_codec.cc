#include "lib/codec/topk_codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "lib/codec/feedback_encoder.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int64_t kSamples = 4096;
constexpr int64_t kCandidatesMin = 2 * kSamples;

int64_t TopKBlocks(int64_t elements) { return (elements + kTopKBlock - 1) / kTopKBlock; }

uint32_t MagnitudeOf(float x) { return std::bit_cast<uint32_t>(x) & 0x7FFFFFFF; }

// Requires: x is finite and does not round to infinity.
uint16_t ToBf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

float FromBf16(uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); }

const uint16_t kBf16NotANumber = std::bit_cast<uint32_t>(kNotANumber) >> 16;

// The three parts of a payload.
template <typename Byte, typename U32, typename U16>
struct Parts {
  Parts(const WireFormat& format, Byte* payload)
      : counts(reinterpret_cast<U32*>(payload)),
        positions(reinterpret_cast<U16*>(counts + TopKBlocks(format.elements))),
        values(positions + format.kept) {}

  U32* counts;
  U16* positions;
  U16* values;
};
using PartsToWrite = Parts<std::byte, uint32_t, uint16_t>;
using PartsToRead = Parts<const std::byte, const uint32_t, const uint16_t>;

// Defines the k largest elements: all above `magnitude`, and the first `ties` that equal it.
struct Threshold {
  uint32_t magnitude;
  int64_t ties;
};

// Finds the threshold of n elements. Sorts only the elements above a floor, chosen by a sample so
// that a little more than k remain. If the sample misleads (many equal elements), counts digits
// instead.
class ThresholdSearch {
 public:
  ThresholdSearch(int64_t elements, int64_t kept)
      : elements_(elements),
        kept_(kept),
        candidates_(std::min(elements, std::max(4 * kept, kCandidatesMin))) {}

  Threshold Find(const float* x) {
    const int64_t capacity = candidates_.size();
    const uint32_t floor = capacity == elements_ ? 0 : Floor(x);
    const int64_t count =
        Loops().collect_magnitudes(candidates_.data(), x, floor, capacity, elements_);
    if (count < kept_ || count > capacity) return CountDigits(x);
    const uint32_t magnitude = KthLargest(count, kept_);
    const int64_t above = std::count_if(candidates_.begin(), candidates_.begin() + kept_,
                                        [=](uint32_t candidate) { return candidate > magnitude; });
    return {.magnitude = magnitude, .ties = kept_ - above};
  }

  // Room for at least `kept` numbers. Find() overwrites it.
  uint32_t* scratch() { return candidates_.data(); }
  int64_t bytes() const { return candidates_.size() * sizeof(uint32_t); }

 private:
  // Returns the k-th largest of the first `count` candidates. Reorders them: the k largest come
  // first.
  uint32_t KthLargest(int64_t count, int64_t k) {
    const auto kth = candidates_.begin() + k - 1;
    std::nth_element(candidates_.begin(), kth, candidates_.begin() + count, std::greater<>());
    return *kth;
  }

  // Returns a floor three standard deviations below the sample's estimate of the k-th largest.
  uint32_t Floor(const float* x) {
    for (int64_t i = 0; i < kSamples; ++i) {
      // Weyl's sequence samples evenly and does not align with any row length.
      const uint64_t fraction = static_cast<uint32_t>(i * 0x9E3779B9u);
      candidates_[i] = MagnitudeOf(x[fraction * static_cast<uint64_t>(elements_) >> 32]);
    }
    const double expected = static_cast<double>(kSamples) * kept_ / elements_;
    const int64_t rank = static_cast<int64_t>(expected + 3 * std::sqrt(expected) + 2);
    return KthLargest(kSamples, std::min(rank, kSamples));
  }

  // Finds the threshold by radix selection: 11, 10 and 10 bits at a time, from the top.
  Threshold CountDigits(const float* x) {
    uint32_t prefix = 0, prefix_mask = 0;
    int64_t rank = kept_;  // rank among the elements with the prefix
    for (const int shift : {20, 10, 0}) {
      const uint32_t digit_mask = shift == 20 ? 0x7FF : 0x3FF;
      counts_.fill(0);
      for (int64_t i = 0; i < elements_; ++i) {
        const uint32_t magnitude = MagnitudeOf(x[i]);
        if ((magnitude & prefix_mask) == prefix) ++counts_[magnitude >> shift & digit_mask];
      }
      uint32_t digit = digit_mask;
      for (; counts_[digit] < rank; --digit) rank -= counts_[digit];
      prefix |= digit << shift;
      prefix_mask |= digit_mask << shift;
    }
    return {.magnitude = prefix, .ties = rank};
  }

  const int64_t elements_;
  const int64_t kept_;
  std::vector<uint32_t> candidates_;
  std::array<int64_t, 2048> counts_;  // used by CountDigits()
};

class TopKEncoder final : public FeedbackEncoder {
 public:
  explicit TopKEncoder(const WireFormat& format)
      : FeedbackEncoder(format), search_(format.elements, format.kept) {}

  int64_t state_bytes() const override { return FeedbackEncoder::state_bytes() + search_.bytes(); }

 private:
  bool Pack(const float* gradient, float* sum, std::byte* payload) override {
    const PartsToWrite parts(format(), payload);
    const bool finite = Loops().accumulate(sum, gradient, format().elements) < kNotFinite;
    std::fill_n(parts.counts, TopKBlocks(format().elements), 0);
    const uint32_t* indices = Select(sum);
    for (int64_t i = 0; i < format().kept; ++i) {
      float& element = sum[indices[i]];
      ++parts.counts[indices[i] / kTopKBlock];
      parts.positions[i] = static_cast<uint16_t>(indices[i] % kTopKBlock);
      parts.values[i] = finite ? ToBf16(element) : kBf16NotANumber;
      element -= FromBf16(parts.values[i]);
    }
    return finite;
  }

  // Returns the ascending indices of the elements to keep.
  const uint32_t* Select(const float* sum) {
    const Threshold threshold = search_.Find(sum);
    uint32_t* indices = search_.scratch();
    const int64_t count = Loops().select_indices(indices, sum, threshold.magnitude, threshold.ties,
                                                 format().elements);
    CHECK_EQ(count, format().kept);
    return indices;
  }

  ThresholdSearch search_;
};

absl::Status Refused(int64_t block, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("topk: block ", block, " has ", what));
}

// Decodes the elements of one block, from part i on.
absl::Status DecodeBlock(const PartsToRead& parts, int64_t block, int64_t i, int64_t n,
                         float* gradient) {
  int64_t last = -1;
  for (const int64_t end = i + parts.counts[block]; i < end; ++i) {
    const int64_t position = parts.positions[i];
    const float value = FromBf16(parts.values[i]);
    if (position <= last || position >= n) {
      return Refused(block, absl::StrCat("position ", position, " after ", last, ", of ", n));
    }
    if (!IsNumberOrTheNan(value)) return Refused(block, "a value that is not finite");
    gradient[position] = value;
    last = position;
  }
  return absl::OkStatus();
}

}  // namespace

int64_t TopKBytes(int64_t elements, int64_t kept) {
  return TopKBlocks(elements) * sizeof(uint32_t) + kept * 2 * sizeof(uint16_t);
}

int64_t KeptElements(double ratio, int64_t elements) {
  return std::clamp<int64_t>(std::llround(ratio * static_cast<double>(elements)), 1, elements);
}

std::unique_ptr<ChunkEncoder> MakeTopKEncoder(const WireFormat& format) {
  return std::make_unique<TopKEncoder>(format);
}

absl::Status DecodeTopK(const WireFormat& format, const std::byte* payload, float* gradient) {
  const PartsToRead parts(format, payload);
  std::fill_n(gradient, format.elements, 0.0f);
  int64_t done = 0;
  for (int64_t block = 0; block < TopKBlocks(format.elements); ++block) {
    const int64_t begin = block * kTopKBlock;
    const int64_t n = std::min(kTopKBlock, format.elements - begin);
    const int64_t count = parts.counts[block];
    if (count > n || count > format.kept - done) {
      return Refused(block, absl::StrCat(count, " elements, of ", format.kept - done, " left"));
    }
    RETURN_IF_ERROR(DecodeBlock(parts, block, done, n, gradient + begin));
    done += count;
  }
  if (done == format.kept) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("topk: ", done, " elements instead of ", format.kept));
}

}  // namespace muster
