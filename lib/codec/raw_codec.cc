#include "lib/codec/raw_codec.h"

#include <cstdint>
#include <cstring>

#include "glog/logging.h"
#include "kernels/cpu/conversion_loops.h"
#include "kernels/cpu/simd_level.h"

namespace muster {
namespace {

const kernels::ConversionLoops& Conversions() {
  return kernels::ForThisProcessor(kernels::baseline::kConversionLoops,
                                   kernels::avx2::kConversionLoops,
                                   kernels::avx512::kConversionLoops);
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
        return Conversions().f32_to_finite_f16(halves, gradient.data(), n);
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
