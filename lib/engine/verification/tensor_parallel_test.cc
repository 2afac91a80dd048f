// Ranks that run the parts of a split graph give what one device gives for the whole graph.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "kernels/philox.h"
#include "lib/collective/communicator.h"
#include "lib/collective/shared_memory_communicator.h"
#include "lib/engine/backends/backends.h"
#include "lib/engine/device.h"
#include "lib/engine/executor.h"
#include "lib/engine/reference/reference.h"
#include "lib/engine/reference/tensor.h"
#include "lib/engine/verification/instance.h"
#include "lib/engine/verification/sketch.h"
#include "lib/graph/lowering/lowering.h"
#include "lib/graph/zoo/zoo.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::verification::tensor_parallel_test {
namespace {

using reference::Tensor;
using reference::Tensors;
using ::testing::ElementsAre;
using ::testing::Pair;

constexpr uint64_t kSeed = 6;
constexpr int64_t kBatch = 4, kContext = 2, kHeads = 6, kChannels = 48, kVocabulary = 257;
constexpr int64_t kRows = kBatch * kContext;

// Returns a model of two layers, 6 heads and 257 tokens, sizes that 2 and 4 ranks cannot share
// evenly.
v1::Graph Zoo(const std::string& name, const std::map<std::string, double>& more = {}) {
  v1::ModelSpec spec;
  std::string text = absl::StrCat("name: '", name, "' args {");
  std::map<std::string, double> numbers = {
      {"layers", 2},         {"heads", kHeads},           {"channels", kChannels},
      {"context", kContext}, {"vocabulary", kVocabulary}, {"dropout", 0}};
  for (const auto& [key, value] : more) numbers[key] = value;
  for (const auto& [key, value] : numbers) {
    const std::string kind = key == "tied" ? "bool_value" : "number_value";
    const std::string written =
        key == "tied" ? (value != 0 ? "true" : "false") : absl::StrCat(value);
    absl::StrAppend(&text, " fields { key: '", key, "' value { ", kind, ": ", written, " } }");
  }
  absl::StrAppend(&text, " }");
  CHECK(google::protobuf::TextFormat::ParseFromString(text, spec.mutable_zoo())) << text;
  return BuildModel(spec).value();
}

v1::Graph Gpt(bool tied = false) { return Zoo("gpt", {{"tied", tied}}); }

double Normal(uint64_t stream, uint64_t i) {
  const auto words = kernels::RandomWords(kSeed, stream, i);
  return kernels::StandardNormal(words[0], words[1]);
}

// Returns tensors with the elements value(name, i). Ids are below `ids` and, where a mask hides
// token 0, above 0.
Tensors Given(const v1::Graph& graph,
              const std::function<double(const std::string&, int64_t p, int64_t i)>& value) {
  Tensors given;
  for (int p = 0; p < graph.parameters_size(); ++p) {
    const v1::Parameter& parameter = graph.parameters(p);
    Tensor tensor = reference::Zeros({parameter.shape().begin(), parameter.shape().end()});
    for (size_t i = 0; i < tensor.values.size(); ++i) {
      tensor.values[i] = value(parameter.name(), p, i);
    }
    given[parameter.name()] = tensor;
  }
  for (int i = 0; i < graph.inputs_size(); ++i) {
    const v1::GraphInput& input = graph.inputs(i);
    reference::Shape shape(input.shape().begin(), input.shape().end());
    shape[0] = kBatch;
    Tensor tensor = reference::Zeros(shape);
    tensor.is_integer = input.dtype() == v1::DTYPE_I32;
    const bool is_pair = input.name() == "segments" || input.name() == "next_sentence";
    for (size_t k = 0; k < tensor.values.size(); ++k) {
      const uint32_t word = kernels::RandomWords(kSeed, 1000 + i, k)[0];
      tensor.values[k] = tensor.is_integer ? (is_pair ? word % 2 : 1 + word % (kVocabulary - 1))
                                           : Normal(1000 + i, k);
    }
    given[input.name()] = tensor;
  }
  return given;
}

Tensors RealNumbers(const v1::Graph& graph) {
  return Given(graph, [](const std::string& name, int64_t p, int64_t i) {
    const bool is_gain = absl::StrContains(name, "norm") && absl::EndsWith(name, ".weight");
    return (is_gain ? 1 : 0) + 0.15 * Normal(p, i);
  });
}

// Counts the operations of a rank: "AllReduce 384" has 384 elements in the rank's buffer.
class Counter : public Communicator {
 public:
  Counter(std::unique_ptr<Communicator> counted, std::map<std::string, int>& counts)
      : counted_(std::move(counted)), counts_(counts) {}

