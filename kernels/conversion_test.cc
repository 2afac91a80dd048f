#include "kernels/conversion.h"

#include <bit>
#include <limits>

#include "kernels/comparison.h"

namespace muster::kernels::conversion_test {
namespace {

using enum ElementType;
using Halves = std::vector<uint16_t>;

// Returns the value of a 16-bit float with `exponent_bits`, by its definition.
double Value(uint16_t bits, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return fraction == 0 ? sign * INFINITY : NAN;
  const int hidden = exponent == 0 ? 0 : 1 << fraction_bits;
  return sign * std::ldexp(hidden + fraction, std::max(exponent, 1) - bias - fraction_bits);
}

struct Format {
  const char* name;
  ElementType type;
  int exponent_bits;
};

class HalfTest : public testing::TestWithParam<Format> {
 protected:
  uint16_t Rounded(float x) const {
    uint16_t y;
    Convert(&y, GetParam().type, &x, kF32, 1);
    return y;
  }
  double ValueOf(uint16_t bits) const { return Value(bits, GetParam().exponent_bits); }
};

INSTANTIATE_TEST_SUITE_P(Formats, HalfTest,
                         testing::Values(Format{"bf16", kBf16, 8}, Format{"f16", kF16, 5}),
                         [](const auto& info) { return info.param.name; });

TEST_P(HalfTest, EveryValueIsWidenedExactlyAndComesBack) {
  Halves all(65536), back(65536);
  for (int i = 0; i < 65536; ++i) all[i] = i;
  Floats wide(65536);
  Convert(wide.data(), kF32, all.data(), GetParam().type, 65536);
  Convert(back.data(), GetParam().type, wide.data(), kF32, 65536);
  for (int i = 0; i < 65536; ++i) {
    if (std::isnan(ValueOf(i))) {
      ASSERT_TRUE(std::isnan(wide[i]));
      ASSERT_TRUE(std::isnan(ValueOf(back[i])));
    } else {
      ASSERT_EQ(wide[i], ValueOf(i));
      ASSERT_EQ(back[i], i);
    }
  }
}

// For any two neighbouring 16-bit numbers, the middle must round to the even one. The floats next
// to the middle must round to the nearer one.
TEST_P(HalfTest, RoundingIsToTheNearestAndTiesGoToEven) {
  const int largest = GetParam().type == kBf16 ? 0x7F7F : 0x7BFF;
  for (int i = 0; i < largest; ++i) {
    const double low = ValueOf(i), high = ValueOf(i + 1);
    const float middle = static_cast<float>(low + (high - low) / 2);
    if (middle != low + (high - low) / 2) continue;  // below the smallest f32
    for (uint16_t sign : {0, 0x8000}) {
      const float signed_middle = sign ? -middle : middle;
      ASSERT_EQ(Rounded(signed_middle), sign | (i % 2 == 0 ? i : i + 1));
      ASSERT_EQ(Rounded(std::nextafter(signed_middle, 0.0f)), sign | i);
      ASSERT_EQ(Rounded(std::nextafter(signed_middle, signed_middle * INFINITY)), sign | (i + 1));
    }
  }
  const float beyond = GetParam().type == kBf16 ? 3.4e38f : 65520.0f;
  EXPECT_EQ(ValueOf(Rounded(beyond)), INFINITY);
  EXPECT_EQ(ValueOf(Rounded(-INFINITY)), -INFINITY);
  EXPECT_TRUE(std::isnan(ValueOf(Rounded(NAN))));
  EXPECT_TRUE(std::isnan(ValueOf(Rounded(std::bit_cast<float>(0x7F800001)))));
}

TEST_P(HalfTest, VectorsAndRemaindersAgree) {
  for (int64_t n : {1, 7, 8, 15, 17, 33, 100003}) {
    const Floats x = Normals(n, 1);
    Halves y(n);
    Convert(y.data(), GetParam().type, x.data(), kF32, n);
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(y[i], Rounded(x[i]));
  }
}

TEST_P(HalfTest, AGradientIsScaledOnItsWayOut) {
  const int64_t n = 40001;
  const Floats x = Normals(n, 1);
  Halves narrow(n);
  Floats wide(n), to = Normals(n, 2);
  Convert(narrow.data(), GetParam().type, x.data(), kF32, n);
  Convert(wide.data(), kF32, narrow.data(), GetParam().type, n);
  const Floats before = to;

  ExportGradient(to.data(), narrow.data(), GetParam().type, 0.25f, ExportMode::kAdd, n);
  for (int64_t i = 0; i < n; ++i) ASSERT_FLOAT_EQ(to[i], before[i] + 0.25f * wide[i]);
  ExportGradient(to.data(), narrow.data(), GetParam().type, 0.25f, ExportMode::kAssign, n);
  for (int64_t i = 0; i < n; ++i) ASSERT_EQ(to[i], 0.25f * wide[i]);
}

TEST(ConversionTest, WholeNumbersAreTruncatedAndBounded) {
  const Floats x = {1.9f, -1.9f, 0, NAN, 3e9f, -3e9f, 2147483520.0f, -2147483648.0f, INFINITY};
  std::vector<int32_t> y(x.size());
  Convert(y.data(), kI32, x.data(), kF32, x.size());
  EXPECT_EQ(y, (std::vector<int32_t>{1, -1, 0, 0, std::numeric_limits<int32_t>::max(),
                                     std::numeric_limits<int32_t>::min(), 2147483520,
                                     std::numeric_limits<int32_t>::min(),
                                     std::numeric_limits<int32_t>::max()}));
  Floats back(2);
  Convert(back.data(), kF32, y.data(), kI32, 2);
  EXPECT_EQ(back, (Floats{1, -1}));
}

TEST(ConversionTest, TypesOfOneWidthMayShareMemory) {
  Floats x = {5.5f, -3, 1e10f};
  Convert(x.data(), kI32, x.data(), kF32, 3);
  Convert(x.data(), kF32, x.data(), kI32, 3);
  EXPECT_EQ(x, (Floats{5, -3, 2147483648.0f}));
}

TEST(ConversionTest, HalvesOfTwoFormatsConvertByFloats) {
  const Halves x = {0x3F80, 0xC000};  // 1 and -2 in bf16
  Halves y(2);
  Convert(y.data(), kF16, x.data(), kBf16, 2);
  EXPECT_EQ(y, (Halves{0x3C00, 0xC000}));
}

}  // namespace
}  // namespace muster::kernels::conversion_test
