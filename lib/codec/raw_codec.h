// Sends elements uncompressed, in f32, f16 or bf16.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/types/span.h"
#include "lib/codec/codec.h"

namespace muster {

// Rounds to f16 and bf16 to nearest, ties to even. A finite number beyond f16's range becomes f16's
// largest: the norm of a step decides whether it is too large, not the range of the wire format.
// Holds no state.
std::unique_ptr<ChunkEncoder> MakeRawEncoder(const WireFormat& format);

// Decodes `payload`. Never fails: any bytes decode to a gradient.
void DecodeRaw(const WireFormat& format, const std::byte* payload, float* gradient);

}  // namespace muster