  int rank() const override { return counted_->rank(); }
  int world_size() const override { return counted_->world_size(); }
  absl::Status AllReduce(TypedBuffer data, CollectiveStream stream) override {
    ++counts_[absl::StrCat("AllReduce ", data.elements)];
    return counted_->AllReduce(data, stream);
  }
  absl::Status ReduceScatter(ConstTypedBuffer, TypedBuffer, CollectiveStream) override {
    return absl::UnimplementedError("ReduceScatter");
  }
  absl::Status AllGather(ConstTypedBuffer slice, TypedBuffer data,
                         CollectiveStream stream) override {
    ++counts_[absl::StrCat("AllGather ", slice.elements)];
    return counted_->AllGather(slice, data, stream);
  }
  absl::Status Broadcast(TypedBuffer, int, CollectiveStream) override {
    return absl::UnimplementedError("Broadcast");
  }
  absl::Status Await(absl::string_view what,
                     absl::FunctionRef<absl::StatusOr<bool>()> finished) override {
    return counted_->Await(what, finished);
  }
  void Abort(absl::Status why) override { counted_->Abort(std::move(why)); }

 private:
  const std::unique_ptr<Communicator> counted_;
  std::map<std::string, int>& counts_;
};

std::vector<double> SliceOf(const std::vector<double>& whole, const ParameterSlice& slice) {
  std::vector<double> own;
  for (int64_t run = 0; run < slice.runs; ++run) {
    const auto begin = whole.begin() + slice.offset + run * slice.stride;
    own.insert(own.end(), begin, begin + slice.run_elements);
  }
  return own;
}

void PutSlice(const std::vector<double>& own, const ParameterSlice& slice,
              std::vector<double>& whole) {
  for (int64_t run = 0; run < slice.runs; ++run) {
    std::copy_n(own.begin() + run * slice.run_elements, slice.run_elements,
                whole.begin() + slice.offset + run * slice.stride);
  }
}

// Returns what rank `options.tensor_parallel.rank` has of `given`.
Tensors PartOf(const v1::Graph& graph, const Tensors& given, const LoweringOptions& options) {
  Tensors own = given;
  const std::vector<ParameterSlice> slices = ParameterSlices(graph, options).value();
  for (int p = 0; p < graph.parameters_size(); ++p) {
    Tensor& tensor = own.at(graph.parameters(p).name());
    tensor.values = SliceOf(tensor.values, slices[p]);
  }
  return own;
}

struct Results {
  double loss = 0;
  std::vector<std::vector<double>> gradients;  // of whole parameters

