// CRC-32C (Castagnoli, RFC 3720 appendix B.4): of wire headers and of checkpoint slices.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace muster {

// `seed`: the value of the bytes before, 0 to begin. Uses the processor's instruction where there
// is one.
uint32_t Crc32c(absl::Span<const std::byte> bytes, uint32_t seed = 0);

// The same without the instruction: what other processors run, and what the test compares with.
uint32_t Crc32cByTable(absl::Span<const std::byte> bytes, uint32_t seed = 0);

}  // namespace muster
