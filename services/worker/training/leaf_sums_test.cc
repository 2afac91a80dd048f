#include "services/worker/training/leaf_sums.h"

#include <cstdint>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "lib/engine/backends/backends.h"
#include "lib/plan/sum_tree.h"

namespace muster::leaf_sums_test {
namespace {

constexpr int kPieces = 3;
constexpr int64_t kPieceFloats = 37;
constexpr int64_t kFloats = kPieces * kPieceFloats;

using Values = std::vector<float>;

// Adds along the tree by recursion.
Values TreeSum(const std::vector<Values>& leaves, int64_t first, int64_t count) {
  if (count == 1) return leaves[first];
  const int64_t left = (count + 1) / 2;
  Values sum = TreeSum(leaves, first, left);
  const Values right = TreeSum(leaves, first + left, count - left);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += right[i];
  return sum;
}

TEST(LeafSumsTest, TheLastLeafLeavesTheSumOfTheTreeInTheGradient) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> values(-1, 1);
  const std::unique_ptr<Device> device = *CreateDevice("cpu", 1);
  for (int64_t leaves = 2; leaves <= 21; ++leaves) {
    const SumNode node = {.first_leaf = 4, .leaves = leaves};
    Values gradient(kFloats);
    const auto sums = *LeafSums::Create(*device, node, gradient.data(), kFloats, kPieces);
    for (int step = 0; step < 2; ++step) {
      std::vector<Values> parts(leaves, Values(kFloats));
      Values in_order(kFloats);
      for (int64_t leaf = 0; leaf < leaves; ++leaf) {
        for (float& value : parts[leaf]) value = values(random);
        for (int64_t i = 0; i < kFloats; ++i) in_order[i] += parts[leaf][i];
        gradient = parts[leaf];
        std::vector<std::jthread> threads;
        for (int piece = 0; piece < kPieces; ++piece) {
          threads.emplace_back([&, piece] {
            const int64_t begin = piece * kPieceFloats;
            EXPECT_EQ(sums->Add(piece, begin, begin + kPieceFloats), leaf + 1 == leaves);
          });
        }
      }
      EXPECT_EQ(gradient, TreeSum(parts, 0, leaves)) << leaves << " leaves, step " << step;
      EXPECT_EQ(gradient == in_order, leaves <= 3) << leaves << " leaves";
    }
  }
}

}  // namespace
}  // namespace muster::leaf_sums_test