  bool operator==(const Results&) const = default;
};

struct RankRuns {
  Results results;
  std::map<std::string, int> operations;  // of rank 0
  int64_t parameter_elements = 0;         // of rank 0
  int64_t slice_elements = 0;             // of rank 0
  int64_t arena_bytes = 0;                // of rank 0
};

// Runs `graph` on `degree` ranks, each on a thread of its own.
RankRuns RunOn(const v1::Graph& graph, const Tensors& given, int degree,
               LoweringOptions options = {}) {
  SharedMemoryGroup group(degree);
  std::vector<std::unique_ptr<Instance>> instances(degree);
  std::vector<std::map<std::string, int>> operations(degree);
  std::vector<std::vector<ParameterSlice>> slices(degree);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < degree; ++rank) {
      threads.emplace_back([&, rank, options]() mutable {
        options.tensor_parallel = {.degree = degree, .rank = rank};
        slices[rank] = ParameterSlices(graph, options).value();
        const auto training = TrainingGraph(graph, options);
        ASSERT_TRUE(training.ok()) << training.status();
        instances[rank] = Instance::Create(*training, {.batch = kBatch, .device = "cpu"}).value();
        Tensors own = PartOf(graph, given, options);
        instances[rank]->Set(own);
        Counter communicator(group.Join(rank), operations[rank]);
        const absl::Status run =
            instances[rank]->Run({.seed = kSeed, .step = 3, .tensor_parallel = &communicator});
        EXPECT_TRUE(run.ok()) << run;
      });
    }
  }
  RankRuns run;
  run.results.loss = instances[0]->loss();
  for (int rank = 1; rank < degree; ++rank) {
    EXPECT_EQ(instances[rank]->loss(), run.results.loss);
    EXPECT_EQ(operations[rank], operations[0]);
  }
  for (int p = 0; p < graph.parameters_size(); ++p) {
    const std::string& name = graph.parameters(p).name();
    std::vector<double>& whole = run.results.gradients.emplace_back(given.at(name).values.size());
    const bool is_whole = slices[0][p].elements() == std::ssize(whole);
    for (int rank = 0; rank < degree; ++rank) {
      const std::vector<double> own = instances[rank]->Gradient(name);
      EXPECT_EQ(std::ssize(own), slices[rank][p].elements());
      // Every rank computes the gradients of whole parameters, to the same bits.
      if (is_whole && rank > 0) {
        EXPECT_EQ(own, whole) << name;
      }
      PutSlice(own, slices[rank][p], whole);
    }
    run.slice_elements += slices[0][p].elements();
    run.parameter_elements += std::ssize(instances[0]->Gradient(name));
  }
  run.operations = operations[0];
  run.arena_bytes = instances[0]->arena_bytes();
  return run;
}

// Returns the norm of the difference, relative to that of `b`.
double Difference(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(difference / size);
}

void ExpectClose(const v1::Graph& graph, const Results& results, const Results& wanted,
                 double tolerance) {
  EXPECT_NEAR(results.loss, wanted.loss, tolerance * wanted.loss);
  for (int p = 0; p < graph.parameters_size(); ++p) {
    EXPECT_LE(Difference(results.gradients[p], wanted.gradients[p]), tolerance)
        << graph.parameters(p).name();
  }
}

struct Model {
  std::string name;
  v1::Graph graph;
};

std::vector<Model> Models() {
  return {{"Gpt", Gpt()},
          {"TiedGpt", Gpt(/*tied=*/true)},
          {"Bert", Zoo("bert", {{"positions", kContext}})}};
}

class TensorParallelTest : public testing::TestWithParam<Model> {
 protected:
  const v1::Graph& graph() const { return GetParam().graph; }
};

INSTANTIATE_TEST_SUITE_P(Models, TensorParallelTest, testing::ValuesIn(Models()),
                         [](const auto& info) { return info.param.name; });

TEST_P(TensorParallelTest, RanksGiveTheLossAndGradientsOfOneDevice) {
  const Tensors given = RealNumbers(graph());
  const Results whole = RunOn(graph(), given, 1).results;
  for (int degree : {2, 4}) {
    const Results split = RunOn(graph(), given, degree).results;
    ExpectClose(graph(), split, whole, 1e-5);
    EXPECT_EQ(RunOn(graph(), given, degree).results, split) << "not repeatable";
  }
}

// Replaces the ops of a transformer that do not give exact results. A norm becomes a gain and a
// bias.
v1::Graph Exact(const v1::Graph& graph) {
  v1::Graph exact = graph;
  exact.clear_nodes();
  for (v1::Node node : graph.nodes()) {
    if (node.op() == "Gelu" || node.op() == "Tanh") node.set_op("Relu"), node.clear_attributes();
    if (node.op() != "LayerNorm") {
      *exact.add_nodes() = node;
      continue;
    }
    v1::Node &product = *exact.add_nodes(), &sum = *exact.add_nodes();
    product.set_op("Mul");
    product.set_name(node.name() + ".product");
    product.add_inputs(node.inputs(0));
    product.add_inputs(node.inputs(1));
    product.add_outputs(product.name());
    sum.set_op("Add");
    sum.set_name(node.name());
    sum.add_inputs(product.name());
    sum.add_inputs(node.inputs(2));
    sum.add_outputs(node.outputs(0));
  }
  return exact;
}

