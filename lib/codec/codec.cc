#include "lib/codec/codec.h"

#include <bit>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "lib/codec/int8_codec.h"
#include "lib/codec/onebit_codec.h"
#include "lib/codec/powersgd_codec.h"
#include "lib/codec/raw_codec.h"
#include "lib/codec/topk_codec.h"

namespace muster {

static_assert(std::endian::native == std::endian::little, "payloads are little-endian");

std::unique_ptr<ChunkEncoder> ChunkEncoder::Create(const WireFormat& format, uint64_t seed) {
  switch (format.codec) {
    case WireCodec::kRaw:
      return MakeRawEncoder(format);
    case WireCodec::kInt8:
      return MakeInt8Encoder(format);
    case WireCodec::kTopK:
      return MakeTopKEncoder(format);
    case WireCodec::kOneBit:
      return MakeOneBitEncoder(format);
    case WireCodec::kPowerSgd:
      return MakePowerSgdEncoder(format, seed);
  }
  LOG(FATAL) << "unknown codec " << static_cast<int>(format.codec);
}

absl::Status Decode(const WireFormat& format, absl::Span<const std::byte> payload,
                    absl::Span<float> gradient) {
  CHECK_EQ(gradient.size(), format.elements);
  if (payload.size() != format.bytes) {
    return absl::InvalidArgumentError(absl::StrCat("a gradient of ", format.elements,
                                                   " elements takes ", format.bytes,
                                                   " bytes, the payload has ", payload.size()));
  }
  switch (format.codec) {
    case WireCodec::kRaw:
      DecodeRaw(format, payload.data(), gradient.data());
      return absl::OkStatus();
    case WireCodec::kInt8:
      return DecodeInt8(format, payload.data(), gradient.data());
    case WireCodec::kTopK:
      return DecodeTopK(format, payload.data(), gradient.data());
    case WireCodec::kOneBit:
      return DecodeOneBit(format, payload.data(), gradient.data());
    case WireCodec::kPowerSgd:
      DecodePowerSgd(format, payload.data(), gradient.data());
      return absl::OkStatus();
  }
  LOG(FATAL) << "unknown codec " << static_cast<int>(format.codec);
}

}  // namespace muster
