#include "lib/concurrency/copy_crew.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace muster::copy_crew_test {
namespace {

std::vector<std::byte> Numbers(size_t bytes, uint32_t seed) {
  std::vector<std::byte> numbers(bytes);
  for (std::byte& number : numbers) {
    seed = seed * 1664525 + 1013904223;
    number = static_cast<std::byte>(seed >> 24);
  }
  return numbers;
}

// Checks the copy, and that bytes before and after it are unchanged.
void ExpectCopied(CopyCrew& crew, size_t bytes, uint32_t seed, CopyCrew::Stores stores) {
  SCOPED_TRACE(testing::Message() << bytes << " bytes, seed " << seed << ", stores "
                                  << static_cast<int>(stores));
  const std::vector<std::byte> from = Numbers(bytes, seed);
  std::vector<std::byte> to(bytes + 2, std::byte{7});
  crew.Copy(absl::MakeSpan(to).subspan(1, bytes), from, stores);
  EXPECT_EQ(to.front(), std::byte{7});
  EXPECT_EQ(to.back(), std::byte{7});
  EXPECT_TRUE(std::equal(from.begin(), from.end(), to.begin() + 1));
}

TEST(CopyCrewTest, CopiesOfEverySizeAreCompleteOnReturn) {
  for (const int helpers : {0, 1, 3}) {
    CopyCrew crew(helpers);
    uint32_t seed = 1;
    for (const size_t bytes :
         {size_t{0}, size_t{1}, (size_t{8} << 10) - 1, (size_t{8} << 10) + 3,
          (size_t{64} << 10) - 1, (size_t{64} << 10) + 5, CopyCrew::kLargeBytes - 1,
          CopyCrew::kLargeBytes, CopyCrew::kLargeBytes + 12345, size_t{5} << 20}) {
      for (int again = 0; again < 3; ++again) {
        ExpectCopied(crew, bytes, seed++, CopyCrew::Stores::kCached);
        ExpectCopied(crew, bytes, seed++, CopyCrew::Stores::kPastCaches);
      }
    }
  }
}

// Repeats, because a processor may be busy whenever a copy comes; sooner or later a helper is free.
TEST(CopyCrewTest, HelpersCopyParts) {
  CopyCrew crew(2);
  const std::vector<std::byte> from = Numbers(size_t{4} << 20, 5);
  std::vector<std::byte> to(from.size());
  while (crew.helped() == 0) crew.Copy(absl::MakeSpan(to), from);
  EXPECT_EQ(to, from);
}

TEST(CopyCrewTest, SmallCopiesAndSmallMachinesUseNoHelpers) {
  CopyCrew crew(2), alone(CopyCrew::HelpersFor(2));
  const std::vector<std::byte> from = Numbers(size_t{4} << 20, 5);
  std::vector<std::byte> to(from.size());
  for (int i = 0; i < 100; ++i) {
    crew.Copy(absl::MakeSpan(to).first(1000), absl::MakeSpan(from).first(1000));
    alone.Copy(absl::MakeSpan(to), from);
  }
  EXPECT_EQ(crew.helped(), 0);
  EXPECT_EQ(alone.helped(), 0);
  EXPECT_EQ(CopyCrew::HelpersFor(16), 3);
}

TEST(CopyCrewTest, ACrewThatNeverCopiedCanBeDestroyed) { CopyCrew crew(3); }

}  // namespace
}  // namespace muster::copy_crew_test
