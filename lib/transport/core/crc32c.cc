#include "lib/transport/core/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace muster {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected

// Tables for eight bytes at a time: kTables[k][b] is the effect of byte b followed by k zero bytes.
constexpr std::array<std::array<uint32_t, 256>, 8> MakeTables() {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (int k = 1; k < 8; ++k) {
    for (int byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}
constexpr auto kTables = MakeTables();

uint64_t LoadLittleEndian(const std::byte* bytes) {
  uint64_t word = 0;
  for (int i = 7; i >= 0; --i) word = word << 8 | std::to_integer<uint64_t>(bytes[i]);
  return word;
}

uint32_t ExtendByTable(uint32_t crc, const std::byte* bytes, size_t size) {
  for (; size >= 8; bytes += 8, size -= 8) {
    const uint64_t word = LoadLittleEndian(bytes) ^ crc;
    crc = 0;
    for (int i = 0; i < 8; ++i) crc ^= kTables[7 - i][(word >> (8 * i)) & 0xff];
  }
  for (; size > 0; ++bytes, --size) {
    crc = (crc >> 8) ^ kTables[0][(crc ^ std::to_integer<uint32_t>(*bytes)) & 0xff];
  }
  return crc;
}

#if defined(__x86_64__)

// The instruction takes three cycles, and the processor can start one in each cycle. So the code
// sums three parts of a block side by side and joins the sums.
//
// Two parts are joined in two steps. The first sum is moved on by as many zero bytes as the second
// part has. It is then XORed with the second sum. Moving a sum on is a multiplication in GF(2)[x] /
// P, done here with tables.

// Returns a * b modulo P, both reflected: bit 31 is x^0.
constexpr uint32_t Multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (int bit = 31; bit >= 0; --bit) {
    if ((a >> bit) & 1) product ^= b;
    b = (b >> 1) ^ ((b & 1) ? kPolynomial : 0);
  }
  return product;
}

// Tables that move a sum on by `zeros` zero bytes, one table for each byte of the sum.
using ShiftTable = std::array<std::array<uint32_t, 256>, 4>;
constexpr ShiftTable MakeShift(size_t zeros) {
  uint32_t factor = 0x80000000;  // 1
  uint32_t power = 0x00800000;   // x^8
  for (; zeros > 0; zeros >>= 1) {
    if (zeros & 1) factor = Multiply(factor, power);
    power = Multiply(power, power);
  }
  ShiftTable table{};
  for (int k = 0; k < 4; ++k) {
    for (uint32_t byte = 0; byte < 256; ++byte) table[k][byte] = Multiply(byte << (8 * k), factor);
  }
  return table;
}

constexpr size_t kLongPart = 4096, kShortPart = 256;
constexpr ShiftTable kLongShift = MakeShift(kLongPart);
constexpr ShiftTable kShortShift = MakeShift(kShortPart);

uint32_t Shift(const ShiftTable& table, uint32_t crc) {
  return table[0][crc & 0xff] ^ table[1][(crc >> 8) & 0xff] ^ table[2][(crc >> 16) & 0xff] ^
         table[3][crc >> 24];
}

uint64_t Load(const std::byte* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

template <size_t kPart>
__attribute__((target("sse4.2"))) uint32_t ExtendByThreeParts(uint32_t crc, const ShiftTable& shift,
                                                              const std::byte* bytes) {
  uint64_t first = crc, second = 0, third = 0;
  for (size_t at = 0; at < kPart; at += 8) {
    first = _mm_crc32_u64(first, Load(bytes + at));
    second = _mm_crc32_u64(second, Load(bytes + kPart + at));
    third = _mm_crc32_u64(third, Load(bytes + 2 * kPart + at));
  }
  const uint32_t two = Shift(shift, static_cast<uint32_t>(first)) ^ static_cast<uint32_t>(second);
  return Shift(shift, two) ^ static_cast<uint32_t>(third);
}

__attribute__((target("sse4.2"))) uint32_t ExtendByInstruction(uint32_t crc, const std::byte* bytes,
                                                               size_t size) {
  for (; size >= 3 * kLongPart; bytes += 3 * kLongPart, size -= 3 * kLongPart) {
    crc = ExtendByThreeParts<kLongPart>(crc, kLongShift, bytes);
  }
  for (; size >= 3 * kShortPart; bytes += 3 * kShortPart, size -= 3 * kShortPart) {
    crc = ExtendByThreeParts<kShortPart>(crc, kShortShift, bytes);
  }
  uint64_t wide = crc;
  for (; size >= 8; bytes += 8, size -= 8) wide = _mm_crc32_u64(wide, Load(bytes));
  crc = static_cast<uint32_t>(wide);
  for (; size > 0; ++bytes, --size) {
    crc = _mm_crc32_u8(crc, std::to_integer<uint8_t>(*bytes));
  }
  return crc;
}
#endif

}  // namespace

uint32_t Crc32cByTable(absl::Span<const std::byte> bytes, uint32_t seed) {
  return ~ExtendByTable(~seed, bytes.data(), bytes.size());
}

uint32_t Crc32c(absl::Span<const std::byte> bytes, uint32_t seed) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return ~ExtendByInstruction(~seed, bytes.data(), bytes.size());
#endif
  return Crc32cByTable(bytes, seed);
}

}  // namespace muster
