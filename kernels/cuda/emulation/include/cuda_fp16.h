#pragma once

#include <math.h>

#include <bit>
#include <cstdint>

struct __half {
  uint16_t bits;
};

inline unsigned short __half_as_ushort(__half x) { return x.bits; }
inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
inline float __half2float(__half x) {
  const int exponent = x.bits >> 10 & 31, fraction = x.bits & 1023;
  float magnitude = ldexpf(static_cast<float>(fraction), -24);
  if (exponent == 31) magnitude = fraction == 0 ? INFINITY : NAN;
  if (exponent > 0 && exponent < 31) {
    magnitude = ldexpf(static_cast<float>(1024 + fraction), exponent - 25);
  }
  return (x.bits & 0x8000) != 0 ? -magnitude : magnitude;
}
inline __half __float2half_rn(float x) {
  if (x != x) return {0x7fff};
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  uint32_t rounded = 0x7c00;     // infinity
  if (magnitude < 0x38800000) {  // subnormal: a multiple of 2^-24
    rounded = static_cast<uint32_t>(nearbyintf(fabsf(x) * 0x1p24f));
  } else if (magnitude < 0x477ff000) {
    rounded = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
  }
  return {static_cast<uint16_t>(sign | rounded)};
}
inline __half __float2half(float x) { return __float2half_rn(x); }
