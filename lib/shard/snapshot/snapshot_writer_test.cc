#include "lib/shard/snapshot/snapshot_writer.h"

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"
#include "lib/shard/testing/fake_member_service.h"
#include "lib/shard/testing/test_plan.h"

namespace muster::snapshot_writer_test {
namespace {

class SnapshotWriterTest : public ::testing::Test {
 protected:
  // `slot_1` adds an optimizer slot with infinite elements.
  std::shared_ptr<const ShardSnapshot> Snapshot(ShardIndex shard, uint64_t id, int64_t step,
                                                bool slot_1 = false) const {
    auto snapshot = std::make_shared<ShardSnapshot>(
        ShardSnapshot{.shard = shard,
                      .id = id,
                      .step = step,
                      .pieces = {{ChunkId(0), 0, absl::MakeSpan(values_)}}});
    if (slot_1) snapshot->pieces.push_back({ChunkId(0), 1, absl::MakeSpan(infinities_)});
    return snapshot;
  }

  std::unique_ptr<SnapshotWriter> Make(int shards = 1) {
    return std::make_unique<SnapshotWriter>(
        SnapshotWriter::Options{.plan = std::make_shared<v1::JobPlan>(plan_),
                                .checkpoints = &client_,
                                .shards = shards,
                                .written =
                                    [this](const ShardSnapshot& snapshot, absl::Duration) {
                                      absl::MutexLock lock(&mu_);
                                      written_.push_back(snapshot.step);
                                    },
                                .report_soon = [] {}});
  }

  std::vector<int64_t> AwaitWritten(size_t count) {
    absl::MutexLock lock(&mu_);
    auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return written_.size() >= count; };
    mu_.Await(absl::Condition(&enough));
    return written_;
  }

  v1::JobPlan plan_ = MakeTestPlan({});
  std::vector<float> values_ = {1, 2, 3};
  const std::vector<float> infinities_{3, std::numeric_limits<float>::infinity()};
  FakeMemberService service_;
  CheckpointClient client_{service_.address()};
  absl::Mutex mu_;
  std::vector<int64_t> written_ ABSL_GUARDED_BY(mu_);
};

TEST_F(SnapshotWriterTest, TakenSnapshotsAreWrittenAndReported) {
  auto writer = Make();
  writer->Taken(Snapshot(kFirstShard, /*id=*/5, /*step=*/40));

  EXPECT_EQ(AwaitWritten(1), std::vector<int64_t>{40});
  ASSERT_EQ(writer->reports().size(), 1);
  EXPECT_EQ(writer->reports()[0].outcome(), v1::SNAPSHOT_WRITTEN);
  EXPECT_EQ(writer->reports()[0].snapshot(), 5);
  EXPECT_EQ(service_.AwaitWritten(1)[0].header.step(), 40);
}

TEST_F(SnapshotWriterTest, RefusedWriteIsReportedWithItsReason) {
  service_.FailNext({grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "not wanted any more")});
  auto writer = Make();
  writer->Taken(Snapshot(kFirstShard, 5, 40));

  AwaitWritten(1);  // the shard continues in any case

  EXPECT_EQ(writer->reports()[0].outcome(), v1::SNAPSHOT_FAILED);
  EXPECT_EQ(writer->reports()[0].message(), "not wanted any more");
}

TEST_F(SnapshotWriterTest, NonFiniteValuesAreNotWrittenUnlessTheJobIgnoresThem) {
  values_[1] = std::numeric_limits<float>::infinity();
  auto writer = Make();
  writer->Taken(Snapshot(kFirstShard, 5, 40));
  AwaitWritten(1);  // the shard continues in any case
  EXPECT_EQ(writer->reports()[0].outcome(), v1::SNAPSHOT_FAILED);
  EXPECT_NE(writer->reports()[0].message().find("'p0'"), std::string::npos)
      << writer->reports()[0].message();
  EXPECT_EQ(service_.calls(), 0);
  values_[1] = 1;
  writer->Taken(Snapshot(kFirstShard, 6, 41, /*slot_1=*/true));
  AwaitWritten(2);
  EXPECT_EQ(writer->reports()[0].outcome(), v1::SNAPSHOT_WRITTEN) << "slots may be infinite";

  values_[1] = std::numeric_limits<float>::quiet_NaN();
  plan_.mutable_spec()->set_on_non_finite(v1::NON_FINITE_IGNORE);
  auto other = Make();
  other->Taken(Snapshot(kFirstShard, 7, 42));
  AwaitWritten(3);
  EXPECT_EQ(other->reports()[0].outcome(), v1::SNAPSHOT_WRITTEN);
}

TEST_F(SnapshotWriterTest, LastOutcomesOfPeriodicAndOtherSnapshotsAreKeptApart) {
  auto writer = Make(2);
  writer->Declined(kFirstShard, /*id=*/7, 30, v1::SNAPSHOT_MISSED, "at version 31");
  writer->Declined(kFirstShard, /*id=*/6, 20, v1::SNAPSHOT_MISSED, "older: superseded");
  writer->Declined(ShardIndex(1), /*id=*/7, 30, v1::SNAPSHOT_FAILED, "no");
  writer->Taken(Snapshot(kFirstShard, /*id=*/0, 50));
  AwaitWritten(1);

  const auto reports = writer->reports();
  ASSERT_EQ(reports.size(), 3);
  EXPECT_EQ(reports[0].step(), 30);
  EXPECT_EQ(reports[0].message(), "at version 31");
  EXPECT_EQ(reports[1].shard(), 1);
  EXPECT_EQ(reports[2].snapshot(), 0);
  EXPECT_EQ(reports[2].outcome(), v1::SNAPSHOT_WRITTEN);
}

TEST_F(SnapshotWriterTest, PassedOverSnapshotDoesNotReplaceThePreviousOutcome) {
  service_.FailNext({grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "not wanted any more")});
  auto writer = Make();
  writer->Taken(Snapshot(kFirstShard, /*id=*/0, 40));
  AwaitWritten(1);
  for (const int64_t step : {50, 60}) {
    writer->Declined(kFirstShard, /*id=*/0, step, v1::SNAPSHOT_MISSED, "passed over");
  }
  const auto reports = writer->reports();
  ASSERT_EQ(reports.size(), 2);
  EXPECT_EQ(reports[0].step(), 40);
  EXPECT_EQ(reports[0].outcome(), v1::SNAPSHOT_FAILED);
  EXPECT_EQ(reports[1].step(), 60);
  EXPECT_EQ(reports[1].outcome(), v1::SNAPSHOT_MISSED);
}

TEST_F(SnapshotWriterTest, CloseAbandonsAWriteThatIsRetried) {
  service_.FailNext(std::vector<grpc::Status>(
      1000, grpc::Status(grpc::StatusCode::UNAVAILABLE, "the coordinator restarts")));
  auto writer = Make();
  writer->Taken(Snapshot(kFirstShard, 5, 40));
  writer->Close();
  writer.reset();  // would hang otherwise
  EXPECT_LT(service_.calls(), 1000);
}

}  // namespace
}  // namespace muster::snapshot_writer_test
