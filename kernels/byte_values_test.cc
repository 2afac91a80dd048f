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
    DecodeBytes(y.data(), x.data(), n, values);
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(y[i], 3.0f * x[i] - 100) << i << " of " << n;
    EXPECT_EQ(y[n], -7) << "written behind the end";
  }
}

}  // namespace
}  // namespace muster::kernels::byte_values_test
