#include "lib/codec/int8_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/codec/feedback_encoder.h"

namespace muster {
namespace {

constexpr float kLargestCode = 127;
constexpr uint32_t kSmallestScaled = 0x03800000;  // 2^-120: the inverse of its scale is finite

int64_t Int8Blocks(int64_t elements) { return (elements + kInt8Block - 1) / kInt8Block; }

class Int8Encoder final : public FeedbackEncoder {
 public:
  using FeedbackEncoder::FeedbackEncoder;

 private:
  bool Pack(const float* gradient, float* sum, std::byte* payload) override {
    float* scales = reinterpret_cast<float*>(payload);
    int8_t* codes = reinterpret_cast<int8_t*>(scales + Int8Blocks(format().elements));
    bool finite = true;
    for (int64_t at = 0; at < format().elements; at += kInt8Block) {
      const int64_t n = std::min(kInt8Block, format().elements - at);
      const uint32_t most = Loops().accumulate(sum + at, gradient + at, n);
      float& scale = scales[at / kInt8Block];
      if (most >= kSmallestScaled && most < kNotFinite) {
        const float largest = std::bit_cast<float>(most);
        scale = largest / kLargestCode;
        Loops().quantise(codes + at, sum + at, kLargestCode / largest, scale, n);
      } else {
        finite = finite && most < kNotFinite;
        scale = most < kNotFinite ? 0 : kNotANumber;
        std::memset(codes + at, 0, n);
      }
    }
    return finite;
  }
};

}  // namespace

int64_t Int8Bytes(int64_t elements) { return Int8Blocks(elements) * sizeof(float) + elements; }

std::unique_ptr<ChunkEncoder> MakeInt8Encoder(const WireFormat& format) {
  return std::make_unique<Int8Encoder>(format);
}

absl::Status DecodeInt8(const WireFormat& format, const std::byte* payload, float* gradient) {
  const float* scales = reinterpret_cast<const float*>(payload);
  const int8_t* codes = reinterpret_cast<const int8_t*>(scales + Int8Blocks(format.elements));
  for (int64_t at = 0; at < format.elements; at += kInt8Block) {
    const int64_t n = std::min(kInt8Block, format.elements - at);
    const float scale = scales[at / kInt8Block];
    if (std::signbit(scale) || !IsNumberOrTheNan(scale)) {
      return absl::InvalidArgumentError(
          absl::StrCat("int8: block ", at / kInt8Block, " has the scale ", scale));
    }
    if (!Loops().dequantise(gradient + at, codes + at, scale, n)) {
      return absl::InvalidArgumentError(
          absl::StrCat("int8: block ", at / kInt8Block, " has the code -128"));
    }
  }
  return absl::OkStatus();
}

}  // namespace muster
