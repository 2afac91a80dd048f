#include "lib/text/logical_workers.h"

#include "gtest/gtest.h"

namespace muster {
namespace {

TEST(LogicalWorkersTest, ListsTheLogicalWorkersOfEachWorker) {
  EXPECT_EQ(LogicalWorkersOfEach(8, 1), "8");
  EXPECT_EQ(LogicalWorkersOfEach(8, 3), "4, 2, 2");
  EXPECT_EQ(LogicalWorkersOfEach(8, 8), "1, 1, 1, 1, 1, 1, 1, 1");
}

TEST(LogicalWorkersTest, GivesTheRangeOfManyWorkers) {
  EXPECT_EQ(LogicalWorkersOfEach(1024, 64), "16 each");
  EXPECT_EQ(LogicalWorkersOfEach(1024, 100), "8 to 16 each");
}

}  // namespace
}  // namespace muster
