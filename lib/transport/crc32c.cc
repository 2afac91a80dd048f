#include "lib/transport/crc32c.h"

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
__attribute__((target("sse4.2"))) uint32_t ExtendByInstruction(uint32_t crc, const std::byte* bytes,
                                                               size_t size) {
  uint64_t wide = crc;
  for (; size >= 8; bytes += 8, size -= 8) {
    uint64_t word;
    std::memcpy(&word, bytes, sizeof(word));
    wide = _mm_crc32_u64(wide, word);
  }
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
