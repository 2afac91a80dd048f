#include "lib/plan/sum_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "kernels/optimizer/optimizer.h"
#include "lib/limits/limits.h"

namespace muster::sum_tree_test {
namespace {

constexpr uint32_t kSeed = 41;

SumNode RootOf(int64_t leaves) { return {.leaves = leaves}; }

std::vector<int64_t> SizesOf(absl::Span<const SumNode> nodes) {
  std::vector<int64_t> sizes;
  for (const SumNode& node : nodes) sizes.push_back(node.leaves);
  return sizes;
}

// Adds numbers along the tree, directly from its definition.
float TreeSum(absl::Span<const float> numbers) {
  if (numbers.size() == 1) return numbers[0];
  const size_t left = (numbers.size() + 1) / 2;
  return TreeSum(numbers.first(left)) + TreeSum(numbers.subspan(left));
}

// Adds `sums`, one for each piece of `node`, as `joins` say.
float Joined(SumNode node, absl::Span<const SumNode> pieces, absl::Span<const float> sums) {
  const std::vector<uint8_t> joins = JoinsOf(node, pieces);
  std::vector<float> open;
  for (size_t piece = 0; piece < joins.size(); ++piece) {
    open.push_back(sums[piece]);
    for (int join = 0; join < joins[piece]; ++join) {
      const float last = open.back();
      open.pop_back();
      open.back() += last;
    }
  }
  EXPECT_EQ(open.size(), 1);
  return open[0];
}

// Returns the sum of the leaves of `node`, added by a worker with so many devices. Each device has
// a node of its own, and adds its leaves one by one.
float SumOfWorker(SumNode node, int64_t devices, absl::Span<const float> leaves) {
  const std::vector<SumNode> cut = CutNode(node, std::min(devices, node.leaves));
  std::vector<float> sums;
  for (const SumNode& part : cut) {
    sums.push_back(
        Joined(part, CutNode(part, part.leaves), leaves.subspan(part.first_leaf, part.leaves)));
  }
  return Joined(node, cut, sums);
}

TEST(SumTreeTest, EveryCutHasTheBitsOfTheWholeTree) {
  std::mt19937 random(kSeed);
  std::normal_distribution<float> normal;
  int differ_from_rank_order = 0;
  for (int64_t k = 1; k <= 69; ++k) {
    std::vector<float> leaves(k);
    for (float& leaf : leaves) leaf = normal(random);
    const float whole = TreeSum(leaves);
    for (int64_t workers = 1; workers <= k; ++workers) {
      const std::vector<SumNode> cut = CutNode(RootOf(k), workers);
      for (int64_t devices = 1; devices <= 4; ++devices) {
        std::vector<float> sums;
        for (const SumNode& node : cut) sums.push_back(SumOfWorker(node, devices, leaves));
        ASSERT_EQ(std::bit_cast<uint32_t>(Joined(RootOf(k), cut, sums)),
                  std::bit_cast<uint32_t>(whole))
            << k << " leaves, " << workers << " workers, " << devices << " devices, seed " << kSeed;
      }
    }
    float in_order = leaves[0];
    for (int64_t leaf = 1; leaf < k; ++leaf) in_order += leaves[leaf];
    if (in_order != whole) ++differ_from_rank_order;
  }
  EXPECT_GT(differ_from_rank_order, 30);
}

// The sums of a job: a worker adds its leaves two at a time, the ps adds the workers' sums at once.
TEST(SumTreeTest, TheKernelsGiveTheSameBitsForEveryCut) {
  constexpr int64_t kElements = 37;
  std::mt19937 random(kSeed);
  std::normal_distribution<float> normal;
  for (int64_t k = 1; k <= 64; ++k) {
    std::vector<std::vector<float>> leaves(k, std::vector<float>(kElements));
    for (std::vector<float>& leaf : leaves) {
      for (float& element : leaf) element = normal(random);
    }
    const auto sum = [](SumNode node, absl::Span<const SumNode> pieces,
                        absl::Span<const std::vector<float>> terms) {
      std::vector<kernels::Gradient> gradients;
      for (const std::vector<float>& term : terms) gradients.push_back({term.data()});
      std::vector<float> out(kElements);
      kernels::SumGradients(out.data(), gradients.data(), static_cast<int>(terms.size()), kElements,
                            JoinsOf(node, pieces).data());
      return out;
    };
    const std::vector<float> whole = sum(RootOf(k), CutNode(RootOf(k), k), leaves);
    for (int64_t workers = 1; workers <= k; ++workers) {
      const std::vector<SumNode> cut = CutNode(RootOf(k), workers);
      std::vector<std::vector<float>> sums;
      for (const SumNode& node : cut) {
        const absl::Span<const std::vector<float>> own =
            absl::MakeSpan(leaves).subspan(node.first_leaf, node.leaves);
        sums.push_back(sum(node, CutNode(node, node.leaves), own));
      }
      ASSERT_EQ(sum(RootOf(k), cut, sums), whole)
          << k << " leaves, " << workers << " workers, seed " << kSeed;
    }
  }
}

TEST(SumTreeTest, TheLastOfTheLargestNodesIsSplit) {
  EXPECT_EQ(SizesOf(CutNode(RootOf(8), 1)), (std::vector<int64_t>{8}));
  EXPECT_EQ(SizesOf(CutNode(RootOf(8), 3)), (std::vector<int64_t>{4, 2, 2}));
  EXPECT_EQ(SizesOf(CutNode(RootOf(8), 5)), (std::vector<int64_t>{2, 2, 2, 1, 1}));
  EXPECT_EQ(SizesOf(CutNode(RootOf(6), 4)), (std::vector<int64_t>{2, 1, 2, 1}));
  EXPECT_EQ(CutNode({.first_leaf = 5, .leaves = 3}, 2),
            (std::vector<SumNode>{{.first_leaf = 5, .leaves = 2}, {.first_leaf = 7, .leaves = 1}}));
}

TEST(SumTreeTest, JoinsCloseANodeAfterItsLastPiece) {
  EXPECT_EQ(JoinsOf(RootOf(8), CutNode(RootOf(8), 8)),
            (std::vector<uint8_t>{0, 1, 0, 2, 0, 1, 0, 3}));
  EXPECT_EQ(JoinsOf(RootOf(8), CutNode(RootOf(8), 3)), (std::vector<uint8_t>{0, 0, 2}));
  EXPECT_EQ(JoinsOf(RootOf(3), CutNode(RootOf(3), 3)), (std::vector<uint8_t>{0, 1, 1}));
  EXPECT_EQ(JoinsOf(RootOf(5), CutNode(RootOf(5), 1)), (std::vector<uint8_t>{0}));
}

int MostOpenSums(absl::Span<const uint8_t> joins) {
  int open = 0, most = 0;
  for (const uint8_t join : joins) {
    most = std::max(most, ++open);
    open -= join;
  }
  return most;
}

TEST(SumTreeTest, NoNumberOfWorkersExceedsTheKernelsLimitOfOpenSums) {
  std::mt19937 random(kSeed);
  std::vector<int64_t> trees = {1000, 1023, 1024, 1025, 2047, limits::kBatchSizeMax};
  for (int64_t k = 1; k <= 200; ++k) trees.push_back(k);
  for (int i = 0; i < 5; ++i) trees.push_back(1 + random() % limits::kBatchSizeMax);
  for (const int64_t k : trees) {
    for (int64_t workers = 1; workers <= std::min<int64_t>(k, limits::kWorkersMax); ++workers) {
      const std::vector<uint8_t> joins = JoinsOf(RootOf(k), CutNode(RootOf(k), workers));
      const int most = MostOpenSums(joins);
      ASSERT_LE(most, kernels::kOpenSumsMax)
          << k << " leaves, " << workers << " workers, seed " << kSeed;
      ASSERT_LE(most, 1 + std::bit_width(static_cast<uint64_t>(k - 1)));
    }
  }
}

TEST(SumTreeTest, AnotherWorkerIsUsefulIfTheLargestNodeShrinks) {
  const auto numbers = [](int64_t leaves) {
    std::vector<int64_t> workers;
    for (const UsefulWorkers& useful : UsefulWorkersOf(leaves)) workers.push_back(useful.workers);
    return workers;
  };
  EXPECT_EQ(numbers(1), (std::vector<int64_t>{1}));
  EXPECT_EQ(numbers(6), (std::vector<int64_t>{1, 2, 4, 6}));
  EXPECT_EQ(numbers(8), (std::vector<int64_t>{1, 2, 4, 8}));
  for (int64_t k = 1; k <= 69; ++k) {
    std::vector<UsefulWorkers> expected;
    for (int64_t workers = 1; workers <= k; ++workers) {
      const int64_t largest = std::ranges::max(SizesOf(CutNode(RootOf(k), workers)));
      EXPECT_EQ(LargestNode(k, workers), largest) << k << " leaves, " << workers << " workers";
      if (expected.empty() || largest < expected.back().largest_node) {
        expected.push_back({.workers = workers, .largest_node = largest});
      }
    }
    EXPECT_EQ(UsefulWorkersOf(k), expected) << k << " leaves";
  }
}

TEST(SumTreeTest, TheFirstLeavesHaveTheSamplesThatRemain) {
  const SumNode root = RootOf(8);
  EXPECT_EQ(ShareOfNode(19, 8, root), (BatchShare{0, 19}));
  EXPECT_EQ(ShareOfNode(19, 8, {.first_leaf = 2, .leaves = 1}), (BatchShare{6, 3}));
  EXPECT_EQ(ShareOfNode(19, 8, {.first_leaf = 3, .leaves = 1}), (BatchShare{9, 2}));
  EXPECT_EQ(ShareOfNode(19, 8, {.first_leaf = 2, .leaves = 2}), (BatchShare{6, 5}));
  for (int64_t batch = 8; batch < 40; ++batch) {
    int64_t first = 0;
    for (const SumNode& node : CutNode(root, 5)) {
      const BatchShare share = ShareOfNode(batch, 8, node);
      EXPECT_EQ(share.first, first) << batch;
      EXPECT_GE(share.count, node.leaves) << batch;
      first += share.count;
    }
    EXPECT_EQ(first, batch);
  }
}

TEST(SumTreeDeathTest, PiecesMustBeACutOfTheNode) {
  EXPECT_DEATH(JoinsOf(RootOf(4), {{.leaves = 1}, {.first_leaf = 1, .leaves = 3}}), "piece 1 has");
  EXPECT_DEATH(JoinsOf(RootOf(4), {{.leaves = 2}}), "no piece has leaf 2");
  EXPECT_DEATH(JoinsOf(RootOf(2), {{.leaves = 2}, {.first_leaf = 2, .leaves = 1}}), "beyond");
}

}  // namespace
}  // namespace muster::sum_tree_test
