// Decoders read bytes from the network. For any bytes a decoder must not read beyond them or write
// beyond the gradient (sanitizers check both), and must either refuse or decode them. Built with
// -DMUSTER_LIBFUZZER and clang's -fsanitize=fuzzer, the same checks are guided by coverage.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "glog/logging.h"
#include "lib/codec/codec.h"
#include "lib/codec/one_chunk_plan.h"
#ifdef MUSTER_LIBFUZZER
#include "absl/strings/string_view.h"
#include "tests/fuzz/fuzz_target.h"
#else
#include "gtest/gtest.h"
#endif

namespace muster::decoder_fuzz_test {
namespace {

using Payload = std::vector<std::byte>;

// Returns the codecs' formats for sizes just below and above the end of a block.
std::vector<NamedFormat> FuzzedFormats() {
  std::vector<NamedFormat> formats;
  for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {1, 9}, {3, 85}, {16, 16}, {1, 257}, {31, 33}, {25, 41}, {2, 33000}}) {
    for (NamedFormat& named : FormatsOf(rows, columns)) {
      named.name += "_" + std::to_string(rows * columns);
      formats.push_back(std::move(named));
    }
  }
  return formats;
}

// Decodes into a separate allocation, so that a sanitizer detects writes beyond it. Returns whether
// the payload was accepted.
bool DecodeSafely(const WireFormat& format, const Payload& payload) {
  constexpr float kUntouched = 12345;
  std::vector<float> gradient(format.elements, kUntouched);
  const absl::Status status = Decode(format, payload, absl::MakeSpan(gradient));
  if (!status.ok()) {
    CHECK(absl::IsInvalidArgument(status)) << status;
    CHECK(!status.message().empty());
    return false;
  }
  CHECK_EQ(payload.size(), format.bytes);
  // Checks that every element was written (12345 itself has more digits than most formats keep).
  CHECK(format.dtype == WireDType::kF32 || std::ranges::count(gradient, kUntouched) < 8);
  return true;
}

std::vector<float> RandomGradient(int64_t n, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> gradient(n);
  for (float& x : gradient) x = normal(random);
  return gradient;
}

Payload ValidPayload(const WireFormat& format, std::mt19937& random) {
  Payload payload(format.bytes);
  ChunkEncoder::Create(format, random())
      ->Encode(RandomGradient(format.elements, random), absl::MakeSpan(payload));
  return payload;
}

#ifdef MUSTER_LIBFUZZER

// Decodes all bytes after the first. The first byte selects the format, and whether the payload
// gets the format's length.
bool FuzzBytes(absl::string_view bytes) {
  static const std::vector<NamedFormat> formats = FuzzedFormats();
  if (bytes.empty()) return false;
  const auto first = static_cast<uint8_t>(bytes[0]);
  const WireFormat& format = formats[first % formats.size()].format;
  const auto rest = std::as_bytes(std::span(bytes).subspan(1));
  Payload payload(rest.begin(), rest.end());
  if (first < 4 * formats.size() / 2) payload.resize(format.bytes);
  return DecodeSafely(format, payload);
}

// Returns a valid payload for each format, cut to kMost bytes. libFuzzer generates inputs up to the
// length of its longest seed.
std::vector<std::string> Seeds() {
  constexpr size_t kMost = 4096;
  std::mt19937 random(20261126);
  const std::vector<NamedFormat> formats = FuzzedFormats();
  std::vector<std::string> seeds;
  for (size_t i = 0; i < formats.size(); ++i) {
    const Payload payload = ValidPayload(formats[i].format, random);
    seeds.emplace_back(1, static_cast<char>(i));
    seeds.back().append(reinterpret_cast<const char*>(payload.data()),
                        std::min(payload.size(), kMost));
  }
  return seeds;
}

#else

constexpr int kInputs = 100'000;

Payload RandomBytes(size_t size, std::mt19937& random) {
  Payload payload(size);
  for (std::byte& byte : payload) byte = static_cast<std::byte>(random());
  return payload;
}

