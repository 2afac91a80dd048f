#include "lib/engine/cpu/cpu_kernels.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/threads.h"
#include "lib/engine/compiled_graph.h"
#include "lib/graph/lowering.h"
#include "lib/graph/operator.h"
#include "lib/graph/zoo/zoo.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {
namespace {

v1::Graph Training(const std::string& zoo_model, v1::Precision precision = v1::FP32) {
  v1::ModelSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(zoo_model, spec.mutable_zoo()));
  return TrainingGraph(BuildModel(spec).value(), {.precision = precision}).value();
}

std::vector<std::string> Reorders(const v1::Graph& graph) {
  kernels::SetThreads(1);
  CpuKernels kernels;
  const auto compiled = CompiledGraph::Create(graph, {.batch = 2}, kernels).value();
  std::vector<std::string> names;
  for (const CompiledGraph::Step& step : compiled->steps()) {
    if (step.is_reorder) names.push_back(step.node.node->name());
  }
  return names;
}

TEST(CpuKernelsTest, ConvolutionsNormsAndPoolsExchangeImagesWithoutReordering) {
  const v1::Graph graph =
      Training("name: 'resnet50' args { fields { key: 'image' value { number_value: 64 } } }");
  EXPECT_THAT(Reorders(graph), testing::IsEmpty());
}

TEST(CpuKernelsTest, LayoutsAreThoseOfF32InEveryPrecision) {
  const std::string model =
      "name: 'resnet50' args { fields { key: 'image' value { number_value: 64 } } }";
  EXPECT_THAT(Reorders(Training(model, v1::BF16)), testing::IsEmpty());
}

TEST(CpuKernelsTest, ImagesAreReorderedWhereTheyAreFlattenedAndBack) {
  const v1::Graph graph =
      Training("name: 'vgg16' args { fields { key: 'image' value { number_value: 64 } } }");
  EXPECT_THAT(Reorders(graph), testing::SizeIs(2));
}

TEST(CpuKernelsTest, EveryOpHasAKernel) {
  for (const Operator& op : Operators()) {
    if (op.name == "Constant") continue;  // no kernel fills it: see CompiledGraph::constants()
    EXPECT_TRUE(HasCpuKernel(op.name)) << op.name;
  }
}

}  // namespace
}  // namespace muster
