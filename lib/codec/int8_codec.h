// Quantises to 8-bit integers with one scale per block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "lib/codec/codec.h"

namespace muster {

// A payload is f32 scales[B], then i8 codes[n], for n elements in B blocks of 256 (the last may be
// shorter).
// Element = its block's scale * code. The scale is the block's largest magnitude / 127, and codes
// are rounded to nearest, so an element is off by at most half a scale. A block entirely below
// 2^-120 has scale 0 and codes 0. A block that is not finite has the scale NaN.
inline constexpr int64_t kInt8Block = 256;

int64_t Int8Bytes(int64_t elements);

std::unique_ptr<ChunkEncoder> MakeInt8Encoder(const WireFormat& format);

// Returns INVALID_ARGUMENT for a code of -128, and for a scale that is negative, infinite or a
// different NaN.
absl::Status DecodeInt8(const WireFormat& format, const std::byte* payload, float* gradient);

}  // namespace muster
