#include "kernels/dropout.h"

#include "kernels/comparison.h"

namespace muster::kernels::dropout_test {
namespace {

constexpr DropoutKey kKey{.seed = 0x123456789ABCDEF0, .step = 5, .salt = 77};

Floats Dropped(const Floats& x, int64_t first_element, float rate, const DropoutKey& key = kKey) {
  Floats y(x.size(), NAN);
  Dropout(y.data(), x.data(), x.size(), first_element, rate, key);
  return y;
}

TEST(DropoutTest, AnElementIsKeptByItsOwnRandomWord) {
  for (int64_t n : {1, 3, 4, 5, 31, 32, 33, 64, 1000}) {
    for (int64_t first : {0, 1, 2, 3, 4, 1 << 20}) {
      const Floats x = Normals(n, 1), y = Dropped(x, first, 0.3f);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t element = first + i;
        const uint32_t word = RandomWords(kKey.seed, DropoutStream(kKey), element / 4)[element % 4];
        const bool kept = UnitUniform(word) >= 0.3f;
        ASSERT_EQ(y[i], kept ? x[i] * (1.0f / (1.0f - 0.3f)) : 0.0f)
            << "element " << i << " of " << n << " from " << first;
      }
    }
  }
}

// Positions beyond 2^34 elements carry into the counter's upper word.
TEST(DropoutTest, TheCounterIsSixtyFourBitsWide) {
  const int64_t first = (int64_t{1} << 34) - 40;
  const Floats ones(100, 1.0f), y = Dropped(ones, first, 0.5f);
  for (int64_t i = 0; i < 100; ++i) {
    const uint32_t word =
        RandomWords(kKey.seed, DropoutStream(kKey), (first + i) / 4)[(first + i) % 4];
    ASSERT_EQ(y[i] != 0, UnitUniform(word) >= 0.5f);
  }
}

TEST(DropoutTest, PartsOfABatchSeeThePartsOfItsMask) {
  const Floats x = Normals(1000, 1), whole = Dropped(x, 0, 0.5f);
  for (int64_t cut : {1, 6, 333}) {
    const Floats rest = Dropped(Floats(x.begin() + cut, x.end()), cut, 0.5f);
    EXPECT_EQ(rest, Floats(whole.begin() + cut, whole.end()));
  }
}

TEST(DropoutTest, PartsOfTheColumnsSeeThePartsOfTheMask) {
  constexpr int64_t kRows = 13, kColumns = 71, kFirst = 5 * kColumns;
  const Floats x = Normals(kRows * kColumns, 1), whole = Dropped(x, kFirst, 0.5f);
  for (const auto& [begin, end] : {std::pair(0, 2), std::pair(2, 39), std::pair(39, 71)}) {
    Floats part, expected;
    for (int64_t row = 0; row < kRows; ++row) {
      const int64_t at = row * kColumns;
      part.insert(part.end(), x.begin() + at + begin, x.begin() + at + end);
      expected.insert(expected.end(), whole.begin() + at + begin, whole.begin() + at + end);
    }
    DropoutOfPart(part.data(), part.data(), kRows,
                  {.columns = end - begin, .first = begin, .whole = kColumns}, kFirst, 0.5f, kKey);
    EXPECT_EQ(part, expected);
  }
}

TEST(DropoutTest, TheRateIsTheShareThatIsDropped) {
  const Floats ones(1'000'000, 1.0f);
  for (float rate : {0.0f, 0.1f, 0.5f, 0.9f}) {
    const Floats y = Dropped(ones, 0, rate);
    const int64_t dropped = std::count(y.begin(), y.end(), 0.0f);
    EXPECT_NEAR(dropped, rate * 1e6, 4 * std::sqrt(1e6 * rate * (1 - rate)));  // standard errors
  }
}

TEST(DropoutTest, StepsLayersAndSeedsHaveMasksOfTheirOwn) {
  const Floats ones(1000, 1.0f), y = Dropped(ones, 0, 0.5f);
  EXPECT_NE(Dropped(ones, 0, 0.5f, {kKey.seed, kKey.step + 1, kKey.salt}), y);
  EXPECT_NE(Dropped(ones, 0, 0.5f, {kKey.seed, kKey.step, kKey.salt + 1}), y);
  EXPECT_NE(Dropped(ones, 0, 0.5f, {kKey.seed + 1, kKey.step, kKey.salt}), y);
}

TEST(DropoutTest, RunsInPlaceOnAnyThreads) {
  const Floats x = Normals(50001, 1), expected = Dropped(x, 3, 0.5f);
  ExpectSameOnAnyThreads([&] {
    Floats y = x;
    Dropout(y.data(), y.data(), y.size(), 3, 0.5f, kKey);
    EXPECT_EQ(y, expected);
    return y;
  });
}

}  // namespace
}  // namespace muster::kernels::dropout_test
