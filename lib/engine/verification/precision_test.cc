// Compares whole models in bf16 and f16 with f32.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "lib/engine/reference/reference.h"
#include "lib/engine/verification/instance.h"
#include "lib/engine/verification/models.h"
#include "lib/engine/verification/sketch.h"
#include "lib/graph/lowering/lowering.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::verification::precision_test {
namespace {

constexpr int64_t kBatch = 8;

struct Model {
  std::string name;
  v1::Graph graph;
  int64_t ids = 5;
};

class PrecisionTest : public testing::TestWithParam<Model> {
 protected:
  std::unique_ptr<Instance> Run(v1::Precision precision, float loss_scale) const {
    const v1::Graph& graph = GetParam().graph;
    const auto training = TrainingGraph(graph, {.precision = precision});
    EXPECT_TRUE(training.ok()) << training.status();
    auto instance = Instance::Create(*training, {.batch = kBatch});
    EXPECT_TRUE(instance.ok()) << instance.status();
    (*instance)->Set(RandomTensors(graph, kBatch, GetParam().ids, /*seed=*/7));
    EXPECT_TRUE((*instance)->Run({.loss_scale = loss_scale}).ok());
    return *std::move(instance);
  }
};

// Values given in the graph's compute type have the same effect as the floats that the executor
// would convert.
TEST_P(PrecisionTest, ParametersMayComeInThePrecisionOfTheComputation) {
  for (const v1::Precision precision : {v1::BF16, v1::FP16}) {
    SCOPED_TRACE(v1::Precision_Name(precision));
    const auto wide = Run(precision, 1);
    std::vector<bool> are_narrow;
    for (const v1::Parameter& parameter : wide->graph().parameters()) {
      are_narrow.push_back(parameter.dtype() == v1::DTYPE_BF16 ||
                           parameter.dtype() == v1::DTYPE_F16);
    }
    ASSERT_TRUE(std::ranges::count(are_narrow, true) > 0);
    auto narrow =
        Instance::Create(wide->graph(), {.batch = kBatch, .narrow_parameters = are_narrow});
    ASSERT_TRUE(narrow.ok()) << narrow.status();
    (*narrow)->Set(RandomTensors(GetParam().graph, kBatch, GetParam().ids, /*seed=*/7));
    ASSERT_TRUE((*narrow)->Run().ok());
    EXPECT_EQ((*narrow)->loss(), wide->loss());
    for (const v1::Parameter& parameter : wide->graph().parameters()) {
      EXPECT_EQ((*narrow)->Gradient(parameter.name()), wide->Gradient(parameter.name()));
    }
  }
}

double Norm(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value * value;
  return std::sqrt(sum);
}

// The tolerances allow for some tens of roundings one after another, each of up to 2^-8 (bf16) or
// 2^-11 (f16). Errors of single elements average out in a gradient's norm.
TEST_P(PrecisionTest, GradientsAgreeWithF32WithinTheRounding) {
  const auto exact = Run(v1::FP32, 1);
  double largest = 0;
  for (const v1::Parameter& parameter : GetParam().graph.parameters()) {
    largest = std::max(largest, Norm(exact->Gradient(parameter.name())));
  }
  for (const auto& [precision, loss_scale, tolerance] :
       {std::tuple(v1::BF16, 1.0f, 0x1p-5), std::tuple(v1::FP16, 1024.0f, 0x1p-8)}) {
    SCOPED_TRACE(v1::Precision_Name(precision));
    const auto half = Run(precision, loss_scale);
    EXPECT_NEAR(half->loss(), exact->loss(), tolerance * exact->loss());
    EXPECT_NE(half->loss(), exact->loss());
    for (const v1::Parameter& parameter : GetParam().graph.parameters()) {
      const std::vector<double> wanted = exact->Gradient(parameter.name());
      std::vector<double> error = half->Gradient(parameter.name());
      for (size_t i = 0; i < error.size(); ++i) error[i] -= wanted[i];
      EXPECT_LE(Norm(error), tolerance * (Norm(wanted) + 0.05 * largest)) << parameter.name();
    }
  }
}

TEST_P(PrecisionTest, EvaluationAgreesWithF32WithinTheRounding) {
  const v1::Graph& graph = GetParam().graph;
  auto loss = [&](v1::Precision precision) {
    const auto lowered = InferenceGraph(graph, {.precision = precision});
    EXPECT_TRUE(lowered.ok()) << lowered.status();
    const auto instance = Instance::Create(*lowered, {.batch = kBatch});
    EXPECT_TRUE(instance.ok()) << instance.status();
    (*instance)->Set(RandomTensors(graph, kBatch, GetParam().ids, /*seed=*/7));
    EXPECT_TRUE((*instance)->Run().ok());
    return (*instance)->loss();
  };
  EXPECT_NEAR(loss(v1::BF16), loss(v1::FP32), 0x1p-6 * loss(v1::FP32));
  EXPECT_NEAR(loss(v1::FP16), loss(v1::FP32), 0x1p-9 * loss(v1::FP32));
}

TEST_P(PrecisionTest, AnOverflowOfF16ReachesTheGradients) {
  const auto half = Run(v1::FP16, 0x1p40f);
  bool finite = true;
  for (const v1::Parameter& parameter : GetParam().graph.parameters()) {
    for (double value : half->Gradient(parameter.name())) finite &= std::isfinite(value);
  }
  EXPECT_FALSE(finite);
  EXPECT_TRUE(std::isfinite(half->loss()));  // the loss is unscaled
}

TEST_P(PrecisionTest, TheLossScaleDoesNotLeaveTheExecutor) {
  const auto one = Run(v1::FP32, 1), scaled = Run(v1::FP32, 1024);
  EXPECT_EQ(scaled->loss(), one->loss());
  for (const v1::Parameter& parameter : GetParam().graph.parameters()) {
    EXPECT_EQ(scaled->Gradient(parameter.name()), one->Gradient(parameter.name()))
        << parameter.name();  // a power of two: exact
  }
}

// Attention is not fused, because its scores have three dimensions. The queries of the first sample
// see no key.
TEST(MaskTest, AQueryThatSeesNoKeyStaysFinite) {
  Sketch s;
  s.Input("input", {4, 3});
  s.Ids("seen", {4});
  s.Input("target", {4, 3});
  const std::string lowest =
      s.Add("lowest", "Constant", {},
            {{"shape", {1}}, {"value", double{std::numeric_limits<float>::lowest()}}});
  const std::string zero = s.Add("zero", "Constant", {}, {{"shape", {1}}, {"value", 0.0}});
  const std::string x = s.Add("x", "Linear", {"input", s.Parameter("w", {3, 3})});
  const std::string keys = s.Add("keys", "Unsqueeze", {"seen"}, {{"axes", {1}}});
  const std::string mask = s.Add("mask", "Where", {keys, zero, lowest});
  const std::string products = s.Add("products", "MatMul", {x, x}, {{"transpose_b", 1}});
  const std::string weights =
      s.Add("weights", "Softmax", {s.Add("masked", "Add", {products, mask})});
  const std::string kept = s.Add("kept", "Dropout", {weights}, {{"rate", 0.1}, {"salt", 0}});
  s.graph.set_logits(s.Add("y", "MatMul", {kept, x}));
  s.Loss("MeanSquaredError", "y", "target");
  reference::Tensors given = RandomTensors(s.graph, kBatch, /*ids=*/2, /*seed=*/7);
  std::fill_n(given.at("seen").values.begin(), 4, 0);

  auto run = [&](v1::Precision precision) {
    auto instance = Instance::Create(TrainingGraph(s.graph, {.precision = precision}).value(),
                                     {.batch = kBatch});
    EXPECT_TRUE(instance.ok()) << instance.status();
    (*instance)->Set(given);
    EXPECT_TRUE((*instance)->Run().ok());
    return *std::move(instance);
  };
  const auto exact = run(v1::FP32);
  for (const v1::Precision precision : {v1::BF16, v1::FP16}) {
    SCOPED_TRACE(v1::Precision_Name(precision));
    const auto half = run(precision);
    EXPECT_NEAR(half->loss(), exact->loss(), 0x1p-6 * exact->loss());
    EXPECT_TRUE(std::isfinite(Norm(half->Gradient("w"))));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PrecisionTest,
                         testing::ValuesIn(std::vector<Model>{{"Perceptron", Perceptron()},
                                                              {"ConvolutionNet", ConvolutionNet()},
                                                              {"Transformer", Transformer(), 11},
                                                              {"Recurrent", Recurrent()},
                                                              {"LossOfItsOwn", LossOfItsOwn()},
                                                              {"OddLayers", OddLayers()},
                                                              {"OddImages", OddImages()}}),
                         [](const testing::TestParamInfo<Model>& info) { return info.param.name; });

}  // namespace
}  // namespace muster::verification::precision_test
