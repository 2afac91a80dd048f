// This code derives from FarmHash (farmhashna::Hash64). Its license is farm_fingerprint.LICENSE.
#include "lib/data/format/farm_fingerprint.h"

#include <bit>
#include <cstddef>
#include <cstring>
#include <utility>

namespace muster {
namespace {

constexpr uint64_t kPrime0 = 0xc3a5c85c97cb3127;
constexpr uint64_t kPrime1 = 0xb492b66fbe98f273;
constexpr uint64_t kPrime2 = 0x9ae16a3b2f90404f;

uint64_t Fetch64(const char* at) {
  uint64_t value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

uint64_t Fetch32(const char* at) {
  uint32_t value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

uint64_t ShiftMix(uint64_t value) { return value ^ (value >> 47); }

uint64_t HashPair(uint64_t u, uint64_t v, uint64_t multiplier) {
  const uint64_t a = ShiftMix((u ^ v) * multiplier);
  return ShiftMix((v ^ a) * multiplier) * multiplier;
}

uint64_t HashUpTo16(const char* s, size_t length) {
  if (length >= 8) {
    const uint64_t multiplier = kPrime2 + length * 2;
    const uint64_t a = Fetch64(s) + kPrime2, b = Fetch64(s + length - 8);
    const uint64_t c = std::rotr(b, 37) * multiplier + a;
    const uint64_t d = (std::rotr(a, 25) + b) * multiplier;
    return HashPair(c, d, multiplier);
  }
  if (length >= 4) {
    const uint64_t multiplier = kPrime2 + length * 2;
    return HashPair(length + (Fetch32(s) << 3), Fetch32(s + length - 4), multiplier);
  }
  if (length == 0) return kPrime2;
  const auto first = static_cast<uint8_t>(s[0]), middle = static_cast<uint8_t>(s[length >> 1]),
             last = static_cast<uint8_t>(s[length - 1]);
  const uint32_t y = first + (uint32_t{middle} << 8);
  const uint32_t z = static_cast<uint32_t>(length) + (uint32_t{last} << 2);
  return ShiftMix(y * kPrime2 ^ z * kPrime0) * kPrime2;
}

uint64_t HashUpTo32(const char* s, size_t length) {
  const uint64_t multiplier = kPrime2 + length * 2;
  const uint64_t a = Fetch64(s) * kPrime1, b = Fetch64(s + 8);
  const uint64_t c = Fetch64(s + length - 8) * multiplier;
  const uint64_t d = Fetch64(s + length - 16) * kPrime2;
  return HashPair(std::rotr(a + b, 43) + std::rotr(c, 30) + d, a + std::rotr(b + kPrime2, 18) + c,
                  multiplier);
}

uint64_t HashUpTo64(const char* s, size_t length) {
  const uint64_t multiplier = kPrime2 + length * 2;
  const uint64_t a = Fetch64(s) * kPrime2, b = Fetch64(s + 8);
  const uint64_t c = Fetch64(s + length - 8) * multiplier;
  const uint64_t d = Fetch64(s + length - 16) * kPrime2;
  const uint64_t y = std::rotr(a + b, 43) + std::rotr(c, 30) + d;
  const uint64_t z = HashPair(y, a + std::rotr(b + kPrime2, 18) + c, multiplier);
  const uint64_t e = Fetch64(s + 16) * multiplier, f = Fetch64(s + 24);
  const uint64_t g = (y + Fetch64(s + length - 32)) * multiplier;
  const uint64_t h = (z + Fetch64(s + length - 24)) * multiplier;
  return HashPair(std::rotr(e + f, 43) + std::rotr(g, 30) + h, e + std::rotr(f + a, 18) + g,
                  multiplier);
}

using Pair = std::pair<uint64_t, uint64_t>;

Pair Hash32Bytes(const char* s, uint64_t a, uint64_t b) {
  const uint64_t z = Fetch64(s + 24);
  a += Fetch64(s);
  b = std::rotr(b + a + z, 21);
  const uint64_t c = a;
  a += Fetch64(s + 8);
  a += Fetch64(s + 16);
  return {a + z, b + std::rotr(a, 44) + c};
}

}  // namespace

uint64_t FarmFingerprint(absl::string_view text) {
  const char* s = text.data();
  const size_t length = text.size();
  if (length <= 16) return HashUpTo16(s, length);
  if (length <= 32) return HashUpTo32(s, length);
  if (length <= 64) return HashUpTo64(s, length);

  // Mixes 64 bytes in each round; the last round takes the last 64 bytes.
  constexpr uint64_t kSeed = 81;
  uint64_t x = kSeed;
  uint64_t y = kSeed * kPrime1 + 113;
  uint64_t z = ShiftMix(y * kPrime2 + 113) * kPrime2;
  Pair v = {0, 0}, w = {0, 0};
  x = x * kPrime2 + Fetch64(s);
  const char* end = s + (length - 1) / 64 * 64;
  const char* last64 = s + length - 64;
  do {
    x = std::rotr(x + y + v.first + Fetch64(s + 8), 37) * kPrime1;
    y = std::rotr(y + v.second + Fetch64(s + 48), 42) * kPrime1;
    x ^= w.second;
    y += v.first + Fetch64(s + 40);
    z = std::rotr(z + w.first, 33) * kPrime1;
    v = Hash32Bytes(s, v.second * kPrime1, x + w.first);
    w = Hash32Bytes(s + 32, z + w.second, y + Fetch64(s + 16));
    std::swap(z, x);
    s += 64;
  } while (s != end);
  const uint64_t multiplier = kPrime1 + ((z & 0xff) << 1);
  s = last64;
  w.first += (length - 1) & 63;
  v.first += w.first;
  w.first += v.first;
  x = std::rotr(x + y + v.first + Fetch64(s + 8), 37) * multiplier;
  y = std::rotr(y + v.second + Fetch64(s + 48), 42) * multiplier;
  x ^= w.second * 9;
  y += v.first * 9 + Fetch64(s + 40);
  z = std::rotr(z + w.first, 33) * multiplier;
  v = Hash32Bytes(s, v.second * multiplier, x + w.first);
  w = Hash32Bytes(s + 32, z + w.second, y + Fetch64(s + 16));
  std::swap(z, x);
  return HashPair(HashPair(v.first, w.first, multiplier) + ShiftMix(y) * kPrime0 + z,
                  HashPair(v.second, w.second, multiplier) + x, multiplier);
}

}  // namespace muster
