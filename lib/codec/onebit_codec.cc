#include "lib/codec/onebit_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/codec/feedback_encoder.h"

namespace muster {
namespace {

struct Means {
  float positive;
  float negative;
};

int64_t OneBitBlocks(int64_t elements) { return (elements + kOneBitBlock - 1) / kOneBitBlock; }
int64_t BitBytes(int64_t elements) { return (elements + 7) / 8; }

Means MeansOf(const kernels::SignSums& sums, int64_t n) {
  const int64_t positives = n - sums.negatives;
  return {.positive = positives == 0 ? 0 : sums.positive / static_cast<float>(positives),
          .negative = sums.negatives == 0 ? 0 : sums.negative / static_cast<float>(sums.negatives)};
}

class OneBitEncoder final : public FeedbackEncoder {
 public:
  using FeedbackEncoder::FeedbackEncoder;

 private:
  bool Pack(const float* gradient, float* sum, std::byte* payload) override {
    Means* means = reinterpret_cast<Means*>(payload);
    uint8_t* bits = reinterpret_cast<uint8_t*>(means + OneBitBlocks(format().elements));
    bool finite = true;
    for (int64_t at = 0; at < format().elements; at += kOneBitBlock) {
      const int64_t n = std::min(kOneBitBlock, format().elements - at);
      Loops().accumulate(sum + at, gradient + at, n);
      Means& mean = means[at / kOneBitBlock];
      mean = MeansOf(Loops().sum_signs(sum + at, n), n);
      if (!std::isfinite(mean.positive) || !std::isfinite(mean.negative)) {
        mean = {.positive = kNotANumber, .negative = kNotANumber};
        finite = false;
      }
      Loops().pack_signs(bits + at / 8, sum + at, mean.positive, mean.negative, n);
    }
    return finite;
  }
};

}  // namespace

int64_t OneBitBytes(int64_t elements) {
  return OneBitBlocks(elements) * sizeof(Means) + BitBytes(elements);
}

std::unique_ptr<ChunkEncoder> MakeOneBitEncoder(const WireFormat& format) {
  return std::make_unique<OneBitEncoder>(format);
}

absl::Status DecodeOneBit(const WireFormat& format, const std::byte* payload, float* gradient) {
  const int64_t elements = format.elements;
  const Means* means = reinterpret_cast<const Means*>(payload);
  const uint8_t* bits = reinterpret_cast<const uint8_t*>(means + OneBitBlocks(elements));
  if (elements % 8 != 0 && bits[BitBytes(elements) - 1] >> elements % 8 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("onebit: a bit is set beyond ", elements, " elements"));
  }
  for (int64_t at = 0; at < elements; at += kOneBitBlock) {
    const int64_t n = std::min(kOneBitBlock, elements - at);
    const Means& mean = means[at / kOneBitBlock];
    if (mean.positive < 0 || mean.negative > 0 || !IsNumberOrTheNan(mean.positive) ||
        !IsNumberOrTheNan(mean.negative)) {
      return absl::InvalidArgumentError(absl::StrCat("onebit: block ", at / kOneBitBlock,
                                                     " has the means ", mean.positive, " and ",
                                                     mean.negative));
    }
    Loops().unpack_signs(gradient + at, bits + at / 8, mean.positive, mean.negative, n);
  }
  return absl::OkStatus();
}

}  // namespace muster