// Small integers, few of them not zero. No query and key differ from zero, so each of the two
// positions has half of the attention. The largest logit is so far from the others that its
// probability is 1.
Tensors WholeNumbers(const v1::Graph& graph) {
  Tensors given = Given(graph, [](const std::string& name, int64_t p, int64_t i) -> double {
    const auto words = kernels::RandomWords(kSeed, p, i);
    const bool is_norm = absl::StrContains(name, "norm");
    if (is_norm) return absl::EndsWith(name, ".weight") ? 1 : 0;
    if (name == "next_sentence.logits.bias") return i * 65536.0;
    return words[0] % 8 == 0 ? (words[1] % 2 == 0 ? 1 : -1) : 0;
  });
  for (auto& [name, tensor] : given) {
    if (absl::StrContains(name, ".qkv.")) {
      std::fill_n(tensor.values.begin(), tensor.values.size() / 3 * 2, 0.0);
    }
    if (name == "final_norm.weight" || name == "masked.norm.weight") {
      std::ranges::fill(tensor.values, 512.0);
    }
  }
  return given;
}

TEST_P(TensorParallelTest, WholeNumbersGiveTheSameBits) {
  const v1::Graph exact = Exact(graph());
  const Tensors given = WholeNumbers(exact);
  const Results whole = RunOn(exact, given, 1).results;
  // The check of the check: sums of these numbers are exact, and some are not zero.
  for (int p = 0; p < exact.parameters_size(); ++p) {
    double size = 0;
    for (const double value : whole.gradients[p]) {
      ASSERT_EQ(value * 4096, std::round(value * 4096)) << exact.parameters(p).name();
      size += std::abs(value);
    }
    EXPECT_GT(size, 0) << exact.parameters(p).name();
  }
  for (int degree : {2, 4}) EXPECT_EQ(RunOn(exact, given, degree).results, whole) << degree;
}

// Splits in float64: only the order of sums changes.
TEST_P(TensorParallelTest, TheSplitReferenceIsTheWholeReference) {
  const Tensors given = RealNumbers(graph());
  const double loss = reference::Evaluate(graph(), given).at(graph().loss()).values[0];
  for (int degree : {2, 4}) {
    std::vector<v1::Graph> graphs;
    std::vector<Tensors> parts;
    for (int rank = 0; rank < degree; ++rank) {
      const LoweringOptions options{.fuse = false,
                                    .tensor_parallel = {.degree = degree, .rank = rank}};
      graphs.push_back(InferenceGraph(graph(), options).value());
      parts.push_back(PartOf(graph(), given, options));
      for (v1::Parameter& parameter : *graphs.back().mutable_parameters()) {
        parts.back().at(parameter.name()).shape = {parameter.shape().begin(),
                                                   parameter.shape().end()};
      }
    }
    for (const Tensors& rank : reference::EvaluateRanks(graphs, parts)) {
      EXPECT_NEAR(rank.at(graph().loss()).values[0], loss, 1e-12 * loss);
    }
  }
}

