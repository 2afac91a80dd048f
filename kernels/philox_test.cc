#include "kernels/philox.h"

#include <gtest/gtest.h>

namespace muster::kernels::philox_test {
namespace {

// The known answers published with the paper's reference implementation (Random123, kat_vectors).
TEST(PhiloxTest, KnownAnswers) {
  EXPECT_EQ(Philox({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(PhiloxTest, StandardNormalsHaveTheRightMoments) {
  const int n = 100000;
  double sum = 0, squares = 0;
  for (int i = 0; i < n; ++i) {
    const auto words = RandomWords(/*seed=*/3, /*stream=*/0, i);
    const double value = StandardNormal(words[0], words[1]);
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / n, 0, 4 / std::sqrt(n));            // four standard errors
  EXPECT_NEAR(squares / n, 1, 4 * std::sqrt(2.0 / n));  // four standard errors
}

}  // namespace
}  // namespace muster::kernels::philox_test
