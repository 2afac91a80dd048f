#include "lib/data/order/permutation.h"

#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace muster::permutation_test {
namespace {

TEST(PermutationTest, PermutingManyElementsGivesTheResultOfEachAlone) {
  const auto test_seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << test_seed);
  std::mt19937_64 random(test_seed);
  for (int bits = 1; bits < 63; ++bits) {
    const int64_t n = 1 + static_cast<int64_t>(random() >> (64 - bits));
    const uint64_t seed = random(), stream = random();
    std::vector<int64_t> elements(random() % 150);
    for (int64_t& element : elements) element = static_cast<int64_t>(random() % n);
    const std::vector<int64_t> before = elements;
    Permute(seed, stream, n, absl::MakeSpan(elements));
    for (size_t i = 0; i < elements.size(); ++i) {
      ASSERT_EQ(elements[i], Permuted(seed, stream, n, before[i])) << before[i] << " of " << n;
    }
  }
}

}  // namespace
}  // namespace muster::permutation_test
