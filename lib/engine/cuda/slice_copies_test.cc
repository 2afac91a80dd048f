#include "lib/engine/cuda/slice_copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace muster::slice_copies_test {
namespace {

using ::testing::ElementsAre;

constexpr ParameterSlice kWhole = {.run_elements = 30};
constexpr ParameterSlice kRows = {.offset = 12, .run_elements = 6};
constexpr ParameterSlice kColumns = {.offset = 2, .runs = 5, .run_elements = 3, .stride = 6};
constexpr ParameterSlice kColumn = {.offset = 5, .runs = 5, .run_elements = 1, .stride = 6};

// Returns the elements of `whole` that the copies bring to the slice.
std::vector<int> Copied(const std::vector<int>& whole, const std::vector<SliceCopy>& copies,
                        std::vector<int> slice) {
  for (const SliceCopy& copy : copies) {
    for (int64_t row = 0; row < copy.rows; ++row) {
      for (int64_t column = 0; column < copy.columns; ++column) {
        slice[copy.slice + row * copy.columns + column] =
            whole[copy.whole + row * copy.stride + column];
      }
    }
  }
  return slice;
}

TEST(SliceCopiesTest, AWholeSliceIsOneCopy) {
  EXPECT_THAT(
      CopiesOf(kWhole, 0, 30),
      ElementsAre(SliceCopy{.whole = 0, .slice = 0, .rows = 1, .columns = 30, .stride = 30}));
  EXPECT_THAT(
      CopiesOf(kRows, 0, 6),
      ElementsAre(SliceCopy{.whole = 12, .slice = 0, .rows = 1, .columns = 6, .stride = 6}));
  EXPECT_THAT(CopiesOf(kColumns, 0, 15),
              ElementsAre(SliceCopy{.whole = 2, .slice = 0, .rows = 5, .columns = 3, .stride = 6}));
}

TEST(SliceCopiesTest, EveryRangeOfASliceHasItsElementsInAtMostThreeCopies) {
  std::vector<int> whole(30);
  std::iota(whole.begin(), whole.end(), 0);
  for (const ParameterSlice& slice : {kWhole, kRows, kColumns, kColumn}) {
    std::vector<int> wanted;
    for (int64_t i = 0; i < slice.elements(); ++i) {
      wanted.push_back(static_cast<int>(slice.offset + i / slice.run_elements * slice.stride +
                                        i % slice.run_elements));
    }
    for (int64_t first = 0; first <= slice.elements(); ++first) {
      for (int64_t count = 0; first + count <= slice.elements(); ++count) {
        const std::vector<SliceCopy> copies = CopiesOf(slice, first, count);
        EXPECT_LE(copies.size(), 3);
        std::vector<int> expected(wanted.size(), -1);
        std::copy_n(wanted.begin() + first, count, expected.begin() + first);
        ASSERT_EQ(Copied(whole, copies, std::vector<int>(wanted.size(), -1)), expected)
            << count << " elements from " << first << " of a slice from " << slice.offset;
      }
    }
  }
}

TEST(SliceCopiesDeathTest, ARangeOutsideOfTheSliceIsOurError) {
  EXPECT_DEATH(CopiesOf(kRows, 4, 3), "4 to 7");
}

}  // namespace
}  // namespace muster::slice_copies_test
