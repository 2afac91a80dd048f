#include "lib/plan/graph_size.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/limits/limits.h"

namespace muster::graph_size_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::Node& AddConstant(v1::Graph& graph, const std::string& name, int64_t numbers) {
  v1::Node& node = *graph.add_nodes();
  node.set_name(name);
  node.set_op("Constant");
  (*node.mutable_attributes())["values"].mutable_numbers()->mutable_values()->Resize(
      static_cast<int>(numbers), 1.5);
  return node;
}

TEST(GraphSizeTest, ConstantsThatAreTooLargeForAPlanAreNamed) {
  v1::ModelSpec model;
  model.mutable_onnx();
  v1::Graph graph;
  constexpr int64_t kNumbers = limits::kGraphBytesMax / sizeof(double);
  AddConstant(graph, "small", 10);
  AddConstant(graph, "table", kNumbers / 2);
  AddConstant(graph, "mask", kNumbers / 4);
  AddConstant(graph, "scales", kNumbers / 8);
  EXPECT_EQ(GraphSizeFault(model, graph), std::nullopt);

  AddConstant(graph, "indices", kNumbers / 4);
  const auto fault = GraphSizeFault(model, graph);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->field, "model.onnx");
  EXPECT_THAT(fault->description, HasSubstr("bytes, at most 33554432 fit into a job's plan"));
  EXPECT_THAT(fault->description, HasSubstr("its largest nodes are 'table' (Constant, 16777"));
  EXPECT_THAT(fault->description, HasSubstr("'indices' (Constant, "));
  EXPECT_THAT(fault->description, Not(HasSubstr("'small'")));
}

TEST(GraphSizeTest, AnExternalModelHasNoNodesToName) {
  v1::ModelSpec model;
  model.mutable_external();
  v1::Graph graph;
  while (!GraphSizeFault(model, graph)) {
    for (int i = 0; i < 1000; ++i) graph.add_parameters()->set_name(std::string(10'000, 'w'));
    ASSERT_LT(graph.parameters_size(), 10'000);
  }
  const FieldFault fault = *GraphSizeFault(model, graph);
  EXPECT_EQ(fault.field, "model.external");
  EXPECT_THAT(fault.description, HasSubstr("has 4000 parameters with names and shapes"));
}

}  // namespace
}  // namespace muster::graph_size_test
