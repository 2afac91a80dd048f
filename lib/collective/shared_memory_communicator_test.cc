#include "lib/collective/shared_memory_communicator.h"

#include <functional>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/status/status.h"

namespace muster::shared_memory_communicator_test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// Runs `body` for every rank of a group, each on its own thread.
void RunRanks(int world_size, const std::function<void(Communicator&)>& body) {
  SharedMemoryGroup group(world_size, absl::Seconds(60));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] { body(*group.Join(rank)); });
  }
}

std::vector<float> RandomValues(int64_t count, int seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(count);
  for (float& value : values) value = uniform(random);
  return values;
}

// Returns the sum of the ranks' values in rank order, bit for bit.
std::vector<float> SumInRankOrder(int world_size, int64_t count) {
  std::vector<float> sum = RandomValues(count, 0);
  for (int rank = 1; rank < world_size; ++rank) {
    const std::vector<float> term = RandomValues(count, rank);
    for (int64_t i = 0; i < count; ++i) sum[i] += term[i];
  }
  return sum;
}

class SharedMemoryCommunicatorTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(WorldSizes, SharedMemoryCommunicatorTest, testing::Values(1, 2, 3, 5));

TEST_P(SharedMemoryCommunicatorTest, AllReduceAddsInRankOrderForEverySize) {
  const int world_size = GetParam();
  for (const int64_t count : {1, 2, 7, 1000, 100'003}) {
    const std::vector<float> expected = SumInRankOrder(world_size, count);
    RunRanks(world_size, [&](Communicator& communicator) {
      std::vector<float> data = RandomValues(count, communicator.rank());
      ASSERT_TRUE(communicator.AllReduce(absl::MakeSpan(data), nullptr).ok());
      EXPECT_EQ(data, expected) << count << " elements, rank " << communicator.rank();
    });
  }
}

TEST_P(SharedMemoryCommunicatorTest, ReduceScatterThenAllGatherIsAllReduce) {
  const int world_size = GetParam();
  const int64_t each = 20'011;
  const std::vector<float> expected = SumInRankOrder(world_size, each * world_size);
  RunRanks(world_size, [&](Communicator& communicator) {
    std::vector<float> data = RandomValues(each * world_size, communicator.rank());
    const absl::Span<float> own = absl::MakeSpan(data).subspan(each * communicator.rank(), each);
    ASSERT_TRUE(communicator.ReduceScatter(data, own, nullptr).ok());
    ASSERT_TRUE(communicator.AllGather(own, absl::MakeSpan(data), nullptr).ok());
    EXPECT_EQ(data, expected);
  });
}

TEST_P(SharedMemoryCommunicatorTest, SlicesMayBeWrittenToSharedMemory) {
  const int world_size = GetParam();
  const int64_t each = 1000;
  std::vector<float> shared(each * world_size);
  RunRanks(world_size, [&](Communicator& communicator) {
    const std::vector<float> data = RandomValues(each * world_size, communicator.rank());
    ASSERT_TRUE(communicator
                    .ReduceScatter(data,
                                   absl::MakeSpan(shared).subspan(each * communicator.rank(), each),
                                   nullptr)
                    .ok());
  });
  EXPECT_EQ(shared, SumInRankOrder(world_size, each * world_size));
}

TEST_P(SharedMemoryCommunicatorTest, BroadcastCopiesTheRootsValues) {
  const int world_size = GetParam();
  RunRanks(world_size, [&](Communicator& communicator) {
    for (int root = 0; root < world_size; ++root) {
      std::vector<float> data(77, static_cast<float>(communicator.rank()));
      ASSERT_TRUE(communicator.Broadcast(absl::MakeSpan(data), root, nullptr).ok());
      EXPECT_THAT(data, Each(static_cast<float>(root)));
    }
  });
}

TEST_P(SharedMemoryCommunicatorTest, SuccessiveOperationsDoNotInterfere) {
  const int world_size = GetParam();
  RunRanks(world_size, [&](Communicator& communicator) {
    for (int round = 0; round < 500; ++round) {
      std::vector<float> data(world_size * 3, static_cast<float>(communicator.rank() + round));
      ASSERT_TRUE(communicator.AllReduce(absl::MakeSpan(data), nullptr).ok());
      const float sum = static_cast<float>(world_size * round + world_size * (world_size - 1) / 2);
      ASSERT_THAT(data, Each(sum));
      data[0] = static_cast<float>(round * communicator.rank());
      ASSERT_TRUE(
          communicator.Broadcast(absl::MakeSpan(data).first(1), round % world_size, nullptr).ok());
      ASSERT_EQ(data[0], static_cast<float>(round * (round % world_size)));
    }
  });
}

TEST(SharedMemoryGroupTest, ARankThatNeverComesIsNamedAfterTheTimeout) {
  SharedMemoryGroup group(3, absl::Milliseconds(20));
  std::vector<absl::Status> statuses(2);
  {
    std::vector<std::jthread> threads;
    for (int rank : {0, 1}) {
      threads.emplace_back([&, rank] {
        std::vector<float> data(10);
        statuses[rank] = group.Join(rank)->AllReduce(absl::MakeSpan(data), nullptr);
      });
    }
  }
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_EQ(ReasonOf(status), "COLLECTIVE_TIMEOUT");
    EXPECT_THAT(status.message(), HasSubstr("AllReduce"));
    EXPECT_THAT(status.message(), HasSubstr("for device 2"));
  }
}

TEST(SharedMemoryGroupTest, AbortReleasesWaitersAndIsFinal) {
  SharedMemoryGroup group(2);
  absl::Status waited;
  std::jthread waiter([&] {
    std::vector<float> data(10);
    waited = group.Join(0)->AllReduce(absl::MakeSpan(data), nullptr);
  });
  group.Abort(absl::UnavailableError("device 1 burnt down"));
  waiter.join();
  EXPECT_EQ(waited, absl::UnavailableError("device 1 burnt down"));
  std::vector<float> data(10);
  EXPECT_EQ(group.Join(1)->Broadcast(absl::MakeSpan(data), 0, nullptr),
            absl::UnavailableError("device 1 burnt down"));
}

}  // namespace
}  // namespace muster::shared_memory_communicator_test
