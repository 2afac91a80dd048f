// Shards agree on the ranks that contribute to a step. lib/shard's simulation tests the agreement
// itself; here it runs through threads and a network.
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "lib/shard/testing/test_plan.h"
#include "services/ps/fake_peers.h"
#include "services/ps/judged_job.h"

namespace muster::backup_workers_test {
namespace {

v1::JobPlan PlanWithOneBackupWorker() {
  TestPlanOptions options{.parameters = {6, 5}, .workers = 3, .shards = 2};
  options.sync.set_backup_workers(1);
  return MakeTestPlan(options);
}

class BackupWorkersTest : public testing::Test {
 protected:
  BackupWorkersTest() : job_(PlanWithOneBackupWorker()) {}

  // Returns the only chunk of a shard.
  int ChunkOf(int shard) const { return job_.plan().chunks(0).shard() == shard ? 0 : 1; }

  void Push(int64_t step, int rank, float gradient) {
    for (int shard : {0, 1}) job_.Worker(rank, shard).Push(step, ChunkOf(shard), gradient);
  }

  FakeWorker::Message Answer(int rank, int shard) { return job_.Worker(rank, shard).Receive(); }

  JudgedJob job_;
};

TEST_F(BackupWorkersTest, StepTakesTheRanksThatHavePushedToEveryShard) {
  const std::vector<Values> before = job_.Fetch(0);
  job_.Worker(1, 0).Push(0, ChunkOf(0), 100);  // but not to the other shard
  for (int rank : {2, 0}) Push(0, rank, 0.25f);
  for (int shard : {0, 1}) {
    for (int rank : {0, 2}) {
      const FakeWorker::Message answer = Answer(rank, shard);
      EXPECT_EQ(answer.header.step, 1);
      const float value = before[job_.plan().chunks(ChunkOf(shard)).parameter()][0];
      EXPECT_FLOAT_EQ(answer.payload[0], value - 0.5f * 0.5f * 3 / 2);
    }
  }
  EXPECT_EQ(Answer(1, 0).header.step, 1) << "its push had arrived and was dropped";
  EXPECT_EQ(job_.late(), 1);
}

TEST_F(BackupWorkersTest, LateWorkerIsAnsweredWithTheCurrentVersion) {
  for (int64_t step : {0, 1, 2}) {
    for (int rank : {0, 2}) Push(step, rank, 1);
    for (int shard : {0, 1}) {
      for (int rank : {0, 2}) EXPECT_EQ(Answer(rank, shard).header.step, step + 1);
    }
  }
  Push(0, 1, 1);
  for (int shard : {0, 1}) {
    const FakeWorker::Message answer = Answer(1, shard);
    EXPECT_EQ(answer.header.kind, MessageKind::kParams);
    EXPECT_EQ(answer.header.step, 3);
  }
  EXPECT_EQ(job_.late(), 2);
  // The late worker continues with the others.
  for (int rank : {1, 2}) Push(3, rank, 1);
  for (int shard : {0, 1}) EXPECT_EQ(Answer(1, shard).header.step, 4);
}

TEST_F(BackupWorkersTest, WorkerThatImpersonatesAShardIsCutOffAndClosesNothing) {
  WireHeader arrived = FetchHeader(job_.plan(), 0, 0, /*rank=*/1);
  arrived.kind = MessageKind::kArrived;
  WireHeader closed = FetchHeader(job_.plan(), 0, 0, /*rank=*/0);
  closed.kind = MessageKind::kClosed;
  const std::string all("\7\0\0\0\0\0\0\0", 8);
  job_.Worker(0, 0).Send(arrived, all);
  job_.Worker(0, 1).Send(closed, all);
  for (int shard : {0, 1}) {
    EXPECT_FALSE(job_.Worker(0, shard).AwaitLost().ok());
    job_.GreetAgain(0, shard);
    job_.Worker(0, shard).Send(FetchHeader(job_.plan(), 0, ChunkOf(shard), 0));
    EXPECT_EQ(Answer(0, shard).header.step, 0);
  }
  EXPECT_EQ(job_.refused(RefusalReason::kBadHeader), 2);
  for (int rank : {0, 2}) Push(0, rank, 1);
  EXPECT_EQ(Answer(0, 1).header.step, 1);
}

}  // namespace
}  // namespace muster::backup_workers_test
