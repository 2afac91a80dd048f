#include "lib/shard/snapshot/checkpoint_client.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/shard/chunks/memory_budget.h"
#include "lib/shard/testing/fake_member_service.h"
#include "lib/shard/testing/test_plan.h"
#include "lib/transport/core/crc32c.h"

namespace muster::checkpoint_client_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const grpc::Status kAway(grpc::StatusCode::UNAVAILABLE, "restarting");

class CheckpointClientTest : public testing::Test {
 protected:
  std::unique_ptr<ParameterShard> MakeShard() {
    return *ParameterShard::Create(
        std::make_shared<v1::JobPlan>(plan_), kFirstShard,
        *budget_.Reserve(ParameterShard::BytesNeeded(plan_, kFirstShard), absl::ZeroDuration()));
  }

  static v1::ShardSlice Slice(int64_t offset, const std::vector<float>& values) {
    v1::ShardSlice slice;
    slice.set_offset_bytes(offset);
    slice.set_data(values.data(), values.size() * sizeof(float));
    slice.set_crc32c(
        Crc32c({reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(float)}));
    return slice;
  }

  const v1::JobPlan plan_ =
      MakeTestPlan({.parameters = {4}, .first_step = 5, .restore = "jobs/job-7/checkpoints/5"});
  MemoryBudget budget_{1 << 20};
  FakeMemberService service_;
  CheckpointClient client_{service_.address()};
};

TEST_F(CheckpointClientTest, WritesASnapshotInSlicesThatFitAMessage) {
  std::vector<float> large(1'000'000), small = {1, 2, 3};
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<float>(i);
  const ShardSnapshot snapshot{
      .shard = ShardIndex(3),
      .id = 9,
      .step = 40,
      .pieces = {{ChunkId(0), 0, large}, {ChunkId(0), 1, large}, {ChunkId(6), 0, small}}};
  ASSERT_TRUE(client_.WriteShard(plan_, snapshot, {}).ok());

  const auto written = service_.AwaitWritten(1);
  EXPECT_EQ(written[0].header.job(), "job-7");
  EXPECT_EQ(written[0].header.generation(), 1);
  EXPECT_EQ(written[0].header.shard(), 3);
  EXPECT_EQ(written[0].header.step(), 40);
  EXPECT_EQ(written[0].header.snapshot(), 9);
  ASSERT_EQ(written[0].slices.size(), 5);
  std::string slot0, last;
  for (const v1::ShardSlice& slice : written[0].slices) {
    EXPECT_LE(slice.data().size(), 2 << 20);
    EXPECT_EQ(slice.crc32c(), Crc32c({reinterpret_cast<const std::byte*>(slice.data().data()),
                                      slice.data().size()}));
    if (slice.chunk() == 0 && slice.slot() == 0) {
      EXPECT_EQ(slice.offset_bytes(), slot0.size());
      slot0 += slice.data();
    }
    if (slice.chunk() == 6) last += slice.data();
  }
  EXPECT_EQ(std::memcmp(slot0.data(), large.data(), slot0.size()), 0);
  EXPECT_EQ(slot0.size(), large.size() * sizeof(float));
  EXPECT_EQ(last.size(), 12);
}

TEST_F(CheckpointClientTest, RetriesIfTheCoordinatorDoesNotAnswerInTime) {
  CheckpointClient client(service_.address(), /*checkpoint_root=*/"",
                          /*call_max=*/absl::Milliseconds(200));
  service_.StallNextWrite();
  const std::vector<float> values = {1, 2, 3};
  ASSERT_TRUE(client.WriteShard(plan_, {.pieces = {{ChunkId(0), 0, values}}}, {}).ok());
  EXPECT_EQ(service_.calls(), 2);
  EXPECT_EQ(service_.AwaitWritten(1).size(), 1);
}

TEST_F(CheckpointClientTest, RewritesFromTheBeginningWhenTheCoordinatorIsBack) {
  service_.FailNext({kAway, kAway});
  const std::vector<float> values = {1, 2, 3};
  ASSERT_TRUE(client_.WriteShard(plan_, {.pieces = {{ChunkId(0), 0, values}}}, {}).ok());
  EXPECT_EQ(service_.calls(), 3);
  EXPECT_EQ(service_.AwaitWritten(1)[0].slices.size(), 1);
}

