#include "lib/plan/parameter_group.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::parameter_group_test {
namespace {

using ::testing::HasSubstr;

v1::Graph Model() {
  v1::Graph graph;
  for (const char* name : {"embedding.weight", "blocks.0.attention.weight", "blocks.0.norm.bias",
                           "blocks.1.attention.weight", "head.weight"}) {
    v1::Parameter& parameter = *graph.add_parameters();
    parameter.set_name(name);
    parameter.set_weight_decay(!absl::EndsWith(name, "bias"));
  }
  return graph;
}

v1::ParameterGroup& AddGroup(v1::TrainingSpec& training, std::vector<std::string> patterns) {
  v1::ParameterGroup& group = *training.add_parameter_groups();
  for (std::string& pattern : patterns) group.add_match(pattern);
  return group;
}

TEST(ParameterGroupTest, WithoutAGroupTheGraphDecides) {
  const v1::Graph model = Model();
  const v1::TrainingSpec training;
  EXPECT_TRUE(TreatmentOf(training, model.parameters(0)).weight_decay);
  EXPECT_FALSE(TreatmentOf(training, model.parameters(2)).weight_decay);
  EXPECT_EQ(TreatmentOf(training, model.parameters(0)).learning_rate_factor, 1);
  EXPECT_FALSE(TreatmentOf(training, model.parameters(0)).frozen);
}

TEST(ParameterGroupTest, FirstMatchingGroupDecidesAndLeavesOtherSettings) {
  const v1::Graph model = Model();
  v1::TrainingSpec training;
  v1::ParameterGroup& first = AddGroup(training, {"head.*", "blocks.0.*"});
  first.set_learning_rate_factor(0.1);
  v1::ParameterGroup& second = AddGroup(training, {"*"});
  second.set_frozen(true);
  second.set_weight_decay(true);
  const ParameterTreatment norm = TreatmentOf(training, model.parameters(2));
  EXPECT_EQ(norm.learning_rate_factor, 0.1);
  EXPECT_FALSE(norm.weight_decay);
  EXPECT_FALSE(norm.frozen);
  const ParameterTreatment embedding = TreatmentOf(training, model.parameters(0));
  EXPECT_EQ(embedding.learning_rate_factor, 1);
  EXPECT_TRUE(embedding.weight_decay);
  EXPECT_TRUE(embedding.frozen);
}

TEST(ParameterGroupTest, GroupCanRemoveAndAddWeightDecay) {
  const v1::Graph model = Model();
  v1::TrainingSpec training;
  AddGroup(training, {"*.bias"}).set_weight_decay(true);
  AddGroup(training, {"embedding*"}).set_weight_decay(false);
  EXPECT_TRUE(TreatmentOf(training, model.parameters(2)).weight_decay);
  EXPECT_FALSE(TreatmentOf(training, model.parameters(0)).weight_decay);
}

TEST(ParameterGroupTest, DecayOfAGroupReplacesThatOfTheOptimizer) {
  const v1::Graph model = Model();
  v1::TrainingSpec training;
  AddGroup(training, {"*.bias"}).set_decay(0.25);
  AddGroup(training, {"embedding*"}).set_decay(0);
  const ParameterTreatment bias = TreatmentOf(training, model.parameters(2));
  EXPECT_TRUE(bias.weight_decay);
  EXPECT_EQ(bias.WeightDecay(/*of_optimizer=*/0.5), 0.25);
  const ParameterTreatment embedding = TreatmentOf(training, model.parameters(0));
  EXPECT_FALSE(embedding.weight_decay);
  EXPECT_EQ(embedding.WeightDecay(/*of_optimizer=*/0.5), 0);
  EXPECT_EQ(ParameterTreatment{.weight_decay = true}.WeightDecay(0.5), 0.5);
  EXPECT_EQ(ParameterTreatment{.weight_decay = false}.WeightDecay(0.5), 0);
}

TEST(ParameterGroupTest, PatternWithoutAParameterIsAFaultThatListsTheNames) {
  v1::TrainingSpec training;
  AddGroup(training, {"*.bias"});
  AddGroup(training, {"haed.*", "head.*"});
  const auto faults = ParameterGroupFaults(training, Model());
  ASSERT_EQ(faults.size(), 1);
  EXPECT_EQ(faults[0].field, "training.parameter_groups[1].match[0]");
  EXPECT_THAT(faults[0].description, HasSubstr("no parameter matches 'haed.*'"));
  EXPECT_THAT(faults[0].description, HasSubstr("blocks.0.attention.weight"));
}

TEST(ParameterGroupTest, LongListOfParametersIsShortened) {
  v1::Graph model;
  for (int i = 0; i < 100; ++i) model.add_parameters()->set_name(absl::StrCat("p", i));
  v1::TrainingSpec training;
  AddGroup(training, {"x"});
  const auto faults = ParameterGroupFaults(training, model);
  ASSERT_EQ(faults.size(), 1);
  EXPECT_THAT(faults[0].description, HasSubstr("p19 and 80 more"));
}

TEST(ParameterGroupTest, FreezingEverythingIsAFault) {
  v1::TrainingSpec training;
  AddGroup(training, {"*"}).set_frozen(true);
  v1::Graph model = Model();
  ASSERT_EQ(ParameterGroupFaults(training, model).size(), 1);
  EXPECT_EQ(ParameterGroupFaults(training, model)[0].field, "training.parameter_groups");
  training.mutable_parameter_groups(0)->set_match(0, "blocks.*");
  EXPECT_TRUE(ParameterGroupFaults(training, model).empty());
  // The parameters that are not frozen become statistics, and statistics are not trained. So
  // nothing is left to train.
  for (int p : {0, 4}) model.mutable_parameters(p)->set_statistic_momentum(0.1);
  EXPECT_EQ(ParameterGroupFaults(training, model).size(), 1);
}

}  // namespace
}  // namespace muster::parameter_group_test
