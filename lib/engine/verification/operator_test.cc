// Compares every op on a device with the float64 reference: values, gradients, half precisions.
// Also tests that the number of threads changes no bit, and that dimensions of zero are refused.
// It is linked with tables of cases; MUSTER_DEVICE names the device.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/philox.h"
#include "lib/engine/reference/reference.h"
#include "lib/engine/reference/tensor.h"
#include "lib/engine/verification/instance.h"
#include "lib/engine/verification/operator_case.h"
#include "lib/graph/lowering/lowering.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::verification::operator_test {
namespace {

using reference::Tensor;
using reference::Tensors;

struct NumberedCase {
  std::string family;
  int number;  // position in its family
  OperatorCase c;

  uint64_t seed() const { return 1000 + number; }
  friend std::ostream& operator<<(std::ostream& out, const NumberedCase& n) {
    return out << n.c.ToString() << ", seed " << n.seed();
  }
};

std::vector<NumberedCase> NumberedCases() {
  std::vector<NumberedCase> cases;
  for (const OperatorFamily& family : OperatorFamilies()) {
    int number = 0;
    for (OperatorCase& c : family.cases()) cases.push_back({family.name, number++, std::move(c)});
  }
  return cases;
}

double Largest(const std::vector<double>& values) {
  double largest = 0;
  for (double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

double Norm(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value * value;
  return std::sqrt(sum);
}

class OperatorTest : public testing::TestWithParam<NumberedCase> {
 protected:
  const OperatorCase& op() const { return GetParam().c; }
  uint64_t seed() const { return GetParam().seed(); }

  // Returns null, and fails the test, if the device refuses the graph.
  std::unique_ptr<Instance> Make(const v1::Graph& graph) const {
    auto instance = Instance::Create(graph, {.batch = op().batch()});
    EXPECT_TRUE(instance.ok()) << instance.status();
    return instance.ok() ? *std::move(instance) : nullptr;
  }

  // Returns the expected components of operand `i`'s gradient.
  std::vector<double> ExpectedComponents(const v1::Graph& graph, const Tensors& given,
                                         int i) const {
    if (op().inputs[i].kind == Operand::Kind::kStatistic) {  // BatchNorm's mean and variance
      const Tensors tensors = reference::Evaluate(graph, given);
      return Components(tensors.at(i == 1 ? "op.1" : "op.3").values);
    }
    Tensors moved = given;
    std::vector<double>& values = moved.at(absl::StrCat("x", i)).values;
    const std::vector<double> middle = values;
    std::vector<double> slopes;
    for (const std::vector<double>& direction : Directions(values.size())) {
      auto loss_at = [&](double distance) {
        for (size_t e = 0; e < values.size(); ++e) values[e] = middle[e] + distance * direction[e];
        return reference::Evaluate(graph, moved).at(graph.loss()).values[0];
      };
      slopes.push_back((loss_at(kStep) - loss_at(-kStep)) / (2 * kStep));
    }
    return slopes;
  }

  std::vector<double> Components(const std::vector<double>& gradient) const {
    std::vector<double> components;
    for (const std::vector<double>& direction : Directions(gradient.size())) {
      components.push_back(
          std::inner_product(gradient.begin(), gradient.end(), direction.begin(), 0.0));
    }
    return components;
  }

 private:
  // The step of central differences. Their own error, h² f''' / 6 and 1e-16 f / h, is far below
  // that of f32.
  static constexpr double kStep = 1e-5;

  // Returns the directions along which gradients are compared. A small case uses every element. A
  // large case uses two random directions; a fault in one element of n changes the component by 1 /
  // √n.
  std::vector<std::vector<double>> Directions(size_t elements) const {
    int64_t all = 0;
    for (const Operand& operand : op().inputs) all += reference::Elements(operand.shape);
    const bool is_small = all <= 1000;
    std::vector<std::vector<double>> directions(is_small ? elements : 2,
                                                std::vector<double>(elements, 0.0));
    for (size_t k = 0; k < directions.size(); ++k) {
      if (is_small) directions[k][k] = 1;
      for (size_t e = 0; !is_small && e < elements; ++e) {
        const auto words = kernels::RandomWords(/*seed=*/17, k, e);
        directions[k][e] = kernels::StandardNormal(words[0], words[1]);
      }
    }
    return directions;
  }
};

// The tolerance allows for f32, which rounds every product and sum to 6e-8 of its size. Tens of
// roundings add up in these shapes. The largest error is compared with the largest value, because
// single elements may cancel to almost zero.
TEST_P(OperatorTest, EveryOutputEqualsTheReference) {
  v1::Graph graph = ToGraph(op());
  const Tensors given = GivenTensors(op(), graph, seed());
  const Tensors expected = reference::Evaluate(graph, given);
  for (int i = 0; i < op().outputs(); ++i) {
    const std::string output = i == 0 ? "op" : absl::StrCat("op.", i);
    SCOPED_TRACE(output);
    const Tensor& wanted = expected.at(output);
    if (wanted.values.empty()) continue;  // a state
    graph.set_logits(output);
    const auto instance = Make(graph);
    if (instance == nullptr) return;
    instance->Set(given);
    ASSERT_TRUE(instance->Run().ok());
    const std::vector<double> values = instance->Output(output);
    ASSERT_EQ(values.size(), wanted.values.size());
    const double tolerance = op().amplification * (2e-6 * Largest(wanted.values) + 1e-7);
    for (size_t k = 0; k < values.size(); ++k) {
      ASSERT_NEAR(values[k], wanted.values[k], tolerance) << "element " << k;
    }
  }
}

// The compared run follows a run with other values, which must leave no trace.
TEST_P(OperatorTest, GradientsEqualFiniteDifferencesOfTheReference) {
  if (op().losses.empty()) return;
  const v1::Graph graph = ToGraph(op());
  const Tensors given = GivenTensors(op(), graph, seed());
  const auto training = TrainingGraph(graph, {});
  ASSERT_TRUE(training.ok()) << training.status();
  const auto instance = Make(*training);
  if (instance == nullptr) return;
  instance->Set(GivenTensors(op(), graph, seed() + 1));
  ASSERT_TRUE(instance->Run().ok());
  instance->Set(given);
  ASSERT_TRUE(instance->Run().ok());

  const double loss = reference::Evaluate(graph, given).at(graph.loss()).values[0];
  EXPECT_NEAR(instance->loss(), loss, (5e-6 * std::abs(loss) + 1e-9) * op().amplification);
  std::vector<std::vector<double>> expected(op().inputs.size());
  const auto elements = static_cast<double>(instance->Output(graph.logits()).size());
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!op().inputs[i].is_parameter()) continue;
    expected[i] = ExpectedComponents(graph, given, i);
    largest = std::max(largest, Largest(expected[i]));
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i].empty()) continue;
    const std::vector<double> gradient = Components(instance->Gradient(absl::StrCat("x", i)));
    // If a gradient nearly cancels, its terms are as large as the other gradients. They are also as
    // large as the terms of the squared error's own gradient, 2 (y - shift - target) / n for n
    // elements.
    const double tolerance =
        op().amplification * (1e-5 * Largest(expected[i]) + 5e-7 * (largest + 1 / elements));
    for (size_t k = 0; k < gradient.size(); ++k) {
      ASSERT_NEAR(gradient[k], expected[i][k], tolerance) << "operand " << i << ", component " << k;
    }
  }
}

