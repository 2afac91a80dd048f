#include "lib/transport/core/crc32c.h"

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"

namespace muster::crc32c_test {
namespace {

struct Vector {
  std::string name;
  std::vector<std::byte> bytes;
  uint32_t crc;
};

std::vector<std::byte> Ramp(int first, int step) {
  std::vector<std::byte> bytes(32);
  for (int i = 0; i < 32; ++i) bytes[i] = static_cast<std::byte>(first + step * i);
  return bytes;
}

// RFC 3720, appendix B.4.
std::vector<Vector> Rfc3720Vectors() {
  std::vector<std::byte> scsi_read(48);
  const std::pair<int, int> set[] = {{0, 0x01},  {1, 0xc0},  {16, 0x14}, {22, 0x04},
                                     {27, 0x14}, {31, 0x18}, {32, 0x28}, {40, 0x02}};
  for (auto [at, value] : set) scsi_read[at] = static_cast<std::byte>(value);
  return {{"zeros", Ramp(0, 0), 0x8a9136aa},
          {"ones", Ramp(0xff, 0), 0x62a8ab43},
          {"incrementing", Ramp(0, 1), 0x46dd794e},
          {"decrementing", Ramp(31, -1), 0x113fdb5c},
          {"iSCSI read", scsi_read, 0xd9963a56}};
}

TEST(Crc32cTest, EqualsTheVectorsOfRfc3720) {
  for (const Vector& vector : Rfc3720Vectors()) {
    EXPECT_EQ(Crc32c(vector.bytes), vector.crc) << vector.name;
    EXPECT_EQ(Crc32cByTable(vector.bytes), vector.crc) << vector.name;
  }
}

TEST(Crc32cTest, EmptyInputReturnsTheSeed) {
  EXPECT_EQ(Crc32c({}), 0u);
  EXPECT_EQ(Crc32c({}, 0x12345678), 0x12345678u);
}

TEST(Crc32cTest, TableAndInstructionAgreeOnEveryLengthAndAlignment) {
  std::mt19937 random(1);
  std::vector<std::byte> bytes(200);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (size_t offset = 0; offset < 16; ++offset) {
    for (size_t size = 0; size + offset <= bytes.size(); ++size) {
      absl::Span<const std::byte> part(bytes.data() + offset, size);
      ASSERT_EQ(Crc32c(part, 7), Crc32cByTable(part, 7)) << "offset " << offset << " size " << size;
    }
  }
}

// With the instruction, three parts of 256 or of 4096 bytes are summed side by side. The sizes are
// around multiples of these parts.
TEST(Crc32cTest, TableAndInstructionAgreeAroundTheEndsOfParts) {
  std::mt19937 random(2);
  std::vector<std::byte> bytes(40'000);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (const size_t end : {256, 768, 1536, 4096, 12288, 12288 + 768, 24576, 36864 + 1536}) {
    for (size_t size = end - 9; size <= end + 9; ++size) {
      const auto part = absl::MakeConstSpan(bytes).subspan(size % 16, size);
      ASSERT_EQ(Crc32c(part, 7), Crc32cByTable(part, 7)) << size;
    }
  }
}

TEST(Crc32cTest, TwoPiecesGiveTheChecksumOfTheWhole) {
  const std::vector<std::byte> bytes = Ramp(3, 5);
  const absl::Span<const std::byte> whole(bytes);
  for (size_t cut = 0; cut <= whole.size(); ++cut) {
    EXPECT_EQ(Crc32c(whole.subspan(cut), Crc32c(whole.first(cut))), Crc32c(whole));
  }
}

}  // namespace
}  // namespace muster::crc32c_test
