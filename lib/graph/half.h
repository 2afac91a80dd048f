// Converts elements of 16 bits to floats. For files; kernels/conversion.h is faster.
#pragma once

#include <bit>
#include <cstdint>

namespace muster {

inline float FromBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

inline float FromHalf(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const int exponent = (half >> 10) & 31;
  const uint32_t fraction = half & 0x3ff;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | fraction << 13);
  if (exponent > 0) {
    return std::bit_cast<float>(sign | static_cast<uint32_t>(exponent + 112) << 23 |
                                fraction << 13);
  }
  const float magnitude = static_cast<float>(fraction) / 16777216.0f;
  return sign != 0 ? -magnitude : magnitude;
}

}  // namespace muster
