#include "lib/shard/agreement/trust_ratio.h"

#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "lib/shard/testing/test_plan.h"

namespace muster::trust_ratio_test {
namespace {

v1::Optimizer Lamb() {
  v1::Optimizer optimizer;
  optimizer.mutable_lamb()->set_learning_rate(0.1);
  return optimizer;
}

v1::Optimizer Lars(double weight_decay = 0) {
  v1::Optimizer optimizer;
  optimizer.mutable_lars()->set_learning_rate(0.1);
  optimizer.mutable_lars()->set_weight_decay(weight_decay);
  return optimizer;
}

TEST(TrustRatioTest, LambComparesTheWeightsWithTheUpdate) {
  EXPECT_DOUBLE_EQ(TrustRatio(Lamb(), /*weight_decay=*/0, {.values = 9, .direction = 4}), 1.5);
}

TEST(TrustRatioTest, LarsComparesTheWeightsWithGradientAndDecay) {
  v1::Optimizer lars = Lars();
  EXPECT_DOUBLE_EQ(TrustRatio(lars, /*weight_decay=*/0.5, {.values = 9, .direction = 4}),
                   0.001 * 3 / (2 + 1.5 + 1e-8));
  lars.mutable_lars()->set_trust(0.02);
  lars.mutable_lars()->set_epsilon(0.5);
  EXPECT_DOUBLE_EQ(TrustRatio(lars, /*weight_decay=*/0.5, {.values = 9, .direction = 4}),
                   0.02 * 3 / (2 + 1.5 + 0.5));
}

TEST(TrustRatioTest, RatioIsOneWithoutWeightsOrDirection) {
  for (const v1::Optimizer& optimizer : {Lamb(), Lars()}) {
    EXPECT_EQ(TrustRatio(optimizer, /*weight_decay=*/0.1, {.values = 0, .direction = 4}), 1);
    EXPECT_EQ(TrustRatio(optimizer, /*weight_decay=*/0.1, {.values = 4, .direction = 0}), 1);
  }
}

// Reports for every chunk: its index + 1 as the squares of its values, 1 as those of its direction.
void Report(const v1::JobPlan& plan, GradientSquares& squares) {
  squares.Await(/*step=*/7);
  for (const ShardIndex shard : NumbersBelow<ShardIndex>(plan.shards_size())) {
    std::vector<double> message;
    for (const ChunkId chunk : GradientSquares::ChunksWithGradients(plan, shard)) {
      message.insert(message.end(), {ToInt(chunk) + 1.0, 1.0});
    }
    const size_t bytes = message.size() * sizeof(double);
    const absl::Span<std::byte> place = squares.places()[shard];
    ASSERT_EQ(place.size(), bytes);
    ASSERT_EQ(squares.Wants(/*step=*/7, shard), bytes > 0);
    if (bytes == 0) continue;
    std::memcpy(place.data(), message.data(), bytes);
    squares.Accept(shard);
  }
  ASSERT_TRUE(squares.complete());
}

std::vector<double> RatiosOf(const v1::JobPlan& plan, const GradientSquares& squares) {
  TrustRatios ratios(plan);
  ratios.Compute(squares);  // a second call must give the same result
  const absl::Span<const double> again = ratios.Compute(squares);
  return {again.begin(), again.end()};
}

TEST(TrustRatioTest, ChunksOfATensorAreAddedAcrossShards) {
  for (int shards : {1, 2, 3, 9}) {
    const v1::JobPlan plan = MakeTestPlan({.parameters = {32, 8, 24},  // chunks 0, 1; 2; 3, 4
                                           .weight_decay = true,
                                           .chunk_bytes = 64,
                                           .shards = shards,
                                           .optimizer = Lamb()});
    ASSERT_EQ(plan.chunks_size(), 5);
    GradientSquares squares(plan, /*sums_per_chunk=*/2);
    Report(plan, squares);
    EXPECT_EQ(squares.Total(0), 15);
    EXPECT_EQ(squares.Total(1), 5);
    EXPECT_EQ(RatiosOf(plan, squares),
              (std::vector<double>{std::sqrt(3) / std::sqrt(2), std::sqrt(3),
                                   std::sqrt(9) / std::sqrt(2)}));
  }
}

TEST(TrustRatioTest, RatioIsOneWithoutWeightDecayForStatisticsAndFrozenTensors) {
  v1::JobPlan plan = MakeTestPlan({.parameters = {8, 8, 8, 8},
                                   .frozen = {2},
                                   .weight_decay = true,
                                   .shards = 4,
                                   .optimizer = Lamb()});
  plan.mutable_graph()->mutable_parameters(0)->set_weight_decay(false);
  plan.mutable_graph()->mutable_parameters(1)->set_statistic_momentum(0.1);
  GradientSquares squares(plan, /*sums_per_chunk=*/2);
  EXPECT_TRUE(squares.places()[ShardIndex(plan.chunks(2).shard())].empty())
      << "all chunks of the shard are frozen";
  Report(plan, squares);
  EXPECT_EQ(squares.Sum(ChunkId(2)), 0);
  EXPECT_EQ(RatiosOf(plan, squares), (std::vector<double>{1, 1, 1, 2}));
}

TEST(TrustRatioTest, DecayOfAGroupReplacesThatOfLars) {
  TestPlanOptions options{.parameters = {8, 8, 8}};
  options.optimizer = Lars(/*weight_decay=*/0.5);
  v1::JobPlan plan = MakeTestPlan(options);  // one chunk per parameter
  plan.mutable_graph()->mutable_parameters(0)->set_weight_decay(true);
  for (const auto& [name, decay] : {std::pair("p1", 0.25), std::pair("p2", 0.0)}) {
    v1::ParameterGroup& group = *plan.mutable_spec()->mutable_training()->add_parameter_groups();
    group.add_match(name);
    group.set_decay(decay);
  }
  GradientSquares squares(plan, /*sums_per_chunk=*/2);
  Report(plan, squares);
  const std::vector<double> ratios = RatiosOf(plan, squares);
  EXPECT_EQ(ratios[0], TrustRatio(options.optimizer, 0.5, {.values = 1, .direction = 1}));
  EXPECT_EQ(ratios[1], TrustRatio(options.optimizer, 0.25, {.values = 2, .direction = 1}));
  EXPECT_EQ(ratios[2], 1) << "no weight decay, no ratio";
}

}  // namespace
}  // namespace muster::trust_ratio_test