// The error of a gradient's component along a random direction, over all parameters.
TEST_P(TensorParallelTest, TheErrorIsAtMostTwiceThatOfOneDevice) {
  const Tensors given = RealNumbers(graph());
  std::vector<double> expected;
  std::vector<std::vector<double>> directions;
  for (int p = 0; p < graph().parameters_size(); ++p) {
    Tensors moved = given;
    std::vector<double>& values = moved.at(graph().parameters(p).name()).values;
    const std::vector<double> middle = values;
    std::vector<double>& direction = directions.emplace_back(values.size());
    for (size_t i = 0; i < values.size(); ++i) direction[i] = Normal(2000 + p, i);
    const auto loss_at = [&](double distance) {
      for (size_t i = 0; i < values.size(); ++i) values[i] = middle[i] + distance * direction[i];
      return reference::Evaluate(graph(), moved).at(graph().loss()).values[0];
    };
    constexpr double kStep = 1e-5;
    expected.push_back((loss_at(kStep) - loss_at(-kStep)) / (2 * kStep));
  }
  const auto error = [&](int degree) {
    const Results results = RunOn(graph(), given, degree).results;
    std::vector<double> components;
    for (size_t p = 0; p < directions.size(); ++p) {
      double sum = 0;
      for (size_t i = 0; i < directions[p].size(); ++i) {
        sum += directions[p][i] * results.gradients[p][i];
      }
      components.push_back(sum);
    }
    return Difference(components, expected);
  };
  const double whole = error(1);
  for (int degree : {2, 4}) EXPECT_LE(error(degree), 2 * whole) << "seed " << kSeed;
}

TEST_P(TensorParallelTest, SixteenBitsAgreeWithinTheirRounding) {
  const Tensors given = RealNumbers(graph());
  const LoweringOptions options{.precision = v1::BF16};
  const Results whole = RunOn(graph(), given, 1, options).results;
  for (int degree : {2, 4}) {
    ExpectClose(graph(), RunOn(graph(), given, degree, options).results, whole, 2.5e-2);
  }
}

TEST_P(TensorParallelTest, ARankHasItsSlicesAndNoMore) {
  const Tensors given = RealNumbers(graph());
  int64_t whole = 0;
  for (const v1::Parameter& parameter : graph().parameters()) {
    whole += std::ssize(given.at(parameter.name()).values);
  }
  for (int degree : {2, 4}) {
    const RankRuns run = RunOn(graph(), given, degree);
    EXPECT_EQ(run.parameter_elements, run.slice_elements);
    EXPECT_LT(run.parameter_elements, whole / degree + whole / 8);
  }
}

constexpr int64_t kActivation = kRows * kChannels;

// Each layer has two sums in each direction, the embedding one forward, the head one backward. The
// loss gathers three numbers per row.
TEST(TensorParallelModelTest, AGptHasTheCollectivesOfItsLayers) {
  const v1::Graph graph = Gpt(/*tied=*/true);
  const Tensors given = RealNumbers(graph);
  for (int degree : {2, 4}) {
    EXPECT_THAT(RunOn(graph, given, degree).operations,
                ElementsAre(Pair(absl::StrCat("AllGather ", 3 * kRows), 1),
                            Pair(absl::StrCat("AllReduce ", kActivation), 2 * 4 + 2)));
  }
}

// The pooler and the classifier after it are one more pair of layers, for the first token alone.
TEST(TensorParallelModelTest, ABertHasAPairOfLayersMore) {
  const v1::Graph graph = Zoo("bert");
  const std::map<std::string, int> operations = RunOn(graph, RealNumbers(graph), 2).operations;
  EXPECT_EQ(operations,
            (std::map<std::string, int>{{absl::StrCat("AllGather ", 3 * kRows), 1},
                                        {absl::StrCat("AllReduce ", kActivation), 2 * 4 + 2},
                                        {absl::StrCat("AllReduce ", kBatch * 2), 1},
                                        {absl::StrCat("AllReduce ", kBatch * kChannels), 1}}));
}

// The last block is not repeated. Of the others, the attention's sum is.
TEST(TensorParallelModelTest, RecomputationRepeatsOneSumOfALayer) {
  const v1::Graph graph = Gpt();
  const Tensors given = RealNumbers(graph);
  for (int degree : {2, 4}) {
    const RankRuns kept = RunOn(graph, given, degree);
    const RankRuns repeated = RunOn(graph, given, degree, {.recompute = true});
    EXPECT_EQ(repeated.results, kept.results);
    const std::string sum = absl::StrCat("AllReduce ", kActivation);
    EXPECT_EQ(repeated.operations.at(sum), kept.operations.at(sum) + 1);
  }
}