// Changes a few bits, bytes or words. Half of the changes are in the leading words, which hold the
// fields that control a decoder.
Payload Mutated(Payload payload, std::mt19937& random) {
  for (int count = 1 + random() % 4; count > 0 && !payload.empty(); --count) {
    const size_t span = random() % 2 == 0 ? payload.size() : std::min<size_t>(16, payload.size());
    const size_t at = random() % span;
    switch (random() % 5) {
      case 0:
        payload[at] ^= static_cast<std::byte>(1 << random() % 8);
        break;
      case 1:
        payload[at] = static_cast<std::byte>(random());
        break;
      case 2:
        payload[at] = std::byte{0xFF};
        break;
      case 3:
        payload[at] = payload[random() % payload.size()];
        break;
      case 4:
        std::swap(payload[at], payload[random() % payload.size()]);
        break;
    }
  }
  return payload;
}

TEST(DecoderFuzzTest, MutatedPayloadsAreDecodedOrRefused) {
  std::mt19937 random(20240229);
  const std::vector<NamedFormat> formats = FuzzedFormats();
  std::vector<Payload> valid;
  for (const NamedFormat& named : formats) valid.push_back(ValidPayload(named.format, random));
  int taken = 0, refused = 0;
  for (int i = 0; i < kInputs; ++i) {
    // Large formats take as long as all others together, so they are not tried every time.
    const size_t index = random() % (i % 16 == 0 ? formats.size() : formats.size() - 7);
    ++(DecodeSafely(formats[index].format, Mutated(valid[index], random)) ? taken : refused);
  }
  EXPECT_GT(taken, kInputs / 10);
  EXPECT_GT(refused, kInputs / 10);
}

TEST(DecoderFuzzTest, RandomBytesOfAnyLengthAreDecodedOrRefused) {
  std::mt19937 random(20240301);
  const std::vector<NamedFormat> formats = FuzzedFormats();
  for (int i = 0; i < kInputs; ++i) {
    const WireFormat& format = formats[random() % (i % 64 == 0 ? formats.size() : 42)].format;
    const size_t bytes = static_cast<size_t>(format.bytes);
    const size_t size = random() % 4 == 0 ? random() % (2 * bytes + 1) : bytes;
    const bool taken = DecodeSafely(format, RandomBytes(size, random));
    ASSERT_TRUE(!taken || size == bytes);
  }
}

TEST(DecoderFuzzTest, EveryTruncationIsRefused) {
  std::mt19937 random(20240302);
  for (const auto& [name, format] : FuzzedFormats()) {
    if (format.bytes > 8192) continue;
    const Payload valid = ValidPayload(format, random);
    EXPECT_TRUE(DecodeSafely(format, valid)) << name;
    for (int64_t size = 0; size < format.bytes; ++size) {
      const Payload truncated(valid.begin(), valid.begin() + size);
      ASSERT_FALSE(DecodeSafely(format, truncated)) << name << " of " << size << " bytes";
    }
  }
}

TEST(DecoderFuzzTest, APayloadOfAnotherFormatIsDecodedOrRefused) {
  std::mt19937 random(20240303);
  const std::vector<NamedFormat> formats = FuzzedFormats();
  for (const NamedFormat& sent : formats) {
    const Payload payload = ValidPayload(sent.format, random);
    for (const NamedFormat& expected : formats) {
      const bool taken = DecodeSafely(expected.format, payload);
      EXPECT_TRUE(taken || sent.format != expected.format) << sent.name;
      EXPECT_FALSE(taken && sent.format.bytes != expected.format.bytes) << expected.name;
    }
  }
}

#endif

}  // namespace
}  // namespace muster::decoder_fuzz_test

#ifdef MUSTER_LIBFUZZER
namespace muster {
bool FuzzOne(absl::string_view bytes) { return decoder_fuzz_test::FuzzBytes(bytes); }
std::vector<std::string> FuzzSeeds() { return decoder_fuzz_test::Seeds(); }
}  // namespace muster
#endif
