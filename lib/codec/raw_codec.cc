#include "lib/codec/raw_codec.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "glog/logging.h"
#include "kernels/cpu/conversion_loops.h"
#include "kernels/cpu/simd_level.h"
#include "lib/codec/codec_loops.h"
#include "lib/codec/feedback_encoder.h"

namespace muster {
namespace {

constexpr int64_t kBlock = 1024;  // of floats on their way to f16

const kernels::ConversionLoops& Conversions() {
  return kernels::ForThisProcessor(kernels::baseline::kConversionLoops,
                                   kernels::avx2::kConversionLoops,
                                   kernels::avx512::kConversionLoops);
}

void EncodeF16(uint16_t* halves, const float* x, int64_t n) {
  float clamped[kBlock];
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t count = std::min(kBlock, n - i);
    Loops().clamp_to_f16(clamped, x + i, count);
    Conversions().f32_to_f16(halves + i, clamped, count);
  }
}

class RawEncoder : public ChunkEncoder {
 public:
  explicit RawEncoder(const WireFormat& format) : format_(format) {}

  void Encode(absl::Span<const float> gradient, absl::Span<std::byte> payload) override {
    CHECK_EQ(gradient.size(), format_.elements);
    CHECK_EQ(payload.size(), format_.bytes);
    const int64_t n = format_.elements;
    uint16_t* halves = reinterpret_cast<uint16_t*>(payload.data());
    switch (format_.dtype) {
      case WireDType::kF32:
        std::memcpy(payload.data(), gradient.data(), n * sizeof(float));
        return;
      case WireDType::kF16:
        return EncodeF16(halves, gradient.data(), n);
      case WireDType::kBf16:
        return Conversions().f32_to_bf16(halves, gradient.data(), n);
      case WireDType::kNone:
        break;
    }
    LOG(FATAL) << "raw elements have a type";
  }

  int64_t state_bytes() const override { return 0; }

 private:
  const WireFormat format_;
};

}  // namespace

std::unique_ptr<ChunkEncoder> MakeRawEncoder(const WireFormat& format) {
  return std::make_unique<RawEncoder>(format);
}

void DecodeRaw(const WireFormat& format, const std::byte* payload, float* gradient) {
  const int64_t n = format.elements;
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(payload);
  switch (format.dtype) {
    case WireDType::kF32:
      std::memcpy(gradient, payload, n * sizeof(float));
      return;
    case WireDType::kF16:
      return Conversions().f16_to_f32(gradient, halves, n);
    case WireDType::kBf16:
      return Conversions().bf16_to_f32(gradient, halves, n);
    case WireDType::kNone:
      break;
  }
  LOG(FATAL) << "raw elements have a type";
}

}  // namespace muster
