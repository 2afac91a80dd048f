// Devices that have parts of a batch and normalise them together give what one device gives for the
// whole batch.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "lib/collective/communicator.h"
#include "lib/collective/shared_memory_communicator.h"
#include "lib/engine/executor.h"
#include "lib/engine/reference/reference.h"
#include "lib/engine/verification/instance.h"
#include "lib/engine/verification/models.h"
#include "lib/engine/verification/sketch.h"
#include "lib/graph/lowering/lowering.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::verification::synchronised_norms_test {
namespace {

constexpr int64_t kBatch = 12;
using Parts = std::vector<int64_t>;
const std::vector<Parts> kCuts = {{7, 5}, {5, 4, 2, 1}};

v1::Graph Synchronised(v1::Graph graph) {
  for (v1::Node& node : *graph.mutable_nodes()) {
    if (node.op() == "BatchNorm") (*node.mutable_attributes())["synchronised"].set_i(1);
  }
  return graph;
}

// y = BatchNorm(input), without anything else that rounds.
v1::Graph Norm() {
  Sketch s;
  s.Input("input", {3, 5, 4});
  s.Input("target", {3, 5, 4});
  s.graph.set_logits(s.Add("norm", "BatchNorm",
                           {"input", s.Statistic("mean", {3}), s.Statistic("variance", {3}),
                            s.Parameter("bias", {3}), s.Parameter("gain", {3})},
                           {}, 5));
  s.Loss("MeanSquaredError", s.graph.logits(), "target");
  return s.graph;
}

struct Results {
  std::vector<double> logits;                  // of all samples
  std::vector<std::vector<double>> gradients;  // by parameter, summed over the devices

  bool operator==(const Results&) const = default;
};

std::vector<double> Added(std::vector<double> a, const std::vector<double>& b) {
  if (a.empty()) return b;
  std::ranges::transform(a, b, a.begin(), std::plus<double>());
  return a;
}

// Runs `graph` on one device for each part, each on a thread of its own.
Results RunOn(const v1::Graph& graph, const reference::Tensors& given, const Parts& parts,
              v1::Precision precision = v1::FP32) {
  const v1::Graph training = TrainingGraph(graph, {.precision = precision}).value();
  const auto devices = static_cast<int>(parts.size());
  SharedMemoryGroup group(devices);
  std::vector<std::unique_ptr<Instance>> instances(parts.size());
  {
    std::vector<std::jthread> threads;
    int64_t first = 0;
    for (int i = 0; i < devices; ++i) {
      threads.emplace_back([&, i, first] {
        instances[i] =
            Instance::Create(training,
                             {.batch = parts[i], .synchronised_devices = devices, .device = "cpu"})
                .value();
        instances[i]->Set(Samples(graph, given, first, parts[i]));
        const std::unique_ptr<Communicator> communicator = group.Join(i);
        const absl::Status run = instances[i]->Run(
            {.batch = kBatch, .first_position = first, .communicator = communicator.get()});
        EXPECT_TRUE(run.ok()) << run;
      });
      first += parts[i];
    }
  }
  Results results;
  results.gradients.resize(graph.parameters_size());
  for (const auto& instance : instances) {
    const std::vector<double> logits = instance->Output(graph.logits());
    results.logits.insert(results.logits.end(), logits.begin(), logits.end());
    for (int p = 0; p < graph.parameters_size(); ++p) {
      results.gradients[p] =
          Added(results.gradients[p], instance->Gradient(graph.parameters(p).name()));
    }
  }
  return results;
}

// Returns the largest difference, relative to the largest value.
double Difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0, difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(b[i]));
    difference = std::max(difference, std::abs(a[i] - b[i]));
  }
  return difference / largest;
}

TEST(SynchronisedNormsTest, ANormOfPartsIsThatOfTheBatch) {
  const v1::Graph graph = Synchronised(Norm());
  const reference::Tensors given = RandomTensors(graph, kBatch, /*ids=*/1, /*seed=*/6);
  const Results whole = RunOn(graph, given, {kBatch});
  for (const Parts& parts : kCuts) {
    const Results results = RunOn(graph, given, parts);
    EXPECT_LE(Difference(results.logits, whole.logits), 1e-6);
    for (int p = 0; p < graph.parameters_size(); ++p) {
      EXPECT_LE(Difference(results.gradients[p], whole.gradients[p]), 1e-6)
          << graph.parameters(p).name();
    }
    EXPECT_EQ(RunOn(graph, given, parts), results) << "not repeatable";
  }
}

// The gradients of the convolutions show that those of the norms' inputs are right.
TEST(SynchronisedNormsTest, AModelWithFusedNormsGivesWhatTheBatchGives) {
  const v1::Graph graph = Synchronised(ConvolutionNet(/*residuals=*/2));
  const v1::Graph training = TrainingGraph(graph, {}).value();
  std::set<std::string> ops;
  for (const v1::Node& node : training.nodes()) ops.insert(node.op());
  for (const char* op : {"BatchNormRelu", "BatchNormReluGrad", "BatchNormAddRelu",
                         "BatchNormAddReluGrad", "AccumulateBatchNormAddReluGrad"}) {
    EXPECT_EQ(ops.count(op), 1) << op;
  }
  const reference::Tensors given = RandomTensors(graph, kBatch, /*ids=*/5, /*seed=*/6);
  const Results whole = RunOn(graph, given, {kBatch});
  for (const Parts& parts : kCuts) {
    const Results results = RunOn(graph, given, parts);
    EXPECT_LE(Difference(results.logits, whole.logits), 2e-6);
    for (int p = 0; p < graph.parameters_size(); ++p) {
      const v1::Parameter& parameter = graph.parameters(p);
      EXPECT_LE(Difference(results.gradients[p], whole.gradients[p]),
                parameter.has_statistic_momentum() ? 1e-6 : 1e-5)
          << parameter.name();
    }
    EXPECT_EQ(RunOn(graph, given, parts), results) << "not repeatable";

    const Results apart = RunOn(ConvolutionNet(/*residuals=*/2), given, parts);
    EXPECT_GT(Difference(apart.logits, whole.logits), 1e-3) << "of the control";
  }
}

// Kernels in f32 compute for 16-bit tensors, so the sums of the devices are f64 there, too.
TEST(SynchronisedNormsTest, SixteenBitModelsNormaliseTogether) {
  const v1::Graph graph = Synchronised(ConvolutionNet());
  const reference::Tensors given = RandomTensors(graph, kBatch, /*ids=*/5, /*seed=*/6);
  for (const v1::Precision precision : {v1::BF16, v1::FP16}) {
    const Results whole = RunOn(graph, given, {kBatch}, precision);
    for (const Parts& parts : kCuts) {
      EXPECT_LE(Difference(RunOn(graph, given, parts, precision).logits, whole.logits), 2.5e-2);
    }
  }
}

TEST(SynchronisedNormsTest, ADeviceThatLeavesEndsTheRunsOfTheOthersWithItsError) {
  const v1::Graph training = TrainingGraph(Synchronised(ConvolutionNet()), {}).value();
  SharedMemoryGroup group(2);
  const auto communicator = group.Join(0);
  const auto leaver = group.Join(1);
  const auto instance =
      Instance::Create(training, {.batch = 2, .synchronised_devices = 2, .device = "cpu"}).value();
  const std::jthread leaving([&] { leaver->Abort(absl::AbortedError("paused")); });
  EXPECT_EQ(instance->Run({.batch = 4, .communicator = communicator.get()}),
            absl::AbortedError("paused"));
}

}  // namespace
}  // namespace muster::verification::synchronised_norms_test
