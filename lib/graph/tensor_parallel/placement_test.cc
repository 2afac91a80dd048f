#include "lib/graph/tensor_parallel/placement.h"

#include <vector>

#include "gtest/gtest.h"

namespace muster::placement_test {
namespace {

TEST(PlacementTest, RanksHaveAllUnitsInOrderAndTheFirstOnesHaveOneMore) {
  for (const int64_t units : {4, 25, 257, 50257}) {
    for (int degree = 1; degree <= 4; ++degree) {
      int64_t next = 0;
      for (int rank = 0; rank < degree; ++rank) {
        const RankRange own = UnitsOf(units, {.degree = degree, .rank = rank});
        EXPECT_EQ(own.first, next);
        EXPECT_EQ(own.size, (units + degree - 1 - rank) / degree);
        next += own.size;
      }
      EXPECT_EQ(next, units);
    }
  }
}

// The elements of every slice, put where they belong, are the parameter.
TEST(PlacementTest, SlicesOfAllRanksAreTheParameter) {
  struct Case {
    std::vector<int64_t> shape;
    int dim;
    DimensionSplit split;
  };
  const std::vector<Case> cases = {
      {{7, 3}, 0, {.size = 7, .units = 7}},                 // an embedding
      {{12}, 0, {.size = 12, .units = 3}},                  // a bias, by heads
      {{3, 10}, 1, {.size = 10, .units = 5}},               // the second of two layers
      {{24, 2}, 0, {.size = 24, .units = 4, .blocks = 3}},  // q, k and v
      {{2, 12}, 1, {.size = 12, .units = 3, .blocks = 2}},
  };
  for (const Case& c : cases) {
    int64_t elements = 1;
    for (const int64_t size : c.shape) elements *= size;
    for (int degree : {1, 2, 3}) {
      std::vector<int> ranks(elements, 0);
      for (int rank = 0; rank < degree; ++rank) {
        const TensorParallel group{.degree = degree, .rank = rank};
        const ParameterSlice slice = SliceOf(c.shape, c.dim, c.split, group);
        EXPECT_EQ(slice.elements() * c.split.size, elements * SizeOf(c.split, group));
        for (int64_t run = 0; run < slice.runs; ++run) {
          for (int64_t i = 0; i < slice.run_elements; ++i) {
            ++ranks.at(slice.offset + run * slice.stride + i);
          }
        }
      }
      EXPECT_EQ(ranks, std::vector<int>(elements, 1)) << "degree " << degree;
    }
  }
}

TEST(PlacementTest, ASliceOfRowsIsOneRun) {
  const ParameterSlice slice =
      SliceOf({7, 3}, 0, {.size = 7, .units = 7}, {.degree = 2, .rank = 1});
  EXPECT_EQ(slice, (ParameterSlice{.offset = 12, .runs = 1, .run_elements = 9}));
}

TEST(PlacementTest, ASliceOfColumnsIsOneRunPerRow) {
  const ParameterSlice slice =
      SliceOf({3, 10}, 1, {.size = 10, .units = 5}, {.degree = 2, .rank = 1});
  EXPECT_EQ(slice, (ParameterSlice{.offset = 6, .runs = 3, .run_elements = 4, .stride = 10}));
}

}  // namespace
}  // namespace muster::placement_test