// gRPC refuses calls beyond its own limits without a reason of ours.
TEST_F(CheckpointClientTest, RetriesIfGrpcIsBusy) {
  service_.FailNext({{grpc::StatusCode::RESOURCE_EXHAUSTED, "too many streams"}});
  const std::vector<float> values = {1, 2, 3};
  ASSERT_TRUE(client_.WriteShard(plan_, {.pieces = {{ChunkId(0), 0, values}}}, {}).ok());
  EXPECT_EQ(service_.calls(), 2);
}

TEST_F(CheckpointClientTest, GivesUpIfTheCoordinatorRefusesTheSnapshot) {
  service_.FailNext({{grpc::StatusCode::FAILED_PRECONDITION, "old generation"}});
  const std::vector<float> values = {1, 2, 3};
  const absl::Status status = client_.WriteShard(plan_, {.pieces = {{ChunkId(0), 0, values}}}, {});
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_EQ(service_.calls(), 1);
}

TEST_F(CheckpointClientTest, StopsRetryingOnRequest) {
  service_.FailNext(std::vector<grpc::Status>(1000, kAway));
  std::stop_source stop;
  std::jthread stopper([&] {
    while (service_.calls() < 2) std::this_thread::yield();
    stop.request_stop();
  });
  const std::vector<float> values = {1, 2, 3};
  EXPECT_TRUE(absl::IsCancelled(
      client_.WriteShard(plan_, {.pieces = {{ChunkId(0), 0, values}}}, stop.get_token())));
}

TEST_F(CheckpointClientTest, RestoresAShardAfterABrokenConnection) {
  service_.SetSlices({Slice(0, {1, 2}), Slice(8, {3, 4})});
  service_.FailNext({kAway});
  auto shard = MakeShard();
  ASSERT_TRUE(client_.ReadShard(*shard, {}).ok());
  EXPECT_EQ(
      std::vector<float>(shard->values(LocalChunk(0)).begin(), shard->values(LocalChunk(0)).end()),
      (std::vector<float>{1, 2, 3, 4}));
}

TEST_F(CheckpointClientTest, CountsOnlyBytesThatAreReadForTheFirstTime) {
  int64_t told = 0;
  auto advanced = [&](int64_t bytes) { told += bytes; };
  auto shard = MakeShard();
  service_.SetSlices({Slice(0, {1, 2}), Slice(8, {3, 4})});
  service_.FailNext({kAway});
  ASSERT_TRUE(client_.ReadShard(*shard, {}, advanced).ok());
  EXPECT_EQ(told, 16);
}

TEST_F(CheckpointClientTest, RefusesADamagedOrIncompleteCheckpoint) {
  auto shard = MakeShard();
  service_.SetSlices({Slice(0, {1, 2})});
  absl::Status status = client_.ReadShard(*shard, {});
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  v1::ShardSlice damaged = Slice(0, {1, 2, 3, 4});
  damaged.set_crc32c(damaged.crc32c() + 1);
  service_.SetSlices({damaged});
  status = client_.ReadShard(*shard, {});
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
}

