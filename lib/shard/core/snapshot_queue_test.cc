#include "lib/shard/core/snapshot_queue.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace muster::snapshot_queue_test {
namespace {

TEST(SnapshotQueueTest, NextDueStepIsABarrierUntilTheChunkIsHeld) {
  SnapshotQueue queue(/*chunks=*/2, /*every_steps=*/4);
  EXPECT_EQ(queue.Barrier(LocalChunk(0)), SnapshotQueue::kNoBarrier)
      << "nothing is owed before the start";
  queue.Start(/*first_step=*/5, /*total_steps=*/14);
  EXPECT_EQ(queue.Barrier(LocalChunk(0)), 8);
  EXPECT_FALSE(queue.Begin(/*highest=*/7));
  ASSERT_TRUE(queue.Begin(8));
  EXPECT_TRUE(queue.Wants(LocalChunk(0), 8));
  EXPECT_FALSE(queue.Wants(LocalChunk(1), 7)) << "the chunk has not reached the step";
  EXPECT_FALSE(queue.Held(LocalChunk(0)));
  EXPECT_EQ(queue.Barrier(LocalChunk(0)), 12);
  EXPECT_EQ(queue.Barrier(LocalChunk(1)), 8);
  EXPECT_TRUE(queue.Held(LocalChunk(1)));
  EXPECT_TRUE(queue.taken());
  EXPECT_FALSE(queue.Begin(12)) << "there is memory for one snapshot";
  EXPECT_FALSE(queue.Written(0, 12)) << "another snapshot";
  EXPECT_TRUE(queue.Written(0, 8));
  EXPECT_TRUE(queue.Begin(12));
  for (int chunk : {0, 1}) queue.Held(LocalChunk(chunk));
  EXPECT_EQ(queue.Barrier(LocalChunk(0)), 14) << "the final snapshot";
}

TEST(SnapshotQueueTest, DueSnapshotIsPassedOverDuringAWriteExceptTheFinalOne) {
  SnapshotQueue queue(/*chunks=*/1, /*every_steps=*/4);
  queue.Start(/*first_step=*/0, /*total_steps=*/10);
  EXPECT_FALSE(queue.PassOver(4)) << "nothing is being written";
  ASSERT_TRUE(queue.Begin(4));
  EXPECT_FALSE(queue.PassOver(8)) << "still nothing is being written";
  queue.Held(LocalChunk(0));
  EXPECT_FALSE(queue.PassOver(7)) << "no chunk is at step 8";
  const auto passed = queue.PassOver(8);
  ASSERT_TRUE(passed);
  EXPECT_EQ(passed->id, 0);
  EXPECT_EQ(passed->step, 8);
  EXPECT_EQ(queue.Barrier(LocalChunk(0)), 10);
  EXPECT_FALSE(queue.PassOver(10));
  EXPECT_TRUE(queue.Written(0, 4));
  EXPECT_FALSE(queue.Begin(9));
  EXPECT_TRUE(queue.Begin(10));
}

TEST(SnapshotQueueTest, RequestedSnapshotIsPassedOverAndNotTakenLater) {
  SnapshotQueue queue(/*chunks=*/1, /*every_steps=*/4);
  queue.Start(/*first_step=*/0, /*total_steps=*/10);
  ASSERT_TRUE(queue.Begin(4));
  queue.Held(LocalChunk(0));
  queue.Demand(7, 6);
  EXPECT_EQ(queue.next_step(), 6);
  const auto passed = queue.PassOver(6);
  ASSERT_TRUE(passed);
  EXPECT_EQ(passed->id, 7);
  EXPECT_EQ(passed->step, 6);
  EXPECT_TRUE(queue.Knows(7)) << "a repeated directive";
  EXPECT_EQ(queue.Barrier(LocalChunk(0)), 8) << "the periodic snapshot is still due";
  EXPECT_FALSE(queue.PassOver(7));
}

TEST(SnapshotQueueTest, NoSnapshotIsDueAfterTheEnd) {
  SnapshotQueue queue(/*chunks=*/1, /*every_steps=*/0);
  queue.Start(0, 3);
  EXPECT_EQ(queue.Barrier(LocalChunk(0)), 3);
  ASSERT_TRUE(queue.Begin(3));
  queue.Held(LocalChunk(0));
  EXPECT_TRUE(queue.Written(0, 3));
  EXPECT_FALSE(queue.Begin(3));
  EXPECT_EQ(queue.Barrier(LocalChunk(0)), SnapshotQueue::kNoBarrier);
}

TEST(SnapshotQueueTest, RequestSupersedesTheLastAndPrecedesAPeriodicSnapshot) {
  SnapshotQueue queue(/*chunks=*/1, /*every_steps=*/4);
  queue.Start(0, 100);
  queue.Demand(7, 2);
  EXPECT_EQ(queue.Barrier(LocalChunk(0)), 2);
  queue.Demand(8, 4);
  EXPECT_FALSE(queue.Knows(7));
  EXPECT_TRUE(queue.Knows(8));
  ASSERT_TRUE(queue.Begin(4));
  EXPECT_EQ(queue.current()->id, 8);
  queue.Held(LocalChunk(0));
  EXPECT_EQ(queue.Barrier(LocalChunk(0)), 4) << "the periodic snapshot";
  EXPECT_TRUE(queue.Written(8, 4));
  EXPECT_TRUE(queue.Knows(8)) << "a repeated directive";
  ASSERT_TRUE(queue.Begin(4));
  EXPECT_EQ(queue.current()->id, 0);
}

TEST(SnapshotQueueTest, ShardWithoutChunksTakesASnapshotAtOnce) {
  SnapshotQueue queue(/*chunks=*/0, /*every_steps=*/0);
  queue.Demand(3, 5);
  ASSERT_TRUE(queue.Begin(INT64_MAX));
  EXPECT_TRUE(queue.taken());
}

}  // namespace
}  // namespace muster::snapshot_queue_test
