#include "lib/collective/shared_memory_communicator.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/conversion_loops.h"
#include "lib/status/status.h"

namespace muster::shared_memory_communicator_test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
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

int64_t ElementsOf(const std::vector<std::byte>& bytes, CollectiveType type) {
  return std::ssize(bytes) / BytesOf(type);
}

TypedBuffer BufferOf(std::vector<std::byte>& bytes, CollectiveType type) {
  return {bytes.data(), ElementsOf(bytes, type), type};
}

// Rounds each value to `type`.
std::vector<std::byte> Encode(const std::vector<double>& values, CollectiveType type) {
  std::vector<std::byte> bytes(values.size() * BytesOf(type));
  if (type == CollectiveType::kF64) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  const std::vector<float> floats(values.begin(), values.end());
  auto* halves = reinterpret_cast<uint16_t*>(bytes.data());
  const kernels::ConversionLoops& loops = kernels::baseline::kConversionLoops;
  const auto n = static_cast<int64_t>(floats.size());
  if (type == CollectiveType::kF32) std::memcpy(bytes.data(), floats.data(), bytes.size());
  if (type == CollectiveType::kBf16) loops.f32_to_bf16(halves, floats.data(), n);
  if (type == CollectiveType::kF16) loops.f32_to_f16(halves, floats.data(), n);
  return bytes;
}

std::vector<double> Decode(const std::vector<std::byte>& bytes, CollectiveType type) {
  const int64_t n = ElementsOf(bytes, type);
  std::vector<double> values(n);
  if (type == CollectiveType::kF64) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::vector<float> floats(n);
  const auto* halves = reinterpret_cast<const uint16_t*>(bytes.data());
  const kernels::ConversionLoops& loops = kernels::baseline::kConversionLoops;
  if (type == CollectiveType::kF32) std::memcpy(floats.data(), bytes.data(), bytes.size());
  if (type == CollectiveType::kBf16) loops.bf16_to_f32(floats.data(), halves, n);
  if (type == CollectiveType::kF16) loops.f16_to_f32(floats.data(), halves, n);
  return {floats.begin(), floats.end()};
}

std::vector<std::byte> RandomElements(int64_t count, int seed, CollectiveType type) {
  const std::vector<float> values = RandomValues(count, seed);
  // A third of a float has more digits than a float, so that f64 is not exact in f32.
  std::vector<double> thirds;
  for (const float value : values) thirds.push_back(value / 3.0);
  return Encode(thirds, type);
}

// Returns the ranks' sum as the contract says: in rank order, in f64 or in f32, rounded once.
std::vector<std::byte> TypedSum(int world_size, int64_t count, CollectiveType type) {
  std::vector<double> sum = Decode(RandomElements(count, 0, type), type);
  for (int rank = 1; rank < world_size; ++rank) {
    const std::vector<double> term = Decode(RandomElements(count, rank, type), type);
    for (int64_t i = 0; i < count; ++i) {
      sum[i] = type == CollectiveType::kF64
                   ? sum[i] + term[i]
                   : static_cast<float>(sum[i]) + static_cast<float>(term[i]);
    }
  }
  return Encode(sum, type);
}

std::string TypeName(CollectiveType type) {
  static constexpr const char* kNames[] = {"f32", "bf16", "f16", "f64"};
  return kNames[static_cast<int>(type)];
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
    ASSERT_TRUE(communicator.ReduceScatter(absl::MakeConstSpan(data), own, nullptr).ok());
    ASSERT_TRUE(communicator.AllGather(TypedBuffer(own), absl::MakeSpan(data), nullptr).ok());
    EXPECT_EQ(data, expected);
  });
}

class TypedCollectivesTest : public testing::TestWithParam<std::tuple<int, CollectiveType>> {
 protected:
  const int world_size_ = std::get<0>(GetParam());
  const CollectiveType type_ = std::get<1>(GetParam());
};
INSTANTIATE_TEST_SUITE_P(
    Types, TypedCollectivesTest,
    testing::Combine(testing::Values(1, 2, 3, 5),
                     testing::Values(CollectiveType::kF32, CollectiveType::kBf16,
                                     CollectiveType::kF16, CollectiveType::kF64)),
    [](const auto& info) {
      return absl::StrCat(TypeName(std::get<1>(info.param)), "_", std::get<0>(info.param),
                          "_ranks");
    });

