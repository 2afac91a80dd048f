#include "lib/collective/counted_communicator.h"

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/collective/shared_memory_communicator.h"
#include "lib/telemetry/metrics.h"

namespace muster::counted_communicator_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(CountedCommunicatorTest, CountsOperationsByKindAndIgnoresFailures) {
  constexpr int kRanks = 2;
  Metrics metrics;
  SharedMemoryGroup group(kRanks);
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back([&, rank] {
        CountedCommunicator communicator(group.Join(rank), CollectiveLibrary::kSharedMemory,
                                         metrics);
        EXPECT_EQ(communicator.rank(), rank);
        EXPECT_EQ(communicator.world_size(), kRanks);
        std::vector<float> data(8, 1), slice(4);
        ASSERT_TRUE(communicator.AllReduce(absl::MakeSpan(data), nullptr).ok());
        EXPECT_EQ(data[7], 2);
        ASSERT_TRUE(
            communicator.ReduceScatter(absl::MakeConstSpan(data), absl::MakeSpan(slice), nullptr)
                .ok());
        ASSERT_TRUE(
            communicator.AllGather(absl::MakeConstSpan(slice), absl::MakeSpan(data), nullptr).ok());
        ASSERT_TRUE(communicator.Broadcast(absl::MakeSpan(slice), 1, nullptr).ok());
        communicator.Abort(absl::CancelledError("the job ends"));
        EXPECT_FALSE(communicator.AllReduce(absl::MakeSpan(data), nullptr).ok());
      });
    }
  }
  const std::string text = metrics.Render();
  const auto count = [](const char* what, const char* operation, int value) {
    return HasSubstr(absl::StrCat("muster_collective_", what,
                                  "{library=\"shared_memory\",operation=\"", operation, "\"} ",
                                  value, "\n"));
  };
  EXPECT_THAT(text, count("operations_total", "all_reduce", kRanks));
  EXPECT_THAT(text, count("bytes_total", "all_reduce", kRanks * 32));
  EXPECT_THAT(text, count("bytes_total", "reduce_scatter", kRanks * 32));
  EXPECT_THAT(text, count("bytes_total", "all_gather", kRanks * 32));
  EXPECT_THAT(text, count("duration_seconds_count", "reduce_scatter", kRanks));
}

TEST(CountedCommunicatorTest, CountsTheBytesOfEachType) {
  Metrics metrics;
  SharedMemoryGroup group(1);
  CountedCommunicator communicator(group.Join(0), CollectiveLibrary::kSharedMemory, metrics);
  std::vector<uint16_t> halves(3);
  std::vector<double> doubles(3);
  ASSERT_TRUE(
      communicator.AllReduce(TypedBuffer(halves.data(), 3, CollectiveType::kBf16), nullptr).ok());
  ASSERT_TRUE(communicator.Broadcast(absl::MakeSpan(doubles), 0, nullptr).ok());
  EXPECT_THAT(metrics.Render(), HasSubstr("operation=\"all_reduce\"} 6\n"));
  EXPECT_THAT(metrics.Render(), HasSubstr("operation=\"broadcast\"} 24\n"));
}

TEST(CountedCommunicatorTest, EnqueuedOperationsHaveNoDuration) {
  Metrics metrics;
  SharedMemoryGroup group(1);
  CountedCommunicator communicator(group.Join(0), CollectiveLibrary::kNccl, metrics);
  std::vector<float> data(3);
  ASSERT_TRUE(communicator.Broadcast(absl::MakeSpan(data), 0, nullptr).ok());
  EXPECT_THAT(metrics.Render(),
              HasSubstr("muster_collective_bytes_total{library=\"nccl\",operation=\"broadcast\"} "
                        "12\n"));
  EXPECT_THAT(metrics.Render(), Not(HasSubstr("muster_collective_duration_seconds")));
}

}  // namespace
}  // namespace muster::counted_communicator_test
