// Compares gradients of whole models with the slope of the reference's loss along each parameter.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/philox.h"
#include "lib/engine/reference/reference.h"
#include "lib/engine/reference/tensor.h"
#include "lib/engine/verification/instance.h"
#include "lib/engine/verification/models.h"
#include "lib/graph/lowering/lowering.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster::verification::gradient_test {
namespace {

using reference::Tensors;

struct Model {
  std::string name;
  v1::Graph graph;
  int64_t ids = 5;
  bool ignoring = false;
};

std::vector<Model> Models() {
  return {{"Perceptron", Perceptron()},
          {"ConvolutionNet", ConvolutionNet()},
          {"Transformer", Transformer(), 11, true},
          {"TransformerOfPlainOps", Transformer({.fused_attention = false}), 11, true},
          {"TransformerWithDropout", Transformer({.dropout = 0.2}), 11, true},
          {"Recurrent", Recurrent()},
          {"LossOfItsOwn", LossOfItsOwn()}};
}

class GradientTest : public testing::TestWithParam<Model> {};

// The expected value is the central difference of the float64 loss along a random direction of one
// parameter. The actual value is the gradient's component in that direction. f32 rounding of the
// components adds up to about 1e-6 of the gradient's norm.
TEST_P(GradientTest, IsTheSlopeOfTheLossAlongEveryParameter) {
  constexpr int64_t kBatch = 3;
  constexpr double kStep = 1e-5;
  const v1::Graph& graph = GetParam().graph;
  Tensors given = RandomTensors(graph, kBatch, GetParam().ids, /*seed=*/3, GetParam().ignoring);
  const RunArguments arguments = {.seed = 5, .step = 2};
  const auto training = TrainingGraph(graph, {});
  ASSERT_TRUE(training.ok()) << training.status();
  const auto instance = Instance::Create(*training, {.batch = kBatch});
  ASSERT_TRUE(instance.ok()) << instance.status();
  (*instance)->Set(given);
  ASSERT_TRUE((*instance)->Run(arguments).ok());

  auto loss = [&] {
    return reference::Evaluate(graph, given, arguments).at(graph.loss()).values[0];
  };
  EXPECT_NEAR((*instance)->loss(), loss(), 2e-6 * loss());
  for (int p = 0; p < graph.parameters_size(); ++p) {
    if (graph.parameters(p).has_statistic_momentum()) continue;
    const std::string& name = graph.parameters(p).name();
    const std::vector<double> gradient = (*instance)->Gradient(name);
    std::vector<double>& values = given.at(name).values;
    const std::vector<double> middle = values;
    std::vector<double> direction;
    double component = 0, norm = 0;
    for (size_t i = 0; i < gradient.size(); ++i) {
      const auto words = kernels::RandomWords(/*seed=*/9, p, i);
      direction.push_back(kernels::StandardNormal(words[0], words[1]));
      component += direction[i] * gradient[i];
      norm += std::abs(direction[i] * gradient[i]);
    }
    auto loss_at = [&](double distance) {
      for (size_t i = 0; i < values.size(); ++i) values[i] = middle[i] + distance * direction[i];
      return loss();
    };
    const double slope = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
    values = middle;
    EXPECT_NEAR(component, slope, 5e-6 * norm + 1e-7) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GradientTest, testing::ValuesIn(Models()),
                         [](const testing::TestParamInfo<Model>& info) { return info.param.name; });

}  // namespace
}  // namespace muster::verification::gradient_test
