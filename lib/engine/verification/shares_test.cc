// A batch in parts gives the same results as the whole batch: micro-batches on one device, shares
// of several devices.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "lib/engine/executor.h"
#include "lib/engine/reference/reference.h"
#include "lib/engine/verification/instance.h"
#include "lib/engine/verification/models.h"
#include "lib/engine/verification/sketch.h"
#include "lib/graph/lowering/lowering.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::verification::shares_test {
namespace {

constexpr int64_t kBatch = 6;
const std::vector<int64_t> kParts = {1, 3, 2};

std::unique_ptr<Instance> MakeInstance(const v1::Graph& graph, const Instance::Options& options,
                                       v1::Precision precision = v1::FP32) {
  const auto training = TrainingGraph(graph, {.precision = precision});
  EXPECT_TRUE(training.ok()) << training.status();
  auto instance = Instance::Create(*training, options);
  EXPECT_TRUE(instance.ok()) << instance.status();
  return *std::move(instance);
}

// Returns for each graph input how many targets differ from -1.
std::vector<int64_t> CountedTargets(const v1::Graph& graph, const reference::Tensors& tensors) {
  std::vector<int64_t> counts;
  for (const v1::GraphInput& input : graph.inputs()) {
    const std::vector<double>& values = tensors.at(input.name()).values;
    counts.push_back(std::ranges::count_if(values, [](double v) { return v != -1; }));
  }
  return counts;
}

// The tolerance is relative to the largest value: sums add the same products in another order.
constexpr double kTolerance = 1e-5;

void ExpectClose(const std::vector<double>& values, const std::vector<double>& wanted,
                 double tolerance = kTolerance) {
  double largest = 0;
  for (double value : wanted) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_NEAR(values[i], wanted[i], tolerance * largest + 1e-9) << "element " << i;
  }
}

struct Model {
  std::string name;
  v1::Graph graph;
  int64_t ids = 5;
  bool ignoring = false;
};

// Returns models without batch norms: a batch norm would use the statistics of the micro-batch.
std::vector<Model> Models() {
  return {{"Perceptron", Perceptron()},
          {"Transformer", Transformer({.dropout = 0.1}), 11, true},
          {"Recurrent", Recurrent()},
          {"LossOfItsOwn", LossOfItsOwn()}};
}

class SharesTest : public testing::TestWithParam<Model> {
 protected:
  SharesTest() {
    if (!GetParam().ignoring) return;
    // No target of the first part counts.
    std::vector<double>& targets = given_.at("target").values;
    std::fill_n(targets.begin(), targets.size() / kBatch, -1);
    counted_ = CountedTargets(graph_, given_);
  }

  // Compares the batch in kParts on one device with the whole batch in f32.
  void ExpectMicroBatchesAddUp(v1::Precision precision, float loss_scale, double tolerance) {
    const auto whole = MakeInstance(graph_, {.batch = kBatch});
    whole->Set(given_);
    ASSERT_TRUE(whole->Run(whole_).ok());

    std::vector<std::unique_ptr<Instance>> parts;
    for (int64_t count : kParts) {
      const Instance* first = parts.empty() ? nullptr : parts[0].get();
      parts.push_back(MakeInstance(
          graph_, {.batch = count, .micro_batches = true, .memory_of = first}, precision));
    }
    // Values left by the first step must not count in the second.
    for (int step = 0; step < 2; ++step) {
      double loss = 0;
      int64_t first = 0;
      for (size_t k = 0; k < kParts.size(); ++k) {
        parts[k]->Set(Samples(graph_, given_, first, kParts[k]));
        ASSERT_TRUE(parts[k]
                        ->Run({.loss_scale = loss_scale,
                               .batch = kBatch,
                               .first_position = first,
                               .counted_targets = counted_,
                               .seed = 5,
                               .step = 2,
                               .is_first_micro_batch = k == 0,
                               .is_last_micro_batch = k + 1 == kParts.size()})
                        .ok());
        loss += parts[k]->loss();
        first += kParts[k];
      }
      EXPECT_NEAR(loss, whole->loss(), tolerance * whole->loss());
      for (const v1::Parameter& parameter : graph_.parameters()) {
        SCOPED_TRACE(parameter.name());
        ExpectClose(parts.back()->Gradient(parameter.name()), whole->Gradient(parameter.name()),
                    tolerance);
      }
    }
  }

  const v1::Graph graph_ = GetParam().graph;
  reference::Tensors given_ =
      RandomTensors(graph_, kBatch, GetParam().ids, /*seed=*/6, GetParam().ignoring);
  std::vector<int64_t> counted_ = CountedTargets(graph_, given_);
  const RunArguments whole_ = {.seed = 5, .step = 2};
};

TEST_P(SharesTest, UnequalMicroBatchesAddUpToTheBatch) {
  ExpectMicroBatchesAddUp(v1::FP32, /*loss_scale=*/1, kTolerance);
}