// The tolerances allow for bf16 with 8 bits of significand and f16 with 11: a rounding is off by at
// most 2^-8 or 2^-11 of a value. Operands are exact in both. Several roundings lie between an
// operand and the result, and a norm of few elements amplifies them.
TEST_P(OperatorTest, HalfPrecisionsAgreeWithF32WithinTheirRounding) {
  const v1::Graph graph = ToGraph(op());
  const Tensors given = GivenTensors(op(), graph, seed(), /*bits=*/8);
  const bool trains = !op().losses.empty();
  auto run = [&](v1::Precision precision, float loss_scale) -> std::unique_ptr<Instance> {
    const auto lowered = trains ? TrainingGraph(graph, {.precision = precision})
                                : InferenceGraph(graph, {.precision = precision});
    EXPECT_TRUE(lowered.ok()) << lowered.status();
    if (!lowered.ok()) return nullptr;
    std::unique_ptr<Instance> instance = Make(*lowered);
    if (instance == nullptr) return nullptr;
    instance->Set(given);
    const absl::Status status = instance->Run({.loss_scale = loss_scale});
    EXPECT_TRUE(status.ok()) << status;
    return instance;
  };
  const auto exact = run(v1::FP32, 1);
  if (exact == nullptr) return;

  struct Half {
    v1::Precision precision;
    float loss_scale;
    double rounding;
  };
  for (const Half& half : {Half{v1::BF16, 1, 0x1p-8}, Half{v1::FP16, 1024, 0x1p-11}}) {
    SCOPED_TRACE(v1::Precision_Name(half.precision));
    const auto instance = run(half.precision, half.loss_scale);
    if (instance == nullptr) return;
    auto expect_close = [&](const std::vector<double>& values, const std::vector<double>& wanted,
                            double roundings, double floor) {
      ASSERT_EQ(values.size(), wanted.size());
      std::vector<double> error;
      for (size_t i = 0; i < values.size(); ++i) error.push_back(values[i] - wanted[i]);
      EXPECT_LE(Norm(error),
                op().amplification * roundings * half.rounding * (Norm(wanted) + floor));
    };
    expect_close(instance->Output(instance->graph().logits()),
                 exact->Output(exact->graph().logits()), 2, 1e-6);
    if (!trains) continue;
    // A relative tolerance fails for a gradient that nearly cancels. `floor` adds the size of its
    // terms: 5 % of the largest gradient, and the squared error's own gradient, about 1 / sqrt(n)
    // for n elements.
    double floor = 0;
    for (const v1::Parameter& parameter : graph.parameters()) {
      floor = std::max(floor, 0.05 * Norm(exact->Gradient(parameter.name())));
    }
    floor += 1 / std::sqrt(exact->Output(exact->graph().logits()).size());
    for (const v1::Parameter& parameter : graph.parameters()) {
      SCOPED_TRACE(parameter.name());
      expect_close(instance->Gradient(parameter.name()), exact->Gradient(parameter.name()), 4,
                   floor);
    }
  }
}

