#include "lib/graph/gradient_order.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/graph/autodiff.h"
#include "lib/graph/zoo/zoo.h"

namespace muster::gradient_order_test {
namespace {

using ::testing::ElementsAre;

TEST(GradientOrderTest, LayersCloserToTheLossComeFirst) {
  v1::ModelSpec spec;
  spec.mutable_zoo()->set_name("mlp");
  auto& args = *spec.mutable_zoo()->mutable_args()->mutable_fields();
  args["inputs"].set_number_value(4);
  args["hidden"].set_string_value("3,3");
  const auto forward = BuildModel(spec);
  ASSERT_TRUE(forward.ok()) << forward.status();
  const auto graph = Differentiate(*forward);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const std::vector<int> order = GradientOrder(*graph);
  ASSERT_EQ(order.size(), graph->parameters_size());
  // Parameters are declared in the order of the layers: weight, bias, weight, bias, ...
  EXPECT_EQ(order.front() / 2, 2);
  EXPECT_EQ(order.back() / 2, 0);
  EXPECT_TRUE(std::ranges::is_sorted(order, std::greater<>(), [](int p) { return p / 2; }));
}

TEST(GradientOrderTest, AParameterReadAfterItsGradientIsFinalComesLater) {
  v1::Graph graph;
  for (const char* name : {"a", "b"}) {
    graph.add_parameters()->set_name(name);
    graph.add_gradients(std::string("d") + name);
  }
  for (const auto& [input, output] : {std::pair{"x", "da"}, {"x", "db"}, {"a", "y"}}) {
    v1::Node* node = graph.add_nodes();
    node->add_inputs(input);
    node->add_outputs(output);
  }
  EXPECT_THAT(GradientOrder(graph), ElementsAre(1, 0));
}

}  // namespace
}  // namespace muster::gradient_order_test
