// CRC-32C (Castagnoli, RFC 3720 appendix B.4) for wire headers and checkpoint slices.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace muster {

// Returns the checksum of all bytes up to the end of `bytes`: `seed` is that of the bytes before, 0
// if there are none. Uses the processor's CRC instruction if it has one.
uint32_t Crc32c(absl::Span<const std::byte> bytes, uint32_t seed = 0);

// Computes the same value without the instruction. For other processors, and for comparison in the
// test.
uint32_t Crc32cByTable(absl::Span<const std::byte> bytes, uint32_t seed = 0);

}  // namespace muster