// A job that writes its shards directly into the coordinator's files.
class DirectClientTest : public CheckpointClientTest {
 protected:
  DirectClientTest() {
    plan_direct_.mutable_spec()->mutable_checkpoint()->set_mode(v1::CHECKPOINT_MODE_DIRECT);
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_ + "/" + folder_);
    std::ofstream(file()) << std::string(kBytes, '.');
    v1::WriteShardDirectResponse layout;
    layout.set_folder(folder_);
    layout.set_jobs_folder("/state/jobs");
    layout.add_files()->set_name("model-00001-of-00001.safetensors");
    layout.mutable_files(0)->set_size_bytes(kBytes);
    v1::ChunkPlace& place = *layout.add_places();
    place.set_chunk(6);
    place.set_offset_bytes(8);
    layout_ = {layout};
    v1::WriteShardDirectResponse& more = layout_.emplace_back();
    more.add_places()->set_chunk(7);
    more.set_ready(true);
    service_.SetLayout(layout_);
  }
  std::string file() const { return root_ + "/" + folder_ + "/model-00001-of-00001.safetensors"; }
  std::string Content() const {
    std::ifstream file(this->file(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  absl::Status Write(const std::string& root) {
    CheckpointClient client(service_.address(), root);
    return client.WriteShard(plan_direct_, snapshot_, {});
  }

  static constexpr int64_t kBytes = 24;
  const std::string root_ = ::testing::TempDir() + "/direct_client",
                    folder_ = "job-7/checkpoints/step-00000040.tmp-1-1-0.7-0123456789abcdef";
  v1::JobPlan plan_direct_ = plan_;
  std::vector<v1::WriteShardDirectResponse> layout_;
  const std::vector<float> first_ = {1, 2}, second_ = {3, 4};
  const ShardSnapshot snapshot_{.shard = ShardIndex(3),
                                .step = 40,
                                .pieces = {{ChunkId(6), 0, first_}, {ChunkId(7), 0, second_}}};
};

TEST_F(DirectClientTest, WritesChunksAtTheirPlacesAndThenReportsThem) {
  service_.FailNext({kAway});
  ASSERT_TRUE(Write(root_).ok());

  EXPECT_EQ(service_.calls(), 2) << "a broken attempt restarts from the beginning";
  const auto told = service_.AwaitWritten(1)[0];
  EXPECT_EQ(told.header.shard(), 3);
  EXPECT_EQ(told.header.step(), 40);
  ASSERT_EQ(told.written.size(), 2);
  EXPECT_EQ(told.written[0].chunk(), 6);
  EXPECT_EQ(told.written[0].size_bytes(), 8);
  EXPECT_EQ(told.written[0].crc32c(), Crc32c(std::as_bytes(std::span(first_))));
  EXPECT_TRUE(told.slices.empty());
  std::string expected(kBytes, '.');
  std::memcpy(expected.data() + 8, first_.data(), 8);
  std::memcpy(expected.data(), second_.data(), 8);
  EXPECT_EQ(Content(), expected);
}

TEST_F(DirectClientTest, ShardThatTheCoordinatorHasIsNotWrittenAgain) {
  v1::WriteShardDirectResponse written;
  written.set_ready(true);
  written.set_written(true);
  service_.SetLayout({written});
  ASSERT_TRUE(Write(root_).ok());
  EXPECT_TRUE(service_.AwaitWritten(1)[0].written.empty());
  EXPECT_EQ(Content(), std::string(kBytes, '.'));
}

TEST_F(DirectClientTest, SendsWithTheReasonIfItCannotWrite) {
  std::filesystem::rename(root_, root_ + "-elsewhere");
  ASSERT_TRUE(Write(root_).ok());
  std::filesystem::remove_all(root_ + "-elsewhere");
  ASSERT_TRUE(Write("").ok());
  layout_[1].clear_places();
  std::filesystem::create_directories(root_ + "/" + folder_);
  std::ofstream(file()) << std::string(kBytes, '.');
  service_.SetLayout(layout_);
  ASSERT_TRUE(Write(root_).ok());

  const auto sent = service_.AwaitWritten(3);
  for (const auto& written : sent) EXPECT_EQ(written.slices.size(), 2);
  EXPECT_THAT(sent[0].header.not_direct_because(),
              AllOf(HasSubstr(root_ + ": open folder: no such file"), HasSubstr("/state/jobs")));
  EXPECT_THAT(sent[1].header.not_direct_because(), HasSubstr("without --checkpoint_root"));
  EXPECT_THAT(sent[2].header.not_direct_because(), HasSubstr("no place for chunk 7"));
}

TEST_F(DirectClientTest, SendsWithoutAReasonIfDirectWritesAreOff) {
  service_.SetLayout({});
  ASSERT_TRUE(Write(root_).ok());
  const auto sent = service_.AwaitWritten(1);
  EXPECT_EQ(sent[0].header.not_direct_because(), "");
  EXPECT_EQ(sent[0].slices.size(), 2);
}

TEST_F(DirectClientTest, DecisionOfTheCoordinatorIsFinal) {
  service_.FailNext({{grpc::StatusCode::FAILED_PRECONDITION, "old generation"}});
  EXPECT_TRUE(absl::IsFailedPrecondition(Write(root_)));
  EXPECT_EQ(service_.calls(), 1);
}

}  // namespace
}  // namespace muster::checkpoint_client_test