// The tolerance is the rounding of f16 through a model.
TEST_P(SharesTest, MicroBatchesInF16AddUpToTheUnscaledBatch) {
  ExpectMicroBatchesAddUp(v1::FP16, /*loss_scale=*/1024, 0x1p-6);
}

TEST_P(SharesTest, SharesOfSeveralDevicesAddUpToTheBatch) {
  const auto whole = MakeInstance(graph_, {.batch = kBatch});
  whole->Set(given_);
  ASSERT_TRUE(whole->Run(whole_).ok());

  double loss = 0;
  std::vector<std::vector<double>> sums(graph_.parameters_size());
  int64_t first = 0;
  for (int64_t count : kParts) {
    const auto part = MakeInstance(graph_, {.batch = count});
    part->Set(Samples(graph_, given_, first, count));
    ASSERT_TRUE(part->Run({.batch = kBatch,
                           .first_position = first,
                           .counted_targets = counted_,
                           .seed = 5,
                           .step = 2})
                    .ok());
    loss += part->loss();
    for (int p = 0; p < graph_.parameters_size(); ++p) {
      const std::vector<double> gradient = part->Gradient(graph_.parameters(p).name());
      sums[p].resize(gradient.size());
      std::ranges::transform(sums[p], gradient, sums[p].begin(), std::plus<double>());
    }
    first += count;
  }
  EXPECT_NEAR(loss, whole->loss(), 1e-5 * whole->loss());
  for (int p = 0; p < graph_.parameters_size(); ++p) {
    SCOPED_TRACE(graph_.parameters(p).name());
    ExpectClose(sums[p], whole->Gradient(graph_.parameters(p).name()));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SharesTest, testing::ValuesIn(Models()),
                         [](const testing::TestParamInfo<Model>& info) { return info.param.name; });

TEST(StatisticTest, DevicesContributeByTheirSamples) {
  const v1::Graph graph = ConvolutionNet();
  const reference::Tensors given = RandomTensors(graph, kBatch, 5, /*seed=*/6);
  int64_t first = 0;
  for (int64_t count : kParts) {
    const reference::Tensors samples = Samples(graph, given, first, count);
    const auto part = MakeInstance(graph, {.batch = count});
    part->Set(samples);
    ASSERT_TRUE(part->Run({.batch = kBatch, .first_position = first}).ok());
    const reference::Tensors expected = reference::Evaluate(graph, samples);
    for (const char* norm : {"conv0", "conv1"}) {
      for (const char* statistic : {".mean", ".variance"}) {
        SCOPED_TRACE(std::string(norm) + statistic);
        std::vector<double> wanted =
            expected.at(std::string(norm) + (statistic[1] == 'm' ? ".norm.1" : ".norm.3")).values;
        for (double& value : wanted) value *= static_cast<double>(count) / kBatch;
        ExpectClose(part->Gradient(std::string(norm) + statistic), wanted);
      }
    }
    first += count;
  }
}

// Checks that dropout depends only on an element's position in the global batch. The graph has only
// dropout, so nothing rounds and results are equal to the bit.
void ExpectDropoutByPositionAlone(const Sketch& s) {
  const reference::Tensors given = RandomTensors(s.graph, kBatch, 1, /*seed=*/6);
  auto run = [&](int64_t first, int64_t count, const RunArguments& arguments) {
    const auto instance = Instance::Create(s.graph, {.batch = count});
    EXPECT_TRUE(instance.ok()) << instance.status();
    (*instance)->Set(Samples(s.graph, given, first, count));
    EXPECT_TRUE((*instance)->Run(arguments).ok());
    return (*instance)->Output("y");
  };
  const std::vector<double> whole = run(0, kBatch, {.seed = 5, .step = 2});
  std::vector<double> parts;
  int64_t first = 0;
  for (int64_t count : kParts) {
    const std::vector<double> part =
        run(first, count, {.batch = kBatch, .first_position = first, .seed = 5, .step = 2});
    parts.insert(parts.end(), part.begin(), part.end());
    first += count;
  }
  EXPECT_EQ(parts, whole);
  EXPECT_NE(run(0, kBatch, {.seed = 6, .step = 2}), whole);
  EXPECT_NE(run(0, kBatch, {.seed = 5, .step = 3}), whole);
}

TEST(DropoutTest, DependsOnlyOnThePositionInTheGlobalBatch) {
  Sketch s;
  s.Input("input", {5});
  s.graph.set_logits(s.Add("y", "Dropout", {"input"}, {{"rate", 0.4}, {"salt", 3}}));
  ExpectDropoutByPositionAlone(s);
}

TEST(DropoutTest, CountsSamplesIfTheFirstDimensionIsLargerThanTheBatch) {
  Sketch s;
  s.Input("input", {4, 5});
  s.Add("rows", "Reshape", {"input"}, {{"shape", {-1, 5}}});
  s.graph.set_logits(s.Add("y", "Dropout", {"rows"}, {{"rate", 0.4}, {"salt", 3}}));
  ExpectDropoutByPositionAlone(s);
}

}  // namespace
}  // namespace muster::verification::shares_test
