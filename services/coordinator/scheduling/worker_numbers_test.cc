#include "services/coordinator/scheduling/worker_numbers.h"

#include "gtest/gtest.h"

namespace muster::worker_numbers_test {
namespace {

TEST(WorkerNumbersTest, NumbersThatShortenNoStepAreRoundedDown) {
  const int useful_of_8[] = {0, 1, 2, 2, 4, 4, 4, 4, 8};
  for (int workers = 0; workers <= 8; ++workers) {
    EXPECT_EQ(UsefulAtMost(workers, /*least=*/1, /*logical=*/8), useful_of_8[workers]) << workers;
    EXPECT_EQ(UsefulAtMost(workers, 1, /*logical=*/0), workers) << "without logical workers";
  }
  EXPECT_EQ(UsefulAtMost(5, 1, /*logical=*/6), 4);
  EXPECT_EQ(UsefulAtMost(6, 1, /*logical=*/6), 6);
}

TEST(WorkerNumbersTest, TheLeastNumberOfWorkersIsNotRounded) {
  EXPECT_EQ(UsefulAtMost(7, /*least=*/5, /*logical=*/8), 5);
  EXPECT_EQ(UsefulAtMost(5, 5, 8), 5);
  EXPECT_EQ(UsefulAtMost(4, 5, 8), 4) << "the caller has too few workers";
  EXPECT_EQ(UsefulAtMost(8, 5, 8), 8);
}

TEST(WorkerNumbersTest, AJobUsesTheLargestUsefulNumberUpToItsMaximum) {
  const auto most = [](int min, int max, int logical, int64_t batch_size = 64) {
    v1::JobSpec spec;
    spec.mutable_data()->set_batch_size(batch_size);
    v1::WorkerCount& workers = *spec.mutable_resources()->mutable_workers();
    workers.set_min(min);
    workers.set_max(max);
    workers.set_logical(logical);
    return MostWorkers(spec);
  };
  EXPECT_EQ(most(1, 7, 0), 7);
  EXPECT_EQ(most(1, 7, 0, /*batch_size=*/3), 3);
  EXPECT_EQ(most(1, 7, 8), 4);
  EXPECT_EQ(most(1, 8, 8), 8);
  EXPECT_EQ(most(5, 7, 8), 5);
  EXPECT_EQ(most(3, 0, 0), 3) << "without a maximum";
}

}  // namespace
}  // namespace muster::worker_numbers_test
