#include "lib/plan/chunk_placement.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/graph/zoo/zoo.h"
#include "lib/limits/limits.h"
#include "lib/plan/parameter_table.h"

namespace muster::chunk_placement_test {
namespace {

using ::testing::DoubleEq;
using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::ElementsAre;

v1::Graph GraphOf(std::vector<int64_t> sizes) {
  v1::Graph graph;
  for (int64_t size : sizes) graph.add_parameters()->add_shape(size);
  return graph;
}

v1::Graph Zoo(const std::string& name) {
  v1::ModelSpec spec;
  spec.mutable_zoo()->set_name(name);
  auto graph = BuildModel(spec);
  EXPECT_TRUE(graph.ok()) << name << ": " << graph.status();
  return *std::move(graph);
}

// ---------------------------------------------------------------- balance

class ZooPlacementTest : public ::testing::TestWithParam<std::string> {};

TEST_P(ZooPlacementTest, NoShardHasMoreThanFivePerCentOverItsShareOnOneToSixteenShards) {
  const v1::Graph graph = Zoo(GetParam());
  for (int shards = 1; shards <= 16; ++shards) {
    const std::vector<double> shares = EqualShares(shards);
    const auto chunks = CutAndPlaceChunks(graph, limits::kChunkBytesDefault, shares);
    std::map<int, int64_t> next;
    for (const v1::PlanChunk& chunk : chunks) {
      ASSERT_EQ(chunk.offset(), next[chunk.parameter()]);
      ASSERT_EQ(chunk.offset() % 16, 0);
      ASSERT_LE(4 * chunk.elements(), limits::kChunkBytesDefault);
      next[chunk.parameter()] += chunk.elements();
    }
    for (int p = 0; p < graph.parameters_size(); ++p) {
      ASSERT_EQ(next[p], ElementCount(graph.parameters(p)));
    }
    EXPECT_LE(Imbalance(chunks, shares), kImbalanceMax) << shards << " shards";
  }
}

INSTANTIATE_TEST_SUITE_P(EveryModel, ZooPlacementTest,
                         ::testing::Values("mlp", "lenet", "vgg16", "resnet50", "resnet101",
                                           "inception_v3", "lstm_lm", "gnmt", "transformer", "bert",
                                           "gpt", "gpt2", "ncf"),
                         [](const auto& info) { return info.param; });

TEST(ChunkPlacementTest, TwoValuesAreOnAtMostTwoShards) {
  const v1::Graph graph = Zoo("linear");  // too small to split
  for (int shards = 1; shards <= 16; ++shards) {
    const auto chunks = CutAndPlaceChunks(graph, limits::kChunkBytesDefault, EqualShares(shards));
    ASSERT_EQ(chunks.size(), 2);
    EXPECT_EQ(chunks[0].shard(), 0);
    EXPECT_EQ(chunks[1].shard(), std::min(1, shards - 1));
  }
}

TEST(ChunkPlacementTest, ChunksStayAsLargeAsBalanceAllows) {
  const v1::Graph graph = GraphOf({8 << 20});  // 32 MiB
  auto largest = [&](int shards) {
    int64_t elements = 0;
    for (const auto& chunk : CutAndPlaceChunks(graph, 4 << 20, EqualShares(shards))) {
      elements = std::max(elements, chunk.elements());
    }
    return 4 * elements;
  };

  EXPECT_EQ(largest(1), 4 << 20);
  EXPECT_EQ(largest(4), 4 << 20);
  EXPECT_EQ(largest(8), 4 << 20);
  EXPECT_EQ(largest(16), 2 << 20);
  EXPECT_EQ(largest(3), 1 << 20);  // 32 chunks: 11 + 11 + 10
}

TEST(ChunkPlacementTest, ChunksAreNeverFinerThanTheLimit) {
  const v1::Graph graph = GraphOf({1000, 3});
  for (const auto& chunk : CutAndPlaceChunks(graph, 4 << 20, EqualShares(16))) {
    EXPECT_TRUE(chunk.elements() == 256 || chunk.offset() + chunk.elements() == 1000 ||
                chunk.parameter() == 1)
        << chunk.ShortDebugString();
  }
}

TEST(ChunkPlacementTest, PlacementIsDeterministic) {
  const v1::Graph graph = Zoo("gpt");
  const auto once = CutAndPlaceChunks(graph, 1 << 20, EqualShares(7));
  const auto again = CutAndPlaceChunks(graph, 1 << 20, EqualShares(7));
  ASSERT_EQ(once.size(), again.size());
  for (size_t c = 0; c < once.size(); ++c) {
    EXPECT_EQ(once[c].SerializeAsString(), again[c].SerializeAsString());
  }
}

TEST(ChunkPlacementTest, BytesFollowTheShares) {
  const v1::Graph graph = GraphOf({1 << 20});
  const std::vector<double> shares = {0.5, 0, 0.125, 0.375};
  const auto chunks = CutAndPlaceChunks(graph, 4 << 20, shares);

  std::vector<double> got(shares.size(), 0);
  for (const auto& chunk : chunks) got[chunk.shard()] += chunk.elements() / double{1 << 20};

  EXPECT_THAT(got, ElementsAre(DoubleNear(0.5, 0.025), 0, DoubleNear(0.125, 0.00625),
                               DoubleNear(0.375, 0.01875)));
}

TEST(ChunkPlacementTest, ChunksAreNotCutIntoMoreThanAllowed) {
  const v1::Graph graph = GraphOf({1 << 16});
  EXPECT_EQ(CutAndPlaceChunks(graph, 64 << 10, EqualShares(7), {}, /*chunks_max=*/20).size(), 16);
  EXPECT_GT(CutAndPlaceChunks(graph, 64 << 10, EqualShares(7)).size(), 20);
}

TEST(ChunkPlacementTest, ShardWithoutTrainedChunksHasNoFrozenOnes) {
  const v1::Graph graph = GraphOf({8, 1 << 20});
  for (const auto& chunk : CutAndPlaceChunks(graph, 4 << 20, EqualShares(3), {false, true})) {
    EXPECT_EQ(chunk.shard(), 0) << chunk.ShortDebugString();
  }
}

TEST(ChunkPlacementTest, FrozenParametersDoNotCountForBalance) {
  const v1::Graph graph = GraphOf({1 << 16, 3 << 16, 1 << 16});
  const std::vector<double> shares = EqualShares(4);
  const auto chunks = CutAndPlaceChunks(graph, 4 << 20, shares, {false, true, false});

  std::vector<v1::PlanChunk> trained, frozen;
  std::map<int, int64_t> next;
  for (const auto& chunk : chunks) {
    (chunk.parameter() == 1 ? frozen : trained).push_back(chunk);
    EXPECT_EQ(chunk.offset(), next[chunk.parameter()]);
    next[chunk.parameter()] += chunk.elements();
  }
  EXPECT_LE(Imbalance(trained, shares), kImbalanceMax);
  EXPECT_FALSE(frozen.empty());
}

// ---------------------------------------------------------------- shares

std::vector<std::string> Hosts(const std::string& prefix, int count) {
  std::vector<std::string> hosts;
  for (int i = 0; i < count; ++i) hosts.push_back(prefix + std::to_string(i));
  return hosts;
}

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(ShardSharesTest, SharesAreThoseOfTheoremOne) {
  for (int n = 2; n <= 8; ++n) {
    for (int k = 1; k < n; ++k) {
      const auto shares = ShardShares(Hosts("gpu", n), Hosts("gpu", n) + Hosts("cpu", k));
      const double all = n * n + k * n - 2 * k;
      for (int i = 0; i < n; ++i) EXPECT_DOUBLE_EQ(shares[i], (n - k) / all) << n << ", " << k;
      for (int i = n; i < n + k; ++i) {
        EXPECT_NEAR(shares[i], 2 * (n - 1) / all, 1e-15) << n << ", " << k;
      }
    }
  }
}

// The busiest card has the least to send if both kinds of hosts send the same.
TEST(ShardSharesTest, NoHostSendsLongerThanTheOptimum) {
  for (int n = 2; n <= 6; ++n) {
    for (int g = 0; g <= n; ++g) {
      for (int k = g == 0 ? 1 : 0; k < n; ++k) {
        const auto shares = ShardShares(Hosts("gpu", n), Hosts("gpu", g) + Hosts("cpu", k));
        EXPECT_NEAR(std::accumulate(shares.begin(), shares.end(), 0.0), 1, 1e-12);
        const double x = g > 0 ? shares.front() : 0;
        const double y = k > 0 ? shares.back() : 0;
        EXPECT_GE(std::min(x, y), 0);
        if (g > 0 && k > 0) {
          EXPECT_NEAR((1 - x) + (n - 1) * x, n * y, 1e-12);
        }
      }
    }
  }
}

TEST(ShardSharesTest, SharesAreEqualWithOnlyOneKindOfHost) {
  EXPECT_THAT(ShardShares(Hosts("gpu", 4), Hosts("cpu", 3)), Each(DoubleEq(1.0 / 3)));
  EXPECT_THAT(ShardShares(Hosts("gpu", 4), Hosts("gpu", 4)), Each(DoubleEq(0.25)));
  EXPECT_THAT(ShardShares(Hosts("gpu", 4), Hosts("gpu", 2)), Each(DoubleEq(0.5)));
}

TEST(ShardSharesTest, SharedHostsGetNothingIfThereAreEnoughOtherHosts) {
  for (int k : {3, 5}) {
    const auto shares = ShardShares(Hosts("gpu", 3), Hosts("gpu", 3) + Hosts("cpu", k));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(shares[i], 0);
    for (int i = 3; i < 3 + k; ++i) EXPECT_DOUBLE_EQ(shares[i], 1.0 / k);
  }
}

TEST(ShardSharesTest, OnOneHostAllShardsGetTheSame) {
  EXPECT_THAT(ShardShares({"here", "here"}, {"here", "here", "here", "here"}),
              Each(DoubleEq(0.25)));
}

TEST(ShardSharesTest, OneHostOfWorkersWithShardsKeepsEverything) {
  EXPECT_THAT(ShardShares({"gpu0", "gpu0"}, {"gpu0", "cpu0"}), ElementsAre(1, 0));
}

TEST(ShardSharesTest, WorkersAndShardsOfOneHostCountAsOne) {
  // n = 2, k = 1: 1/4 for each shared host, 1/2 for the other host, split among their shards.
  const auto shares = ShardShares({"gpu0", "gpu0", "gpu1", "gpu1"},
                                  {"gpu0", "gpu0", "gpu1", "cpu0", "cpu0", "cpu0", "cpu0"});
  EXPECT_THAT(shares, ElementsAre(DoubleEq(0.125), DoubleEq(0.125), DoubleEq(0.25), DoubleEq(0.125),
                                  DoubleEq(0.125), DoubleEq(0.125), DoubleEq(0.125)));
}

TEST(ShardSharesTest, UnknownHostsMakeSharesEqual) {
  EXPECT_THAT(ShardShares({"gpu0", ""}, {"gpu0", "cpu0"}), Each(DoubleEq(0.5)));
  EXPECT_THAT(ShardShares({"gpu0", "gpu1"}, {"gpu0", ""}), Each(DoubleEq(0.5)));
}

}  // namespace
}  // namespace muster::chunk_placement_test
