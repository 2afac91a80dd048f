// Elements as they are, in f32, f16 or bf16.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/types/span.h"
#include "lib/codec/codec.h"

namespace muster {

// To f16 and bf16 to the nearest, ties to even. Finite numbers beyond f16 become its largest:
// a step is judged by its norm, not by the range of the wire. Holds no state.
std::unique_ptr<ChunkEncoder> MakeRawEncoder(const WireFormat& format);

// Any bytes are some gradient.
void DecodeRaw(const WireFormat& format, const std::byte* payload, float* gradient);

}  // namespace muster