TEST_P(TypedCollectivesTest, AllReduceAddsInRankOrderAndRoundsOnce) {
  for (const int64_t count : {0, 1, 4, 1001, 100'003}) {
    const std::vector<std::byte> expected = TypedSum(world_size_, count, type_);
    RunRanks(world_size_, [&](Communicator& communicator) {
      std::vector<std::byte> data = RandomElements(count, communicator.rank(), type_);
      ASSERT_TRUE(communicator.AllReduce(BufferOf(data, type_), nullptr).ok());
      EXPECT_TRUE(data == expected) << count << " elements, rank " << communicator.rank();
    });
  }
}

TEST_P(TypedCollectivesTest, ReduceScatterThenAllGatherIsAllReduce) {
  for (const int64_t each : {0, 1, 20'011}) {
    const std::vector<std::byte> expected = TypedSum(world_size_, each * world_size_, type_);
    RunRanks(world_size_, [&](Communicator& communicator) {
      std::vector<std::byte> data = RandomElements(each * world_size_, communicator.rank(), type_);
      const TypedBuffer all = BufferOf(data, type_);
      const TypedBuffer own(all.at(each * communicator.rank()), each, type_);
      ASSERT_TRUE(communicator.ReduceScatter(all, own, nullptr).ok());
      ASSERT_TRUE(communicator.AllGather(own, all, nullptr).ok());
      EXPECT_TRUE(data == expected) << each << " elements, rank " << communicator.rank();
    });
  }
}

TEST_P(TypedCollectivesTest, BroadcastCopiesEveryBit) {
  for (const int64_t count : {0, 77}) {
    RunRanks(world_size_, [&](Communicator& communicator) {
      for (int root = 0; root < world_size_; ++root) {
        std::vector<std::byte> data = RandomElements(count, communicator.rank(), type_);
        ASSERT_TRUE(communicator.Broadcast(BufferOf(data, type_), root, nullptr).ok());
        EXPECT_TRUE(data == RandomElements(count, root, type_)) << "root " << root;
      }
    });
  }
}

// Sums that round after each addition would stay at 256: bf16 has 8 significant bits.
TEST(TypedSumsTest, SmallTermsAreNotLostIn16Bits) {
  RunRanks(5, [](Communicator& communicator) {
    std::vector<std::byte> data =
        Encode({communicator.rank() == 0 ? 256.0 : 0.5}, CollectiveType::kBf16);
    ASSERT_TRUE(communicator.AllReduce(BufferOf(data, CollectiveType::kBf16), nullptr).ok());
    EXPECT_EQ(Decode(data, CollectiveType::kBf16)[0], 258);
  });
}

// fp16 training finds an overflow by the infinity.
TEST(TypedSumsTest, ASumBeyondF16BecomesInfinite) {
  RunRanks(2, [](Communicator& communicator) {
    std::vector<std::byte> data = Encode({40'000, -40'000}, CollectiveType::kF16);
    ASSERT_TRUE(communicator.AllReduce(BufferOf(data, CollectiveType::kF16), nullptr).ok());
    EXPECT_THAT(Decode(data, CollectiveType::kF16), ElementsAre(HUGE_VAL, -HUGE_VAL));
  });
}

TEST_P(SharedMemoryCommunicatorTest, SlicesMayBeWrittenToSharedMemory) {
  const int world_size = GetParam();
  const int64_t each = 1000;
  std::vector<float> shared(each * world_size);
  RunRanks(world_size, [&](Communicator& communicator) {
    const std::vector<float> data = RandomValues(each * world_size, communicator.rank());
    ASSERT_TRUE(communicator
                    .ReduceScatter(absl::MakeConstSpan(data),
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
