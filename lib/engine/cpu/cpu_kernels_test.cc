#include "lib/engine/cpu/cpu_kernels.h"

#include <dnnl.h>
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/threads.h"
#include "lib/engine/compiled_graph.h"
#include "lib/graph/lowering/lowering.h"
#include "lib/graph/operator.h"
#include "lib/graph/zoo/zoo.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::cpu_kernels_test {
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

// Returns whether oneDNN computes convolutions and their derivatives in blocks of channels. Below
// AVX2 it computes only the forward pass in blocks, and derivatives as products of plain matrices.
// Reordering images in between is much faster than oneDNN's reference loops in blocks. At AVX2
// oneDNN does the same for 3 x 3 taps on images of 2 x 2.
bool HasConvolutionsInBlocks() {
  return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx2) == dnnl_cpu_isa_avx2;
}

constexpr char kResNet50[] =
    "name: 'resnet50' args { fields { key: 'image' value { number_value: 224 } } }";

TEST(CpuKernelsTest, ConvolutionsNormsAndPoolsExchangeImagesWithoutReordering) {
  if (!HasConvolutionsInBlocks()) GTEST_SKIP() << "convolutions in blocks need AVX2";
  EXPECT_THAT(Reorders(Training(kResNet50)), testing::IsEmpty());
}

TEST(CpuKernelsTest, LayoutsDoNotDependOnThePrecision) {
  EXPECT_EQ(Reorders(Training(kResNet50, v1::BF16)), Reorders(Training(kResNet50)));
}

TEST(CpuKernelsTest, ImagesAreReorderedOnlyAtTheFlatten) {
  if (!HasConvolutionsInBlocks()) GTEST_SKIP() << "convolutions in blocks need AVX2";
  const v1::Graph graph =
      Training("name: 'vgg16' args { fields { key: 'image' value { number_value: 64 } } }");
  EXPECT_THAT(Reorders(graph), testing::SizeIs(2));
}

TEST(CpuKernelsTest, EveryOpHasAKernel) {
  for (const Operator& op : Operators()) {
    if (op.name == "Constant") continue;  // it needs no kernel: see CompiledGraph::constants()
    EXPECT_TRUE(HasCpuKernel(op.name)) << op.name;
  }
}

}  // namespace
}  // namespace muster::cpu_kernels_test
