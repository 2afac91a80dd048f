#include "kernels/byte_values.h"

#include <gtest/gtest.h>

#include <vector>

namespace muster::kernels::byte_values_test {
namespace {

TEST(ByteValuesTest, EveryByteIsItsValueInTheTable) {
  ByteValues values;
  for (int byte = 0; byte < 256; ++byte) values[byte] = 3.0f * byte - 100;
  for (int64_t n : {0, 1, 255, 300'001}) {
    std::vector<uint8_t> x(n);
    for (int64_t i = 0; i < n; ++i) x[i] = static_cast<uint8_t>(i * 7);
    std::vector<float> y(n + 1, -7);
    DecodeBytes(y.data(), x.data(), n, {&values, 1});
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(y[i], 3.0f * x[i] - 100) << i << " of " << n;
    EXPECT_EQ(y[n], -7) << "written behind the end";
  }
}

TEST(ByteValuesTest, EveryChannelHasItsTable) {
  constexpr int kChannels = 3;
  std::vector<ByteValues> tables(kChannels);
  for (int c = 0; c < kChannels; ++c) {
    for (int byte = 0; byte < 256; ++byte) tables[c][byte] = 3.0f * byte + 1000 * c;
  }
  for (const int64_t plane : {1, 5, 224 * 224}) {
    const int64_t n = 2 * kChannels * plane;
    std::vector<uint8_t> x(n);
    for (int64_t i = 0; i < n; ++i) x[i] = static_cast<uint8_t>(i * 7);
    std::vector<float> y(n + 1, -7);
    DecodeBytes(y.data(), x.data(), n, tables, plane);
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(y[i], 3.0f * x[i] + 1000 * (i / plane % kChannels)) << i << " of " << n;
    }
    EXPECT_EQ(y[n], -7) << "written behind the end";
  }
}

}  // namespace
}  // namespace muster::kernels::byte_values_test
