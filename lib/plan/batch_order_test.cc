#include "lib/plan/batch_order.h"

#include <gtest/gtest.h>

#include <vector>

namespace muster::batch_order_test {
namespace {

std::vector<int64_t> BatchesOf(int steps, std::vector<int64_t> left_out) {
  std::vector<int64_t> batches;
  for (int step = 0; step < steps; ++step) batches.push_back(BatchOfStep(step, left_out));
  return batches;
}

TEST(BatchOrderTest, StepsSkipTheBatchesThatAreLeftOut) {
  EXPECT_EQ(BatchesOf(4, {}), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(BatchesOf(5, {2}), (std::vector<int64_t>{0, 1, 3, 4, 5}));
  EXPECT_EQ(BatchesOf(4, {0, 1, 4}), (std::vector<int64_t>{2, 3, 5, 6}));
  EXPECT_EQ(BatchesOf(3, {2, 3, 4}), (std::vector<int64_t>{0, 1, 5}));
}

}  // namespace
}  // namespace muster::batch_order_test