// The products that oneDNN divides among threads are exempt.
TEST_P(OperatorTest, ThreadsDoNotChangeABit) {
  for (const char* product : {"Conv2d", "ConvTranspose2d", "Linear", "MatMul"}) {
    if (op().op == product) return;
  }
  if (op().losses.empty()) return;
  const v1::Graph graph = ToGraph(op());
  const auto training = TrainingGraph(graph, {});
  ASSERT_TRUE(training.ok()) << training.status();
  std::vector<std::unique_ptr<Instance>> instances;
  for (int threads : {1, 2}) {
    auto instance = Instance::Create(*training, {.batch = op().batch(), .threads = threads});
    ASSERT_TRUE(instance.ok()) << instance.status();
    (*instance)->Set(GivenTensors(op(), graph, seed()));
    ASSERT_TRUE((*instance)->Run().ok());
    instances.push_back(*std::move(instance));
  }
  EXPECT_EQ(instances[0]->loss(), instances[1]->loss());
  for (const v1::Parameter& parameter : graph.parameters()) {
    EXPECT_EQ(instances[0]->Gradient(parameter.name()), instances[1]->Gradient(parameter.name()))
        << parameter.name();
  }
}

TEST_P(OperatorTest, ADimensionOfZeroIsRefused) {
  const v1::Graph graph = ToGraph(op());
  auto expect_refused = [](const v1::Graph& bad, int64_t batch, const std::string& what) {
    SCOPED_TRACE(what);
    const auto instance = Instance::Create(bad, {.batch = batch});
    EXPECT_TRUE(absl::IsInvalidArgument(instance.status())) << instance.status();
    EXPECT_THAT(std::string(instance.status().message()), testing::HasSubstr(what));
  };
  for (int p = 0; p < graph.parameters_size(); ++p) {
    for (int k = 0; k < graph.parameters(p).shape_size(); ++k) {
      v1::Graph bad = graph;
      bad.mutable_parameters(p)->set_shape(k, 0);
      expect_refused(bad, op().batch(), graph.parameters(p).name());
    }
  }
  for (int i = 0; i < graph.inputs_size(); ++i) {
    for (int k = 1; k < graph.inputs(i).shape_size(); ++k) {
      v1::Graph bad = graph;
      bad.mutable_inputs(i)->set_shape(k, 0);
      expect_refused(bad, op().batch(), graph.inputs(i).name());
    }
  }
  if (graph.inputs_size() > 0) expect_refused(graph, 0, "batch");
}

INSTANTIATE_TEST_SUITE_P(All, OperatorTest, testing::ValuesIn(NumberedCases()),
                         [](const testing::TestParamInfo<NumberedCase>& info) {
                           return absl::StrCat(info.param.c.op, "_", info.param.family, "_",
                                               info.param.number);
                         });

}  // namespace
}  // namespace muster::verification::operator_test
