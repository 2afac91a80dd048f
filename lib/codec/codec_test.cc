#include "lib/codec/codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"
#include "lib/codec/one_chunk_plan.h"

namespace muster::codec_test {
namespace {

using Floats = std::vector<float>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Returns a buffer for a payload. It is aligned for float, and exactly as long as the format says,
// so that a sanitizer detects accesses beyond it.
std::vector<std::byte> PayloadFor(const WireFormat& format) {
  return std::vector<std::byte>(format.bytes);
}

Floats Decoded(const WireFormat& format, const std::vector<std::byte>& payload) {
  Floats gradient(format.elements, 12345);
  const absl::Status status = Decode(format, payload, absl::MakeSpan(gradient));
  EXPECT_TRUE(status.ok()) << status;
  return gradient;
}

// Returns what a ps decodes from one gradient of a fresh encoder.
Floats RoundTrip(const WireFormat& format, const Floats& gradient) {
  std::vector<std::byte> payload = PayloadFor(format);
  ChunkEncoder::Create(format, /*seed=*/1)->Encode(gradient, absl::MakeSpan(payload));
  return Decoded(format, payload);
}

Floats Normal(int64_t n, int seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Floats values(n);
  for (float& value : values) value = normal(random);
  return values;
}

WireFormat FormatOf(const v1::Compression& compression, std::vector<int64_t> shape) {
  return PushFormat(OneChunkPlan(compression, shape), ChunkId(0));
}

WireFormat FormatOf(v1::CompressionKind kind, std::vector<int64_t> shape) {
  return FormatOf(CompressionOf(kind), std::move(shape));
}

double Norm(const Floats& x) {
  double squares = 0;
  for (const float v : x) squares += double{v} * v;
  return std::sqrt(squares);
}

Floats Minus(Floats a, const Floats& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return a;
}

const std::vector<int64_t> kOddSizes = {3,    7,    16,   17,   255,  256,   257,  511,
                                        1000, 1023, 1024, 1025, 4097, 65537, 70001};

// ---------------------------------------------------------------- formats

TEST(WireFormatTest, PayloadSizesMatchTheLayouts) {
  struct Expected {
    v1::Compression compression;
    WireCodec codec;
    int64_t bytes;
  };
  const int64_t n = 300 * 1000;  // 1,172 blocks of 256, 4,688 of 64, 5 of 65,536
  const std::vector<Expected> table = {
      {CompressionOf(v1::COMPRESSION_NONE), WireCodec::kRaw, 4 * n},
      {CompressionOf(v1::COMPRESSION_FP16), WireCodec::kRaw, 2 * n},
      {CompressionOf(v1::COMPRESSION_BF16), WireCodec::kRaw, 2 * n},
      {CompressionOf(v1::COMPRESSION_INT8), WireCodec::kInt8, n + 4 * 1172},
      {CompressionOf(v1::COMPRESSION_TOPK, 0.01), WireCodec::kTopK, 4 * 3000 + 4 * 5},
      {CompressionOf(v1::COMPRESSION_TOPK, 0.5), WireCodec::kTopK, 4 * 150000 + 4 * 5},
      {CompressionOf(v1::COMPRESSION_ONEBIT), WireCodec::kOneBit, n / 8 + 8 * 4688},
      {CompressionOf(v1::COMPRESSION_POWERSGD, 0, 4), WireCodec::kPowerSgd, 4 * 4 * (300 + 1000)},
  };
  for (const Expected& expected : table) {
    const WireFormat format = FormatOf(expected.compression, {300, 1000});
    EXPECT_EQ(format.codec, expected.codec) << expected.compression.ShortDebugString();
    EXPECT_EQ(format.bytes, expected.bytes) << expected.compression.ShortDebugString();
    EXPECT_EQ(format.elements, n);
  }
}

TEST(WireFormatTest, DefaultsAreOnePercentAndRankFour) {
  EXPECT_EQ(FormatOf(v1::COMPRESSION_TOPK, {300, 1000}).kept, 3000);
  EXPECT_EQ(FormatOf(v1::COMPRESSION_POWERSGD, {300, 1000}).rank, 4);
}

TEST(WireFormatTest, StatisticsVectorsAndLocalSgdAreNotCompressed) {
  const WireFormat plain = FormatOf(v1::COMPRESSION_NONE, {1000});
  EXPECT_EQ(plain.dtype, WireDType::kF32);
  EXPECT_EQ(FormatOf(v1::COMPRESSION_INT8, {1000}), plain);

  v1::JobPlan plan = OneChunkPlan(CompressionOf(v1::COMPRESSION_ONEBIT), {10, 100});
  plan.mutable_spec()->mutable_sync()->set_values(v1::VALUES_BF16);
  EXPECT_EQ(PushFormat(plan, ChunkId(0)).codec, WireCodec::kOneBit);
  EXPECT_EQ(ValuesFormat(plan, ChunkId(0)).dtype, WireDType::kBf16);
  EXPECT_EQ(ValuesFormat(plan, ChunkId(0)).bytes, 2000);
  for (const v1::SyncMode mode : {v1::LOCAL_SGD, v1::ALLREDUCE}) {
    plan.mutable_spec()->mutable_sync()->set_mode(mode);
    EXPECT_EQ(PushFormat(plan, ChunkId(0)), plain);
    EXPECT_EQ(ValuesFormat(plan, ChunkId(0)), plain);
  }
  plan.mutable_spec()->mutable_sync()->set_mode(v1::SSP);
  plan.mutable_graph()->mutable_parameters(0)->set_statistic_momentum(0.1);
  EXPECT_EQ(PushFormat(plan, ChunkId(0)), plain);
  EXPECT_EQ(ValuesFormat(plan, ChunkId(0)), plain);
}

TEST(WireFormatTest, ChunksThatWouldNotShrinkAreNotCompressed) {
  EXPECT_EQ(FormatOf(v1::COMPRESSION_ONEBIT, {2, 1}).codec, WireCodec::kRaw);
  EXPECT_EQ(FormatOf(v1::COMPRESSION_TOPK, {1, 1}).codec, WireCodec::kRaw);
  EXPECT_EQ(FormatOf(v1::COMPRESSION_POWERSGD, {8, 8}).codec, WireCodec::kRaw);  // 4 (8 + 8) = 64
  EXPECT_EQ(FormatOf(v1::COMPRESSION_POWERSGD, {8, 9}).codec, WireCodec::kPowerSgd);
}

TEST(WireFormatTest, PowerSgdUsesWholeRowsOrANearlySquareMatrix) {
  v1::JobPlan plan = OneChunkPlan(CompressionOf(v1::COMPRESSION_POWERSGD), {64, 16, 3, 3});
  plan.mutable_chunks(0)->set_offset(144 * 10);
  plan.mutable_chunks(0)->set_elements(144 * 20);
  EXPECT_EQ(PushFormat(plan, ChunkId(0)).rows, 20);
  EXPECT_EQ(PushFormat(plan, ChunkId(0)).columns, 144);
  plan.mutable_chunks(0)->set_elements(1000);
  EXPECT_EQ(PushFormat(plan, ChunkId(0)).rows, 32);  // the last row has 8 elements
  EXPECT_EQ(PushFormat(plan, ChunkId(0)).columns, 32);
}

// ---------------------------------------------------------------- round trips

TEST(CodecTest, PlainFloatsDecodeBitForBit) {
  const Floats gradient = {0.0f, -0.0f, 1e-45f, -3.5f, 1e38f, kInfinity};
  EXPECT_EQ(RoundTrip(FormatOf(v1::COMPRESSION_NONE, {2, 3}), gradient), gradient);
}

TEST(CodecTest, HalfPrecisionErrsByAtMostHalfAUnit) {
  for (const int64_t n : kOddSizes) {
    const Floats gradient = Normal(n);
    const Floats f16 = RoundTrip(FormatOf(v1::COMPRESSION_FP16, {1, n}), gradient);
    const Floats bf16 = RoundTrip(FormatOf(v1::COMPRESSION_BF16, {1, n}), gradient);
    for (int64_t i = 0; i < n; ++i) {
      // Below 2^-14 the unit in f16's last place stays 2^-24.
      ASSERT_LE(std::abs(f16[i] - gradient[i]),
                std::max(0x1p-11f * std::abs(gradient[i]), 0x1p-25f));
      ASSERT_LE(std::abs(bf16[i] - gradient[i]), 0x1p-8f * std::abs(gradient[i]));
    }
  }
}

TEST(CodecTest, HalfPrecisionRoundsTiesToEvenAndSaturates) {
  const Floats gradient = {1 + 0x1p-11f, 1 + 0x3p-11f, 65519, -65520, 1e30f, -kInfinity};
  EXPECT_EQ(RoundTrip(FormatOf(v1::COMPRESSION_FP16, {2, 3}), gradient),
            Floats({1, 1 + 0x1p-9f, 65504, -65504, 65504, -kInfinity}));
  EXPECT_EQ(
      RoundTrip(FormatOf(v1::COMPRESSION_BF16, {1, 3}), {1 + 0x1p-8f, 1 + 0x3p-8f, kInfinity}),
      Floats({1, 1 + 0x1p-6f, kInfinity}));
}

TEST(CodecTest, Int8ErrsByAtMostHalfTheBlocksScale) {
  for (const int64_t n : kOddSizes) {
    Floats gradient = Normal(n);
    for (int64_t i = 0; i < n; ++i) gradient[i] *= std::exp2(static_cast<float>(i / 256 % 40 - 20));
    const Floats decoded = RoundTrip(FormatOf(v1::COMPRESSION_INT8, {1, n}), gradient);
    for (int64_t begin = 0; begin < n; begin += 256) {
      float largest = 0;
      const int64_t end = std::min(n, begin + 256);
      for (int64_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(gradient[i]));
      for (int64_t i = begin; i < end; ++i) {
        ASSERT_LE(std::abs(decoded[i] - gradient[i]), largest / 254 * 1.00001f) << i << " of " << n;
      }
    }
  }
}

TEST(CodecTest, TopKKeepsExactlyTheLargest) {
  for (const int64_t n : kOddSizes) {
    const WireFormat format = FormatOf(CompressionOf(v1::COMPRESSION_TOPK, 0.05), {1, n});
    if (format.codec == WireCodec::kRaw) continue;
    const Floats gradient = Normal(n);
    std::vector<int64_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(
        order, [&](int64_t a, int64_t b) { return std::abs(gradient[a]) > std::abs(gradient[b]); });
    const Floats decoded = RoundTrip(format, gradient);
    for (int64_t i = 0; i < n; ++i) {
      const float x = gradient[order[i]], y = decoded[order[i]];
      if (i < format.kept) {
        ASSERT_LE(std::abs(y - x), 0x1p-8f * std::abs(x)) << i << " of " << n;
      } else {
        ASSERT_EQ(y, 0) << i << " of " << n;
      }
    }
  }
}

TEST(CodecTest, TopKTakesTheFirstOfEqualElements) {
  const int64_t n = 100'000;
  const WireFormat format = FormatOf(CompressionOf(v1::COMPRESSION_TOPK, 0.001), {1, n});
  Floats gradient(n, -1.0f);
  gradient[n - 1] = 2;
  Floats expected(n, 0.0f);
  std::fill_n(expected.begin(), 99, -1.0f);
  expected[n - 1] = 2;
  EXPECT_EQ(RoundTrip(format, gradient), expected);
  EXPECT_EQ(RoundTrip(format, Floats(n)), Floats(n));
}

// Covers distributions in which the sample that guides the search misses the large elements, or
// overestimates them.
TEST(CodecTest, TopKKeepsExactlyTheLargestWhateverTheirDistribution) {
  const int64_t n = 200'000;
  const WireFormat format = FormatOf(CompressionOf(v1::COMPRESSION_TOPK, 0.001), {1, n});
  for (const int64_t steps : {1, 7, 100, 150, 3000}) {
    Floats gradient(n);
    for (int64_t i = 0; i < n; ++i) {  // `steps` different magnitudes, in blocks
      gradient[i] = static_cast<float>((i * 7919 % n) * steps / n + 1) * (i % 2 == 0 ? 1 : -1);
    }
    const Floats decoded = RoundTrip(format, gradient);
    Floats magnitudes(n), kept;
    for (int64_t i = 0; i < n; ++i) {
      magnitudes[i] = std::abs(gradient[i]);
      if (decoded[i] != 0) kept.push_back(magnitudes[i]);
    }
    std::ranges::sort(magnitudes, std::greater<>());
    std::ranges::sort(kept, std::greater<>());
    magnitudes.resize(format.kept);
    EXPECT_EQ(kept, magnitudes) << steps;
  }
}

TEST(CodecTest, OneBitDecodesToTheMeanOfEachSign) {
  for (const int64_t n : kOddSizes) {
    const WireFormat format = FormatOf(v1::COMPRESSION_ONEBIT, {1, n});
    if (format.codec == WireCodec::kRaw) continue;
    const Floats gradient = Normal(n);
    const Floats decoded = RoundTrip(format, gradient);
    for (int64_t begin = 0; begin < n; begin += 64) {
      double sums[2] = {0, 0};
      int64_t counts[2] = {0, 0};
      const int64_t end = std::min(n, begin + 64);
      for (int64_t i = begin; i < end; ++i) {
        sums[gradient[i] < 0] += gradient[i];
        ++counts[gradient[i] < 0];
      }
      for (int64_t i = begin; i < end; ++i) {
        const double mean = sums[gradient[i] < 0] / counts[gradient[i] < 0];
        ASSERT_NEAR(decoded[i], mean, 1e-5 * std::abs(mean)) << i << " of " << n;
      }
    }
  }
}

TEST(CodecTest, PowerSgdRestoresAMatrixOfItsRank) {
  const int64_t rows = 33, columns = 71;
  const Floats p = Normal(3 * rows, 1), q = Normal(3 * columns, 2);
  Floats gradient(rows * columns);
  for (int64_t i = 0; i < rows * columns; ++i) {
    for (int c = 0; c < 3; ++c)
      gradient[i] += p[c * rows + i / columns] * q[c * columns + i % columns];
  }
  const WireFormat format =
      FormatOf(CompressionOf(v1::COMPRESSION_POWERSGD, 0, 4), {rows, columns});
  ASSERT_EQ(format.codec, WireCodec::kPowerSgd);
  // The fourth column depends on the others.
  EXPECT_LE(Norm(Minus(RoundTrip(format, gradient), gradient)), 1e-5 * Norm(gradient));
}

TEST(CodecTest, PowerSgdFindsTheLargestDirectionsStepByStep) {
  // The singular values are 8, 4, 2, 1, ... along the axes; the best approximation of rank 2 leaves
  // sqrt(4 + 1 + 1/4 + ...).
  const int64_t n = 40;
  Floats gradient(n * n);
  for (int64_t i = 0; i < n; ++i) gradient[i * n + i] = 8 * std::exp2(-static_cast<float>(i));
  const WireFormat format = FormatOf(CompressionOf(v1::COMPRESSION_POWERSGD, 0, 2), {n, n});
  const auto encoder = ChunkEncoder::Create(format, 3);
  std::vector<std::byte> payload = PayloadFor(format);
  Floats sum(n * n);
  const int steps = 60;
  for (int step = 0; step < steps; ++step) {
    encoder->Encode(gradient, absl::MakeSpan(payload));
    const Floats decoded = Decoded(format, payload);
    for (int64_t i = 0; i < n * n; ++i) sum[i] += decoded[i] / steps;
  }
  // Later steps send what two directions leave out.
  EXPECT_LT(Norm(Minus(sum, gradient)), 0.1 * Norm(gradient));
}

TEST(CodecTest, PowerSgdOfAShortLastRowTouchesOnlyItsElements) {
  v1::JobPlan plan = OneChunkPlan(CompressionOf(v1::COMPRESSION_POWERSGD), {64, 100});
  plan.mutable_chunks(0)->set_elements(1003);
  const WireFormat format = PushFormat(plan, ChunkId(0));
  ASSERT_EQ(format.rows * format.columns, 32 * 32);
  const Floats gradient = Normal(1003);
  const double lost = Norm(Minus(RoundTrip(format, gradient), gradient));
  EXPECT_LT(lost, Norm(gradient));
}

TEST(CodecTest, AGradientOfZerosStaysZero) {
  for (const auto& [name, format] : FormatsOf(33, 61)) {
    EXPECT_EQ(RoundTrip(format, Floats(33 * 61)), Floats(33 * 61)) << name;
  }
}

TEST(CodecTest, TinyAndHugeGradientsKeepTheirProportions) {
  for (const auto& [name, format] : FormatsOf(33, 61)) {
    const Floats gradient = Normal(33 * 61);
    for (const float factor : {0x1p-90f, 0x1p90f}) {
      if (format.dtype == WireDType::kF16) continue;  // beyond f16's range
      Floats scaled = gradient, expected = RoundTrip(format, gradient);
      for (float& x : scaled) x *= factor;
      for (float& x : expected) x *= factor;
      const double off = Norm(Minus(RoundTrip(format, scaled), expected));
      EXPECT_LE(off, 1e-5 * Norm(expected)) << name << " times " << factor;
    }
  }
}

// ---------------------------------------------------------------- error feedback

// After every step the sum of decoded gradients plus the residual equals the sum of gradients, and
// the residual stays bounded. If a codec loses at most the part 1 - d of the squares of what it
// packs, Karimireddy et al. (lemma 3) bound the residual: |e|^2 <= 4 (1 - d) / d^2 G^2.
TEST(ErrorFeedbackTest, NothingIsLostPermanently) {
  const int64_t rows = 48, columns = 101, n = rows * columns;
  for (const auto& [name, format] : FormatsOf(rows, columns)) {
    if (format.codec == WireCodec::kRaw) continue;
    const auto encoder = ChunkEncoder::Create(format, 5);
    std::vector<std::byte> payload = PayloadFor(format);
    std::vector<double> held_back(n);
    double kept_part = 1, largest_norm = 0, norm = 0;
    for (int step = 0; step < 400; ++step) {
      const Floats gradient = Normal(n, step);
      encoder->Encode(gradient, absl::MakeSpan(payload));
      const Floats decoded = Decoded(format, payload);
      double before = 0, after = 0;
      for (int64_t i = 0; i < n; ++i) {
        const double packed = held_back[i] + gradient[i];
        held_back[i] = packed - decoded[i];
        before += packed * packed;
        after += held_back[i] * held_back[i];
      }
      kept_part = std::min(kept_part, 1 - after / before);
      largest_norm = std::max(largest_norm, Norm(gradient));
      norm = std::sqrt(after);
    }
    ASSERT_GT(kept_part, 0) << name;
    EXPECT_LE(norm, 2 * std::sqrt(1 - kept_part) / kept_part * largest_norm) << name;
    if (format.codec == WireCodec::kTopK) {
      EXPECT_GE(kept_part, 0.99 * format.kept / n);
    }
  }
}

// The mean of the decoded gradients approaches a constant gradient as 1 / steps.
TEST(ErrorFeedbackTest, AConstantGradientIsEventuallySentInFull) {
  const Floats gradient = Normal(30 * 41);
  for (const auto& [name, format] : FormatsOf(30, 41)) {
    if (format.codec == WireCodec::kRaw) continue;
    const auto encoder = ChunkEncoder::Create(format, 5);
    std::vector<std::byte> payload = PayloadFor(format);
    std::vector<double> sum(gradient.size());
    const int steps = 2000;
    for (int step = 0; step < steps; ++step) {
      encoder->Encode(gradient, absl::MakeSpan(payload));
      const Floats decoded = Decoded(format, payload);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += decoded[i];
    }
    Floats off(gradient.size());
    for (size_t i = 0; i < off.size(); ++i)
      off[i] = static_cast<float>(sum[i] / steps - gradient[i]);
    EXPECT_LE(Norm(off), 0.05 * Norm(gradient)) << name;
  }
}

// ---------------------------------------------------------------- gradients that are not finite

TEST(CodecTest, AGradientThatIsNotFiniteIsMarkedAndDropped) {
  const int64_t n = 33 * 61;
  for (const auto& [name, format] : FormatsOf(33, 61)) {
    for (const float bad : {kInfinity, -kInfinity, std::nanf("")}) {
      for (const int64_t where : {int64_t{0}, n / 2, n - 1}) {
        const auto encoder = ChunkEncoder::Create(format, 1);
        std::vector<std::byte> payload = PayloadFor(format);
        Floats gradient = Normal(n);
        encoder->Encode(gradient, absl::MakeSpan(payload));
        gradient[where] = bad;
        encoder->Encode(gradient, absl::MakeSpan(payload));
        const Floats decoded = Decoded(format, payload);
        EXPECT_TRUE(std::ranges::any_of(decoded, [](float x) { return !std::isfinite(x); }))
            << name << ": " << bad << " at " << where;

        encoder->Encode(Floats(n), absl::MakeSpan(payload));
        EXPECT_EQ(Decoded(format, payload), Floats(n)) << name << ": the residual was not cleared";
      }
    }
  }
}

TEST(CodecTest, PowerSgdContinuesAfterAGradientThatIsNotFinite) {
  const WireFormat format = FormatOf(v1::COMPRESSION_POWERSGD, {30, 41});
  const auto encoder = ChunkEncoder::Create(format, 1);
  std::vector<std::byte> payload = PayloadFor(format);
  encoder->Encode(Floats(30 * 41, kInfinity), absl::MakeSpan(payload));
  const Floats gradient(30 * 41, 1.0f);
  encoder->Encode(gradient, absl::MakeSpan(payload));
  EXPECT_LE(Norm(Minus(Decoded(format, payload), gradient)), 1e-5 * Norm(gradient));
}

// The residual stays finite even if intermediate sums overflow.
TEST(CodecTest, GradientsNearTheLargestFloatKeepTheResidualFinite) {
  const int64_t n = 33 * 61;
  for (const auto& [name, format] : FormatsOf(33, 61)) {
    const auto encoder = ChunkEncoder::Create(format, 1);
    std::vector<std::byte> payload = PayloadFor(format);
    for (const float huge : {0x1p126f, 0x1.8p126f, 0x1p127f, std::numeric_limits<float>::max()}) {
      encoder->Encode(Floats(n, huge), absl::MakeSpan(payload));
      Decoded(format, payload);
    }
    encoder->Encode(Floats(n, 1.0f), absl::MakeSpan(payload));
    encoder->Encode(Floats(n), absl::MakeSpan(payload));
    for (const float x : Decoded(format, payload)) ASSERT_TRUE(std::isfinite(x)) << name;
  }
}

// ---------------------------------------------------------------- examples of docs/codecs.md

// Parses bytes as docs/codecs.md writes them.
std::vector<std::byte> Bytes(absl::string_view hex) {
  const std::string text = absl::HexStringToBytes(absl::StrReplaceAll(hex, {{" ", ""}}));
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

std::vector<std::byte> Encoded(const WireFormat& format, const Floats& gradient) {
  std::vector<std::byte> payload = PayloadFor(format);
  ChunkEncoder::Create(format, 1)->Encode(gradient, absl::MakeSpan(payload));
  return payload;
}

TEST(CodecTest, TheExamplesInTheDocumentAreExact) {
  const Floats gradient = {1, -2, 0.5, 127, 0, 3, -64, 2};
  EXPECT_EQ(Encoded(FormatOf(v1::COMPRESSION_INT8, {2, 4}), gradient),
            Bytes("00 00 80 3f  01 fe 00 7f 00 03 c0 02"));
  EXPECT_EQ(Encoded(FormatOf(CompressionOf(v1::COMPRESSION_TOPK, 0.375), {2, 4}), gradient),
            Bytes("03 00 00 00  03 00 05 00 06 00  fe 42 40 40 80 c2"));
  EXPECT_EQ(Encoded(FormatOf(v1::COMPRESSION_ONEBIT, {2, 4}), gradient),
            Bytes("00 00 b2 41  00 00 04 c2  42"));
  EXPECT_EQ(Decoded(FormatOf(v1::COMPRESSION_ONEBIT, {2, 4}), Bytes("0000b241 000004c2 42")),
            Floats({22.25, -33, 22.25, 22.25, 22.25, 22.25, -33, 22.25}));
}

// ---------------------------------------------------------------- invalid payloads

TEST(DecodeTest, RefusesAWrongLengthAndNamesBoth) {
  const WireFormat format = FormatOf(v1::COMPRESSION_INT8, {2, 4});
  Floats gradient(8);
  const absl::Status status = Decode(format, std::vector<std::byte>(11), absl::MakeSpan(gradient));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "a gradient of 8 elements takes 12 bytes, the payload has 11");
}

TEST(DecodeTest, RefusesBytesThatNoEncoderProduces) {
  struct Case {
    v1::Compression compression;
    const char* hex;
    const char* says;
  };
  const v1::Compression int8 = CompressionOf(v1::COMPRESSION_INT8);
  const v1::Compression onebit = CompressionOf(v1::COMPRESSION_ONEBIT);
  const v1::Compression topk = CompressionOf(v1::COMPRESSION_TOPK, 0.25);
  const std::vector<Case> cases = {
      {int8, "0000803f 80 000000000000000000", "code -128"},
      {int8, "000080bf 00 000000000000000000", "scale -1"},
      {int8, "0000807f 00 000000000000000000", "scale inf"},
      {int8, "0100c0ff 00 000000000000000000", "scale nan"},
      {onebit, "000080bf 00000000 0000", "means -1 and 0"},
      {onebit, "00000000 0000803f 0000", "means 0 and 1"},
      {onebit, "00000000 00000000 0004", "a bit is set beyond 10 elements"},
      {topk, "02000000 0100 0200 0300 0000 0000 0000", "2 elements instead of 3"},
      {topk, "04000000 0100 0200 0300 0000 0000 0000", "4 elements, of 3 left"},
      {topk, "03000000 0100 0100 0300 0000 0000 0000", "position 1 after 1"},
      {topk, "03000000 0200 0100 0300 0000 0000 0000", "position 1 after 2"},
      {topk, "03000000 0100 0200 0a00 0000 0000 0000", "position 10 after 2, of 10"},
      {topk, "03000000 0100 0200 0300 0000 807f 0000", "not finite"},
  };
  for (const Case& wrong : cases) {
    const WireFormat format = FormatOf(wrong.compression, {2, 5});
    Floats gradient(10);
    const absl::Status status = Decode(format, Bytes(wrong.hex), absl::MakeSpan(gradient));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong.hex;
    EXPECT_NE(status.message().find(wrong.says), absl::string_view::npos)
        << wrong.hex << ": " << status;
  }
}

TEST(CodecTest, StateIsTheResidualAndLittleMore) {
  for (const auto& [name, format] : FormatsOf(1000, 1000)) {
    const int64_t state = ChunkEncoder::Create(format, 1)->state_bytes();
    if (format.codec == WireCodec::kRaw) {
      EXPECT_EQ(state, 0) << name;
    } else {
      EXPECT_GE(state, 4'000'000) << name;
      EXPECT_LE(state, 4'200'000) << name;
    }
  }
}

}  // namespace
}  // namespace muster::codec_test
