#include "lib/transport/core/wire.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "lib/transport/core/crc32c.h"

namespace muster::wire_test {
namespace {

using Bytes = std::array<std::byte, WireHeader::kBytes>;

std::string Hex(const Bytes& bytes) {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

// Removes the spaces of "4d 55 53 54 ...", the notation of docs/protocol.md.
std::string WithoutSpaces(absl::string_view text) {
  std::string hex;
  for (char c : text) {
    if (!absl::ascii_isspace(c)) hex.push_back(c);
  }
  return hex;
}

WireHeader Push() {
  return {.kind = MessageKind::kPush,
          .dtype = WireDType::kF32,
          .generation = 3,
          .job = 42,
          .step = 1000,
          .chunk = 7,
          .rank = 1,
          .length = 4194304};
}

// Recomputes the checksum after other bytes were changed.
void Seal(Bytes& bytes) {
  const uint32_t crc = Crc32c(absl::MakeConstSpan(bytes).first(60));
  for (int i = 0; i < 4; ++i) bytes[60 + i] = static_cast<std::byte>(crc >> (8 * i));
}

absl::Status SealedWith(size_t offset, uint8_t value) {
  Bytes bytes = EncodeHeader(Push());
  bytes[offset] = static_cast<std::byte>(value);
  Seal(bytes);
  return DecodeHeader(bytes).status();
}

// The worked example of docs/protocol.md.
TEST(WireTest, APushHasTheBytesOfTheProtocolPage) {
  EXPECT_EQ(Hex(EncodeHeader(Push())), WithoutSpaces("4d 55 53 54  03 00  02  01  00  00  00 00"
                                                     "03 00 00 00  2a 00 00 00 00 00 00 00"
                                                     "e8 03 00 00 00 00 00 00"
                                                     "07 00 00 00  01 00 00 00"
                                                     "00 00 40 00 00 00 00 00"
                                                     "00 00 00 00 00 00 00 00"
                                                     "00 00 00 00  05 f7 ce 86"));
}

TEST(WireTest, AnAnswerHasTheBytesOfTheProtocolPage) {
  WireHeader params = Push();
  params.kind = MessageKind::kParams;
  params.step = 1001;
  params.scalar = 6.25;
  EXPECT_EQ(Hex(EncodeHeader(params)), WithoutSpaces("4d 55 53 54  03 00  03  01  00  00  00 00"
                                                     "03 00 00 00  2a 00 00 00 00 00 00 00"
                                                     "e9 03 00 00 00 00 00 00"
                                                     "07 00 00 00  01 00 00 00"
                                                     "00 00 40 00 00 00 00 00"
                                                     "00 00 00 00 00 00 19 40"
                                                     "00 00 00 00  86 d3 84 c7"));
}

TEST(WireTest, ARefusalHasTheBytesOfTheProtocolPage) {
  WireHeader refused = Push();
  refused.kind = MessageKind::kRefused;
  refused.dtype = WireDType::kNone;
  refused.reason = RefusalReason::kWrongStep;
  refused.length = 0;
  EXPECT_EQ(Hex(EncodeHeader(refused)), WithoutSpaces("4d 55 53 54  03 00  05  00  00  00  06 00"
                                                      "03 00 00 00  2a 00 00 00 00 00 00 00"
                                                      "e8 03 00 00 00 00 00 00"
                                                      "07 00 00 00  01 00 00 00"
                                                      "00 00 00 00 00 00 00 00"
                                                      "00 00 00 00 00 00 00 00"
                                                      "00 00 00 00  b7 cc e5 e0"));
}

TEST(WireTest, APushWithoutAGradientHasTheBytesOfTheProtocolPage) {
  WireHeader push = Push();
  push.dtype = WireDType::kNone;
  push.length = 0;
  push.scalar = 0.25;
  push.loss_scale = 0.5;
  EXPECT_EQ(Hex(EncodeHeader(push)), WithoutSpaces("4d 55 53 54  03 00  02  00  00  00  00 00"
                                                   "03 00 00 00  2a 00 00 00 00 00 00 00"
                                                   "e8 03 00 00 00 00 00 00"
                                                   "07 00 00 00  01 00 00 00"
                                                   "00 00 00 00 00 00 00 00"
                                                   "00 00 00 00 00 00 d0 3f"
                                                   "00 00 00 3f  7b 6d dc de"));
}

TEST(WireTest, EveryHeaderComesBackAsItWas) {
  for (MessageKind kind :
       {MessageKind::kHello, MessageKind::kPush, MessageKind::kParams, MessageKind::kFetch,
        MessageKind::kRefused, MessageKind::kSquares, MessageKind::kVerdict}) {
    for (int reason = 0; reason <= static_cast<int>(RefusalReason::kOtherLearningRate); ++reason) {
      const WireHeader header{.kind = kind,
                              .dtype = WireDType::kF32,
                              .reason = static_cast<RefusalReason>(reason),
                              .generation = std::numeric_limits<uint32_t>::max(),
                              .job = std::numeric_limits<uint64_t>::max(),
                              .step = std::numeric_limits<int64_t>::min(),
                              .chunk = std::numeric_limits<uint32_t>::max() - 1,
                              .rank = std::numeric_limits<uint32_t>::max() - 2,
                              .length = std::numeric_limits<uint64_t>::max() - 3,
                              .scalar = -std::numeric_limits<double>::infinity(),
                              .loss_scale = 65536};
      auto decoded = DecodeHeader(EncodeHeader(header));
      ASSERT_TRUE(decoded.ok()) << decoded.status();
      EXPECT_EQ(*decoded, header);
    }
  }
}

TEST(WireTest, ANanScalarSurvives) {
  WireHeader header = Push();
  header.scalar = std::nan("");
  auto decoded = DecodeHeader(EncodeHeader(header));
  ASSERT_TRUE(decoded.ok());
  EXPECT_TRUE(std::isnan(decoded->scalar));
}

TEST(WireTest, EveryFlippedBitIsDetected) {
  const Bytes good = EncodeHeader(Push());
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    Bytes bad = good;
    bad[bit / 8] ^= std::byte{1} << (bit % 8);
    const absl::Status status = DecodeHeader(bad).status();
    // Magic and version are checked before the checksum.
    EXPECT_EQ(status.code(),
              bit < 6 * 8 ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kDataLoss)
        << "bit " << bit << ": " << status;
  }
}

TEST(WireTest, AnyOtherSizeIsRefused) {
  std::vector<std::byte> bytes(3 * WireHeader::kBytes);
  const Bytes good = EncodeHeader(Push());
  std::memcpy(bytes.data(), good.data(), good.size());
  for (size_t size = 0; size <= bytes.size(); ++size) {
    const absl::Status status = DecodeHeader(absl::MakeConstSpan(bytes).first(size)).status();
    EXPECT_EQ(status.code(), size == WireHeader::kBytes ? absl::StatusCode::kOk
                                                        : absl::StatusCode::kInvalidArgument)
        << size;
  }
}

TEST(WireTest, UnknownValuesWithAValidChecksumAreRefused) {
  struct Case {
    size_t offset;
    uint8_t value;
  };
  for (const Case& c : std::vector<Case>{{0, 'm'},
                                         {4, 2},
                                         {5, 1},
                                         {6, 0},
                                         {6, 14},
                                         {6, 255},
                                         {7, 4},
                                         {8, 5},
                                         {9, 1},
                                         {10, 11},
                                         {11, 1}}) {
    EXPECT_EQ(SealedWith(c.offset, c.value).code(), absl::StatusCode::kInvalidArgument)
        << "byte " << c.offset << " = " << int{c.value};
  }
}

TEST(WireTest, RandomBytesAreRefused) {
  const uint32_t seed = 20260101;
  std::mt19937_64 random(seed);
  for (int i = 0; i < 200'000; ++i) {
    Bytes bytes;
    for (size_t at = 0; at < bytes.size(); at += 8) {
      const uint64_t word = random();
      std::memcpy(bytes.data() + at, &word, 8);
    }
    if (i % 2 == 1) {  // half of them have the right magic and version
      const Bytes good = EncodeHeader(Push());
      std::memcpy(bytes.data(), good.data(), 6);
    }
    ASSERT_FALSE(DecodeHeader(bytes).ok()) << "seed " << seed << ", draw " << i;
  }
}

TEST(WireTest, EveryReasonHasAName) {
  for (int reason = 0; reason <= static_cast<int>(RefusalReason::kOtherLearningRate); ++reason) {
    EXPECT_STRNE(RefusalReasonName(static_cast<RefusalReason>(reason)), "UNKNOWN") << reason;
  }
  EXPECT_STREQ(RefusalReasonName(static_cast<RefusalReason>(999)), "UNKNOWN");
}

}  // namespace
}  // namespace muster::wire_test
