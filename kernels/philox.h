// Counter-based random numbers: number i of a stream is a pure function of (key, i).
//   Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011
//   (Philox4x32-10).
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace muster::kernels {

inline std::array<uint32_t, 4> Philox(std::array<uint32_t, 4> counter,
                                      std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// Returns number `index` of stream `stream` of `seed`: four independent 32-bit words.
inline std::array<uint32_t, 4> RandomWords(uint64_t seed, uint64_t stream, uint64_t index) {
  return Philox({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                 static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
                {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

// Returns a uniform number in [0, 1), made of the top 24 bits.
inline float UnitUniform(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

// Returns a standard normal number, made of two words. Source: Box and Muller, Ann. Math. Statist.
// 29(2), 1958. It is computed in double, so that the value does not depend on how the compiler
// vectorises.
inline double StandardNormal(uint32_t a, uint32_t b) {
  const double u = (a + 0.5) * 0x1p-32;
  const double v = b * 0x1p-32;
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
}

}  // namespace muster::kernels
