#include "services/worker/training/device_grid.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "lib/graph/tensor_parallel/placement.h"
#include "lib/plan/numbers.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster::device_grid_test {
namespace {

TEST(DeviceGridTest, CutsRangesEvenlyWithoutGaps) {
  for (int64_t count : {0, 1, 7, 16, 1001}) {
    for (int parts : {1, 2, 3, 8}) {
      int64_t next = 5;
      for (int i = 0; i < parts; ++i) {
        const SampleRange part = PartOf({5, count}, i, parts);
        EXPECT_EQ(part.first, next);
        EXPECT_GE(part.count, count / parts);
        EXPECT_LE(part.count, count / parts + 1);
        next += part.count;
      }
      EXPECT_EQ(next, 5 + count);
    }
  }
}

// Replicas that meet in every micro-batch would wait forever for one with fewer of them.
TEST(DeviceGridTest, AllReplicasHaveEquallyManyMicroBatches) {
  for (int64_t samples = 2; samples <= 40; ++samples) {
    for (int replicas = 1; replicas <= std::min<int64_t>(4, samples); ++replicas) {
      for (const int64_t limit : {0, 2, 3, 7, 16, 100}) {
        SCOPED_TRACE(testing::Message()
                     << samples << " samples, " << replicas << " replicas, limit " << limit);
        const size_t parts = MicroBatchesOf({5, samples}, limit, 0, replicas).size();
        int64_t next = 5;
        for (int replica = 0; replica < replicas; ++replica) {
          const auto cut = MicroBatchesOf({5, samples}, limit, replica, replicas);
          EXPECT_EQ(cut.size(), parts);
          for (const SampleRange& part : cut) {
            EXPECT_EQ(part.first, next);
            EXPECT_GE(part.count, 1);
            EXPECT_LE(part.count, limit == 0 ? samples : limit);
            next += part.count;
          }
        }
        EXPECT_EQ(next, 5 + samples);
      }
    }
  }
  EXPECT_EQ(MicroBatchesOf({0, 33}, /*limit=*/16, 1, 2).size(), 2) << "16 samples would fit in one";
  EXPECT_EQ(MicroBatchesOf({0, 3}, /*limit=*/1, 1, 2).size(), 1) << "the replica has one sample";
}

// A plan of two workers with 10 and 9 samples of each batch.
v1::JobPlan Plan(int tensor_parallel, int logical = 0) {
  v1::JobPlan plan;
  v1::ResourceSpec& resources = *plan.mutable_spec()->mutable_resources();
  resources.set_tensor_parallel(tensor_parallel);
  resources.mutable_workers()->set_logical(logical);
  plan.mutable_spec()->mutable_data()->set_batch_size(19);
  int64_t first = 0;
  for (const int64_t samples : {10, 9}) {
    v1::PlanWorker& worker = *plan.add_workers();
    worker.set_first_position(first);
    worker.set_samples(samples);
    first += samples;
  }
  return plan;
}

TEST(DeviceGridTest, RanksAreNeighbours) {
  const v1::JobPlan plan = Plan(/*tensor_parallel=*/2);
  const DeviceGrid grid(plan, Rank(0), /*devices=*/6);
  EXPECT_EQ(grid.replicas(), 3);
  EXPECT_EQ(grid.devices(), 6);
  for (int device = 0; device < 6; ++device) {
    EXPECT_EQ(grid.replica_of(device), device / 2);
    EXPECT_EQ(grid.rank_of(device), (TensorParallel{.degree = 2, .rank = device % 2}));
  }
  EXPECT_EQ(grid.first_device(2), 4);
}

TEST(DeviceGridTest, ReplicasShareTheSamplesAndRanksDoNot) {
  const v1::JobPlan plan = Plan(/*tensor_parallel=*/4);
  const DeviceGrid grid(plan, Rank(1), /*devices=*/8);
  EXPECT_EQ(grid.RunsOf(0), (std::vector<SampleRange>{{0, 5}}));
  EXPECT_EQ(grid.RunsOf(1), (std::vector<SampleRange>{{5, 4}}));
  EXPECT_EQ(grid.HeldOut(7), (SampleRange{4, 3}));
  EXPECT_EQ(grid.HeldOutOf(0, 7), (SampleRange{4, 2}));
  EXPECT_EQ(grid.HeldOutOf(1, 7), (SampleRange{6, 1}));
  EXPECT_EQ(grid.HeldOutAtOnce(0), 5);
}

TEST(DeviceGridTest, ReplicasBeyondTheSmallestShareStayIdle) {
  const auto in_use = [](const v1::JobPlan& plan, int64_t devices) {
    return DeviceGrid(plan, Rank(1), devices).devices();
  };
  EXPECT_EQ(in_use(Plan(1), 16), 9);
  EXPECT_EQ(in_use(Plan(2), 32), 18);
  EXPECT_EQ(in_use(Plan(2, /*logical=*/8), 32), 4);
}

TEST(DeviceGridTest, EachReplicaComputesItsPartOfEveryLogicalWorker) {
  const v1::JobPlan plan = Plan(/*tensor_parallel=*/2, /*logical=*/4);
  const DeviceGrid grid(plan, Rank(0), /*devices=*/4);
  EXPECT_EQ(grid.leaves().leaves, 2);
  EXPECT_EQ(grid.RunsOf(0), (std::vector<SampleRange>{{0, 3}, {5, 3}}));
  EXPECT_EQ(grid.RunsOf(1), (std::vector<SampleRange>{{3, 2}, {8, 2}}));
}

}  // namespace
}  // namespace muster::device_grid_test