TEST(TensorParallelModelTest, DropoutOfWholeTensorsHasOneDevicesMask) {
  for (const char* name : {"gpt", "bert"}) {
    const v1::Graph graph = Zoo(name, {{"dropout", 0.3}});
    const Tensors given = RealNumbers(graph);
    const Results whole = RunOn(graph, given, 1).results;
    for (int degree : {2, 4}) ExpectClose(graph, RunOn(graph, given, degree).results, whole, 1e-5);
  }
}

// Attention with dropout is whole, and the layers around it are not.
TEST(TensorParallelModelTest, AttentionDropoutHasOneDevicesMask) {
  const v1::Graph graph = Zoo("gpt", {{"attention_dropout", 0.3}});
  const Tensors given = RealNumbers(graph);
  const Results whole = RunOn(graph, given, 1).results;
  for (int degree : {2, 4}) ExpectClose(graph, RunOn(graph, given, degree).results, whole, 1e-5);
}

TEST(TensorParallelModelTest, DropoutOfPartsHasOneDevicesMask) {
  Sketch s;
  const std::string x = s.Input("x", {3, 5});
  s.Input("target", {3, 5});
  std::string y = s.Add("up", "Linear", {x, s.Parameter("up.weight", {11, 5})});
  y = s.Add("dropped", "Dropout", {y}, {{"rate", 0.5}, {"salt", 2}});
  y = s.Add("down", "Linear", {y, s.Parameter("down.weight", {5, 11})});
  s.Loss("MeanSquaredError", y, "target");
  const Tensors given = RealNumbers(s.graph);
  const Results whole = RunOn(s.graph, given, 1).results;
  for (int degree : {2, 4}) {
    ExpectClose(s.graph, RunOn(s.graph, given, degree).results, whole, 1e-5);
  }
}

// A device of t has 4 + 12 / t values of each token and channel in a layer, and the logits. The
// gradient of the logits takes their memory. One of the tied table's two gradients is in the arena.
TEST(TensorParallelModelTest, ARankNeedsTheMemoryOfItsParts) {
  constexpr double kTokens = 4 * 1024, kLayers = 12, kWidth = 768, kWords = 50257;
  v1::ModelSpec spec;
  spec.mutable_zoo()->set_name("gpt2");
  const v1::Graph graph = BuildModel(spec).value();
  const auto device = CreateDevice("cpu", /*threads=*/1).value();
  std::map<int, double> arena_bytes;
  for (int degree : {1, 2, 4}) {
    const v1::Graph training =
        TrainingGraph(graph, {.only_loss = true, .tensor_parallel = {.degree = degree}}).value();
    const Executor::MemoryNeed need =
        MemoryNeedOf(training, {.batch = 4, .device = device.get()}).value();
    const double values = kTokens * (kLayers * kWidth * (4 + 12.0 / degree) + kWords / degree) +
                          kWords * kWidth / degree;
    EXPECT_NEAR(need.arena_bytes, 4 * values, 0.05 * 4 * values) << degree;
    arena_bytes[degree] = need.arena_bytes;
  }
  EXPECT_NEAR(arena_bytes[2] / arena_bytes[1], 0.57, 0.057);
  EXPECT_NEAR(arena_bytes[4] / arena_bytes[1], 0.36, 0.036);
}

TEST(TensorParallelModelTest, ARankThatLeavesEndsTheRunsOfTheOthersWithItsError) {
  SharedMemoryGroup group(2);
  const auto communicator = group.Join(0);
  const auto leaver = group.Join(1);
  const v1::Graph training =
      TrainingGraph(Gpt(), {.tensor_parallel = {.degree = 2, .rank = 0}}).value();
  const auto instance = Instance::Create(training, {.batch = 2, .device = "cpu"}).value();
  const std::jthread leaving([&] { leaver->Abort(absl::AbortedError("paused")); });
  EXPECT_EQ(instance->Run({.tensor_parallel = communicator.get()}), absl::AbortedError("paused"));
}

}  // namespace
}  // namespace muster::verification::tensor_parallel_test
