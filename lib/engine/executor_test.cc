#include "lib/engine/executor.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/engine/backends/backends.h"
#include "lib/engine/cpu/cpu_device.h"
#include "lib/engine/device.h"
#include "lib/engine/model_memory.h"
#include "lib/graph/autodiff.h"
#include "lib/graph/lowering/lowering.h"
#include "lib/graph/zoo/zoo.h"
#include "lib/status/status.h"
#include "lib/text/byte_size.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::executor_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

v1::Graph ParseGraph(const std::string& text) {
  v1::Graph graph;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &graph));
  return graph;
}

v1::Graph Model(const std::string& text) {
  v1::ModelSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, spec.mutable_zoo()));
  return BuildModel(spec).value();
}

std::string NumberArgument(const std::string& key, int value) {
  return "fields { key: '" + key + "' value { number_value: " + std::to_string(value) + " } }";
}

v1::Graph SmallGpt(bool tied = false) {
  return Model("name: 'gpt' args { " + NumberArgument("layers", 2) + NumberArgument("heads", 2) +
               NumberArgument("channels", 8) + NumberArgument("context", 5) +
               NumberArgument("vocabulary", 11) +
               "fields { key: 'tied' value { bool_value: " + (tied ? "true" : "false") + " } } }");
}

// A graph on the CPU with all the memory that it needs.
class Instance {
 public:
  struct Options {
    int64_t batch = 1;
    int64_t ids_max = 10;
    int threads = 1;
    bool micro_batches = false;
  };

  Instance(v1::Graph graph, const Options& options)
      : device_(CreateDevice("cpu", options.threads).value()),
        graph_(std::move(graph)),
        memory_(graph_, *device_, /*seed=*/1) {
    absl::StatusOr<std::unique_ptr<Executor>> executor =
        CreateExecutor(graph_, {.batch = options.batch,
                                .device = device_.get(),
                                .parameters = memory_.parameters(),
                                .gradients = memory_.gradients(),
                                .micro_batches = options.micro_batches});
    EXPECT_TRUE(executor.ok()) << executor.status();
    executor_ = std::move(executor).value();
    FillInputs(graph_, options.ids_max, /*seed=*/2, *executor_);
  }

  const v1::Graph& graph() const { return graph_; }
  const ModelMemory& memory() const { return memory_; }
  Executor& executor() { return *executor_; }

  absl::Status Run(const RunArguments& arguments = {}, ParameterFlow* flow = nullptr) {
    return executor_->Run(arguments, flow);
  }

  float loss() const { return executor_->output(graph_.loss()).value()[0]; }

  float Loss() {
    EXPECT_TRUE(Run().ok());
    return loss();
  }

 private:
  const std::unique_ptr<Device> device_;
  const v1::Graph graph_;
  const ModelMemory memory_;
  std::unique_ptr<Executor> executor_;
};

// Whether a model has the kinks of ReLU or max pooling.
enum class Kinks { kNo, kYes };

// Compares each gradient with a finite difference. Moves the parameter along its gradient, where
// the slope of the loss is the gradient's norm and nothing cancels. The difference of two losses
// near 2 carries about 2^-22 of rounding: with h = 2^-9 that is 2^-14 of slope. Curvature bends the
// slope by a fraction of h. Kinks bend it more.
void ExpectGradientsMatchFiniteDifferences(const v1::Graph& forward, int64_t batch,
                                           int64_t ids_max = 10, Kinks kinks = Kinks::kNo) {
  const double relative = kinks == Kinks::kYes ? 2e-2 : 5e-3;
  Instance instance(Differentiate(forward).value(), {.batch = batch, .ids_max = ids_max});
  ASSERT_TRUE(instance.Run().ok());
  for (int p = 0; p < forward.parameters_size(); ++p) {
    ASSERT_TRUE(instance.Run().ok());
    const absl::Span<float> values = instance.memory().parameter(p);
    const std::vector<float> start(values.begin(), values.end());
    std::vector<double> direction(instance.memory().gradient(p).begin(),
                                  instance.memory().gradient(p).end());
    double norm = 0;
    for (double v : direction) norm += v * v;
    norm = std::sqrt(norm);
    ASSERT_GT(norm, 0) << forward.parameters(p).name();
    const double h = 0x1p-9;
    auto loss_at = [&](double distance) {
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = start[i] + distance * direction[i] / norm;
      }
      return double{instance.Loss()};
    };
    const double slope = (loss_at(h) - loss_at(-h)) / (2 * h);
    std::ranges::copy(start, values.begin());
    EXPECT_NEAR(slope, norm, relative * norm + 0x1p-13) << forward.parameters(p).name();
  }
}

TEST(GradientTest, LinearRegressionMatchesFiniteDifferences) {
  ExpectGradientsMatchFiniteDifferences(Model("name: 'linear'"), 17);
}

TEST(GradientTest, MlpMatchesFiniteDifferences) {
  ExpectGradientsMatchFiniteDifferences(
      Model("name: 'mlp' args {" + NumberArgument("inputs", 13) + NumberArgument("hidden", 9) +
            NumberArgument("classes", 5) + "}"),
      7, 5);
}

TEST(GradientTest, LenetMatchesFiniteDifferences) {
  ExpectGradientsMatchFiniteDifferences(Model("name: 'lenet'"), 3, 10, Kinks::kYes);
}

TEST(GradientTest, GptMatchesFiniteDifferences) {
  ExpectGradientsMatchFiniteDifferences(SmallGpt(), 3);
}

TEST(GradientTest, GptWithATiedHeadMatchesFiniteDifferences) {
  ExpectGradientsMatchFiniteDifferences(SmallGpt(/*tied=*/true), 3);
}

// Combinations that the zoo does not have: strided and padded convolution without bias, overlapping
// pooling, a sum of three uses, biases that repeat and that do not. Gelu replaces Relu, so that the
// differences cross no kinks.
TEST(GradientTest, OpsInUnusualCombinationsMatchFiniteDifferences) {
  const v1::Graph graph = ParseGraph(R"pb(
    inputs {
      name: "input"
      dtype: DTYPE_F32
      shape: [ -1, 2, 7, 6 ]
    }
    inputs {
      name: "target"
      dtype: DTYPE_F32
      shape: [ -1, 3 ]
    }
    parameters {
      name: "w"
      shape: [ 3, 2, 3, 3 ]
      initializer { normal: 0.3 }
    }
    parameters {
      name: "shift"
      shape: [ 3, 4, 3 ]
      initializer { normal: 0.3 }
    }
    parameters {
      name: "fc"
      shape: [ 3, 18 ]
      initializer { normal: 0.3 }
    }
    nodes {
      name: "conv"
      op: "Conv2d"
      inputs: "input"
      inputs: "w"
      outputs: "conv"
      attributes {
        key: "strides"
        value { integers { values: [ 2, 2 ] } }
      }
      attributes {
        key: "padding"
        value { integers { values: [ 1, 1, 1, 1 ] } }
      }
    }
    nodes { name: "shifted" op: "Add" inputs: "conv" inputs: "shift" outputs: "shifted" }
    nodes { name: "gelu" op: "Gelu" inputs: "shifted" outputs: "gelu" }
    nodes { name: "twice" op: "Add" inputs: "gelu" inputs: "gelu" outputs: "twice" }
    nodes { name: "thrice" op: "Add" inputs: "twice" inputs: "gelu" outputs: "thrice" }
    nodes {
      name: "pool"
      op: "MaxPool2d"
      inputs: "thrice"
      outputs: [ "pool", "pool.state" ]
      attributes {
        key: "kernel"
        value { integers { values: [ 2, 2 ] } }
      }
      attributes {
        key: "strides"
        value { integers { values: [ 1, 1 ] } }
      }
    }
    nodes { name: "flat" op: "Flatten" inputs: "pool" outputs: "flat" }
    nodes { name: "fc" op: "Linear" inputs: "flat" inputs: "fc" outputs: "y" }
    nodes { name: "loss" op: "MeanSquaredError" inputs: "y" inputs: "target" outputs: "loss" }
    loss: "loss"
  )pb");
  ExpectGradientsMatchFiniteDifferences(graph, 1);
  ExpectGradientsMatchFiniteDifferences(graph, 4);
}

TEST(ExecutorTest, RunsRepeatToTheBit) {
  for (int threads : {1, 2}) {
    const v1::Graph graph = Differentiate(Model("name: 'gpt'")).value();
    Instance a(graph, {.batch = 2, .threads = threads}), b(graph, {.batch = 2, .threads = threads});
    const float first = a.Loss();
    EXPECT_EQ(a.Loss(), first);
    EXPECT_EQ(b.Loss(), first);
    for (int p = 0; p < graph.parameters_size(); ++p) {
      EXPECT_EQ(a.memory().gradient(p), b.memory().gradient(p));
    }
  }
}

TEST(ExecutorTest, DevicesOfOneProcessDoNotDisturbOneAnother) {
  const v1::Graph graph = Differentiate(SmallGpt()).value();
  Instance alone(graph, {.batch = 3});
  const float loss = alone.Loss();
  auto run_repeatedly = [&graph, loss] {
    Instance instance(graph, {.batch = 3});
    for (int i = 0; i < 20; ++i) EXPECT_EQ(instance.Loss(), loss);
  };
  std::jthread first(run_repeatedly), second(run_repeatedly);
}

// Copies the inputs of a batch's samples, starting with sample `first`, to the executor `part`.
void TakeSamples(const v1::Graph& graph, Executor& batch, int64_t samples, int64_t first,
                 Executor& part) {
  for (const v1::GraphInput& input : graph.inputs()) {
    const absl::Span<std::byte> from = batch.input(input.name());
    const absl::Span<std::byte> to = part.input(input.name());
    std::copy_n(from.begin() + first * (from.size() / samples), to.size(), to.begin());
  }
}

TEST(ExecutorTest, TheForwardLossDoesNotDependOnHowSamplesAreBatched) {
  Instance whole(SmallGpt(), {.batch = 6}), half(SmallGpt(), {.batch = 3});
  Instance trained(Differentiate(SmallGpt()).value(), {.batch = 6});
  const float loss = whole.Loss();
  EXPECT_EQ(trained.Loss(), loss);
  float halves = 0;
  for (int part = 0; part < 2; ++part) {
    TakeSamples(whole.graph(), whole.executor(), 6, 3 * part, half.executor());
    halves += half.Loss() / 2;
  }
  EXPECT_NEAR(halves, loss, 1e-6 * loss);
  EXPECT_LT(whole.executor().arena_bytes(), trained.executor().arena_bytes());
}

std::vector<std::vector<float>> Gradients(const Instance& instance) {
  std::vector<std::vector<float>> gradients;
  for (int p = 0; p < instance.graph().parameters_size(); ++p) {
    const absl::Span<float> gradient = instance.memory().gradient(p);
    gradients.emplace_back(gradient.begin(), gradient.end());
  }
  return gradients;
}

TEST(ExecutorTest, TheLossScaleChangesNeitherLossNorGradients) {
  for (bool micro_batches : {false, true}) {
    Instance instance(Differentiate(SmallGpt()).value(),
                      {.batch = 2, .micro_batches = micro_batches});
    const float loss = instance.Loss();
    const auto unscaled = Gradients(instance);
    ASSERT_TRUE(instance.Run({.loss_scale = 1024}).ok());
    EXPECT_EQ(instance.loss(), loss);
    EXPECT_EQ(Gradients(instance), unscaled);  // a power of two: exact
  }
}

TEST(ExecutorTest, UnequalMicroBatchesAddUpToTheGradientsOfTheBatch) {
  const v1::Graph graph = Differentiate(SmallGpt()).value();
  Instance whole(graph, {.batch = 5});
  const float loss = whole.Loss();
  const auto expected = Gradients(whole);

  // Both parts write to the memory of the first.
  Instance first(graph, {.batch = 3, .micro_batches = true});
  const auto device = CreateDevice("cpu", 1).value();
  const auto second = CreateExecutor(graph, {.batch = 2,
                                             .device = device.get(),
                                             .parameters = first.memory().parameters(),
                                             .gradients = first.memory().gradients(),
                                             .micro_batches = true})
                          .value();
  TakeSamples(graph, whole.executor(), 5, 0, first.executor());
  TakeSamples(graph, whole.executor(), 5, 3, *second);
  ASSERT_TRUE(first.Run({.batch = 5, .is_last_micro_batch = false}).ok());
  ASSERT_TRUE(
      second->Run({.batch = 5, .first_position = 3, .is_first_micro_batch = false}, nullptr).ok());

  EXPECT_NEAR(first.loss() + second->output(graph.loss()).value()[0], loss, 1e-6 * loss);
  for (size_t p = 0; p < expected.size(); ++p) {
    float largest = 0;
    for (float value : expected[p]) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < expected[p].size(); ++i) {
      EXPECT_NEAR(first.memory().gradient(p)[i], expected[p][i], 1e-5 * largest);
    }
  }
}

TEST(ExecutorTest, GradientsAreAnnouncedInTheLastMicroBatchOnly) {
  class CountingFlow : public ParameterFlow {
   public:
    absl::Status AwaitParameter(int) override { return absl::OkStatus(); }
    absl::Status GradientReady(int) override { return ++ready, absl::OkStatus(); }
    int ready = 0;
  };
  Instance instance(Differentiate(SmallGpt()).value(), {.batch = 2, .micro_batches = true});
  CountingFlow flow;
  ASSERT_TRUE(instance.Run({.batch = 4, .is_last_micro_batch = false}, &flow).ok());
  EXPECT_EQ(flow.ready, 0);
  ASSERT_TRUE(instance.Run({.batch = 4, .is_first_micro_batch = false}, &flow).ok());
  EXPECT_EQ(flow.ready, instance.graph().parameters_size());
}

v1::Graph Lowered(const v1::Graph& forward, v1::Precision precision) {
  return TrainingGraph(forward, {.precision = precision}).value();
}

// The tolerances allow for about a dozen roundings of a gradient, each of up to 2^-8 in bf16 and
// 2^-11 in f16. Rounding also moves values across a kink of ReLU, or from one maximum of a pooling
// window to another.
TEST(LowPrecisionTest, GradientsAgreeWithF32UpToRounding) {
  for (const v1::Graph& forward : {SmallGpt(), Model("name: 'lenet'"), Model("name: 'mlp'")}) {
    SCOPED_TRACE(forward.name());
    Instance exact(Lowered(forward, v1::FP32), {.batch = 4});
    ASSERT_TRUE(exact.Run().ok());
    for (const auto& [precision, tolerance] : {std::pair(v1::BF16, 0.1), {v1::FP16, 0.05}}) {
      Instance rounded(Lowered(forward, precision), {.batch = 4});
      ASSERT_TRUE(rounded.Run({.loss_scale = 256}).ok());
      EXPECT_NEAR(rounded.loss(), exact.loss(), tolerance * exact.loss());
      for (int p = 0; p < forward.parameters_size(); ++p) {
        double error = 0, norm = 0;
        for (size_t i = 0; i < exact.memory().gradient(p).size(); ++i) {
          const double wanted = exact.memory().gradient(p)[i];
          error += std::pow(rounded.memory().gradient(p)[i] - wanted, 2);
          norm += wanted * wanted;
        }
        EXPECT_LE(std::sqrt(error), tolerance * std::sqrt(norm)) << forward.parameters(p).name();
      }
    }
  }
}

TEST(LowPrecisionTest, AnOverflowOfF16IsVisibleInTheGradients) {
  Instance instance(Lowered(Model("name: 'mlp'"), v1::FP16), {.batch = 4});
  ASSERT_TRUE(instance.Run({.loss_scale = 0x1p30f}).ok());
  const absl::Span<float> gradient = instance.memory().gradient(0);
  EXPECT_FALSE(std::ranges::all_of(gradient, [](float v) { return std::isfinite(v); }));
}

TEST(LowPrecisionTest, OutputsAreF32OnTheHost) {
  Instance instance(Lowered(Model("name: 'mlp'"), v1::BF16), {.batch = 3});
  ASSERT_TRUE(instance.Run().ok());
  EXPECT_EQ(instance.executor().output(instance.graph().logits())->size(), 30);
}

TEST(LowPrecisionTest, OutputsBelongToTheLastRun) {
  Instance instance(Lowered(Model("name: 'mlp'"), v1::BF16), {.batch = 3});
  const auto logits = [&] {
    EXPECT_TRUE(instance.Run().ok());
    const auto own = instance.executor().output(instance.graph().logits()).value();
    return std::vector<float>(own.begin(), own.end());
  };
  const std::vector<float> before = logits();
  std::ranges::fill(instance.memory().parameter(0), 0.5f);
  EXPECT_NE(logits(), before);
}

TEST(ExecutorTest, CorrectIsTheNumberOfRowsWhoseTopLogitIsTheTarget) {
  Instance instance(Model("name: 'mlp'"), {.batch = 64});
  ASSERT_TRUE(instance.Run().ok());
  const auto logits = instance.executor().output(instance.graph().logits()).value();
  const absl::Span<std::byte> target = instance.executor().input("target");
  float expected = 0;
  for (size_t row = 0; row < target.size() / 4; ++row) {
    int32_t wanted;
    std::memcpy(&wanted, &target[4 * row], 4);
    const auto first = logits.begin() + 10 * row;
    expected += std::max_element(first, first + 10) - first == wanted;
  }
  EXPECT_EQ(instance.executor().output(instance.graph().correct()).value()[0], expected);
}

// Checks both promises of ParameterFlow. Values are NaN until they are awaited, and again after the
// gradient is ready.
class PoisoningFlow : public ParameterFlow {
 public:
  explicit PoisoningFlow(const ModelMemory& memory) : memory_(memory) {
    for (size_t p = 0; p < memory.parameters().size(); ++p) {
      const absl::Span<float> values = memory.parameter(p);
      values_.emplace_back(values.begin(), values.end());
      Poison(p);
    }
  }

  absl::Status AwaitParameter(int p) override {
    order_.push_back("await " + std::to_string(p));
    std::ranges::copy(values_[p], memory_.parameter(p).begin());
    return absl::OkStatus();
  }

  absl::Status GradientReady(int p) override {
    order_.push_back("ready " + std::to_string(p));
    Poison(p);
    const absl::Span<float> gradient = memory_.gradient(p);
    gradients_.resize(values_.size());
    gradients_[p].assign(gradient.begin(), gradient.end());
    // The code that reads a gradient may change it, as a reduction does.
    std::ranges::fill(gradient, NAN);
    return absl::OkStatus();
  }

  const std::vector<std::string>& order() const { return order_; }
  const std::vector<std::vector<float>>& gradients() const { return gradients_; }

 private:
  void Poison(int p) { std::ranges::fill(memory_.parameter(p), NAN); }

  const ModelMemory& memory_;
  std::vector<std::vector<float>> values_;
  std::vector<std::vector<float>> gradients_;
  std::vector<std::string> order_;
};

TEST(ParameterFlowTest, ValuesAreReadOnlyBetweenAwaitAndReadyAndGradientsAreFinal) {
  for (const v1::Graph& forward :
       {Differentiate(SmallGpt()).value(), Differentiate(SmallGpt(/*tied=*/true)).value(),
        Lowered(SmallGpt(/*tied=*/true), v1::FP32), Lowered(SmallGpt(/*tied=*/true), v1::BF16),
        Lowered(Model("name: 'lenet'"), v1::FP32), Lowered(Model("name: 'mlp'"), v1::FP16)}) {
    SCOPED_TRACE(forward.name());
    Instance plain(forward, {.batch = 3});
    Instance poisoned(plain.graph(), {.batch = 3});
    const float loss = plain.Loss();
    PoisoningFlow flow(poisoned.memory());

    ASSERT_TRUE(poisoned.Run({}, &flow).ok());

    EXPECT_EQ(poisoned.executor().output(forward.loss()).value()[0], loss);
    for (int p = 0; p < forward.parameters_size(); ++p) {
      const absl::Span<float> expected = plain.memory().gradient(p);
      EXPECT_EQ(flow.gradients()[p], std::vector<float>(expected.begin(), expected.end()))
          << forward.parameters(p).name();
      EXPECT_EQ(std::ranges::count(flow.order(), "await " + std::to_string(p)), 1);
      EXPECT_EQ(std::ranges::count(flow.order(), "ready " + std::to_string(p)), 1);
    }
  }
}

// A run also awaits running means, although training does not read them. The contribution that it
// announces must belong to this step's version, and the wait may end with an error.
TEST(ParameterFlowTest, NothingIsAnnouncedBeforeAllParametersWereAwaited) {
  class OrderlyFlow : public ParameterFlow {
   public:
    explicit OrderlyFlow(size_t parameters) : parameters_(parameters) {}
    absl::Status AwaitParameter(int p) override { return awaited.insert(p), absl::OkStatus(); }
    absl::Status GradientReady(int p) override {
      EXPECT_EQ(awaited.size(), parameters_) << "parameter " << p;
      return absl::OkStatus();
    }
    std::set<int> awaited;

   private:
    const size_t parameters_;
  };
  const v1::Graph graph =
      Lowered(Model("name: 'resnet50' args { fields { key: 'width' value { number_value: 4 } } "
                    "fields { key: 'image' value { number_value: 32 } } }"),
              v1::FP32);
  Instance instance(graph, {.batch = 2});
  OrderlyFlow flow(graph.parameters_size());
  ASSERT_TRUE(instance.Run({}, &flow).ok());
  EXPECT_EQ(flow.awaited.size(), static_cast<size_t>(graph.parameters_size()));
}

TEST(ParameterFlowTest, ParametersAreAwaitedOneByOneAndTheLastLayersGradientsComeFirst) {
  const v1::Graph graph = Model("name: 'mlp' args {" + NumberArgument("hidden", 8) + "}");
  Instance instance(Differentiate(graph).value(), {.batch = 2});
  PoisoningFlow flow(instance.memory());
  ASSERT_TRUE(instance.Run({}, &flow).ok());

  // Weights and biases of two layers: 0, 1 and 2, 3.
  std::vector<std::string> awaits(flow.order().begin(), flow.order().begin() + 4);
  EXPECT_THAT(awaits, testing::ElementsAre("await 0", "await 1", "await 2", "await 3"));
  std::vector<std::string> late(flow.order().begin() + 4, flow.order().begin() + 6);
  EXPECT_THAT(late, testing::UnorderedElementsAre("ready 2", "ready 3"));
}

TEST(ParameterFlowTest, AnErrorEndsTheRun) {
  class FailingFlow : public ParameterFlow {
   public:
    absl::Status AwaitParameter(int p) override {
      return p < 2 ? absl::OkStatus() : absl::CancelledError("shutting down");
    }
    absl::Status GradientReady(int) override {
      ADD_FAILURE() << "no gradient can be ready";
      return absl::OkStatus();
    }
  };
  Instance instance(Differentiate(SmallGpt()).value(), {.batch = 2});
  FailingFlow flow;
  EXPECT_TRUE(absl::IsCancelled(instance.Run({}, &flow)));
}

TEST(ExecutorTest, AnIdBeyondTheVocabularyIsRefusedByName) {
  for (const char* name : {"input", "target"}) {
    for (int32_t bad : {11, -1}) {
      Instance instance(SmallGpt(), {.batch = 2});
      std::memcpy(&instance.executor().input(name)[4 * 7], &bad, 4);
      const absl::Status status = instance.Run();
      EXPECT_TRUE(absl::IsInvalidArgument(status));
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("id " + std::to_string(bad) + " at position 7 is outside [0, 11)"));
    }
  }
}

TEST(ExecutorTest, AGraphThatDoesNotCheckIsRefused) {
  v1::Graph graph = SmallGpt();
  graph.mutable_nodes(0)->set_op("Convolve");
  const auto device = CreateDevice("cpu", 1).value();
  const ModelMemory memory(graph, *device, 1);
  const auto executor = CreateExecutor(
      graph, {.batch = 1, .device = device.get(), .parameters = memory.parameters()});
  EXPECT_TRUE(absl::IsInvalidArgument(executor.status()));
}

TEST(ExecutorTest, ABatchBeyondTheMachinesMemoryIsRefused) {
  const v1::Graph graph = Model("name: 'mlp'");
  const auto device = CreateDevice("cpu", 1).value();
  const ModelMemory memory(graph, *device, 1);
  const auto executor = CreateExecutor(
      graph, {.batch = 1 << 30, .device = device.get(), .parameters = memory.parameters()});
  EXPECT_TRUE(absl::IsResourceExhausted(executor.status())) << executor.status();
  EXPECT_EQ(ReasonOf(executor.status()), "MEMORY_EXHAUSTED");
}

TEST(DeviceTest, NamesOtherThanTheCpuAreRefused) {
  EXPECT_TRUE(CreateDevice("cpu", 1).ok());
  EXPECT_TRUE(CreateDevice("cpu:3", 2).ok());
  for (const char* name : {"", "gpu", "cpu:", "cpu:x", "cpu:-1", "cpus"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(CreateDevice(name, 1).status())) << name;
  }
}

TEST(DeviceTest, MemoryIsAlignedAndZeroed) {
  const auto device = CreateDevice("cpu", 1).value();
  for (size_t bytes : {0, 1, 64, 1000}) {
    const Device::Memory memory = device->Allocate(bytes, "numbers").value();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.get()) % 64, 0);
    EXPECT_TRUE(std::all_of(memory.get(), memory.get() + bytes,
                            [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST(DeviceTest, AllocatingMoreThanIsAvailableFails) {
  const auto device = CreateDevice("cpu", 1).value();
  EXPECT_GT(device->available_bytes(), 0);
  const size_t bytes = 2 * device->available_bytes();
  const absl::Status status = device->Allocate(bytes, "numbers").status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(ReasonOf(status), "MEMORY_EXHAUSTED");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("numbers need ", FormatBytes(bytes))));
}

// A device with enough memory for the first `pieces` allocations, then none.
class ShortOfMemory : public CpuDevice {
 public:
  explicit ShortOfMemory(int pieces) : CpuDevice("cpu", /*threads=*/1), pieces_(pieces) {}
  int64_t available_bytes() const override {
    return pieces_-- > 0 ? CpuDevice::available_bytes() : 0;
  }

 private:
  mutable int pieces_;
};

TEST(ShortOfMemoryTest, AnExecutorSaysWhichMemoryIsMissingAndHowMuch) {
  const v1::Graph graph = Lowered(Model("name: 'mlp'"), v1::BF16);
  CpuDevice device("cpu", /*threads=*/1);
  const ModelMemory memory(graph, device, /*seed=*/1);
  const auto create = [&](int pieces) {
    ShortOfMemory poor(pieces);
    const absl::Status status = CreateExecutor(graph, {.batch = 4,
                                                       .device = &poor,
                                                       .parameters = memory.parameters(),
                                                       .gradients = memory.gradients()})
                                    .status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << pieces << ": " << status;
    EXPECT_EQ(ReasonOf(status), "MEMORY_EXHAUSTED");
    return std::string(status.message());
  };
  EXPECT_THAT(create(0), ContainsRegex("activations of 4 samples.* need [1-9][0-9.]+ MiB"));
  // The model has 235,146 parameters, of 2 bytes each in bf16.
  EXPECT_THAT(create(1), ContainsRegex("parameters in low precision need 459[.0-9]+ KiB"));
}

// An output gets memory for its f32 copy when it is first read. Training never reads the logits,
// which are large: 6.6 GB for GPT-2 with 32 samples of 1,024 tokens.
TEST(ShortOfMemoryTest, AnOutputThatIsNotReadTakesNoMemory) {
  const v1::Graph graph = Lowered(Model("name: 'mlp'"), v1::BF16);
  CpuDevice device("cpu", /*threads=*/1);
  const ModelMemory memory(graph, device, /*seed=*/1);
  ShortOfMemory poor(/*pieces=*/2);  // activations and parameters
  const auto executor = CreateExecutor(graph, {.batch = 4,
                                               .device = &poor,
                                               .parameters = memory.parameters(),
                                               .gradients = memory.gradients()})
                            .value();
  FillInputs(graph, /*ids_max=*/10, /*seed=*/2, *executor);
  ASSERT_TRUE(executor->Run({}, nullptr).ok());
  EXPECT_TRUE(executor->output(graph.loss()).ok());

  const absl::Status asked = executor->output(graph.logits()).status();
  EXPECT_TRUE(absl::IsResourceExhausted(asked)) << asked;
  EXPECT_THAT(std::string(asked.message()),
              HasSubstr(absl::StrCat("output '", graph.logits(), "' need 160 B")));
}

TEST(ShortOfMemoryTest, AFailedModelMemoryNamesTheParameter) {
  const v1::Graph graph = Differentiate(Model("name: 'mlp'")).value();
  for (const auto& [pieces, what] : {std::pair{0, "the values of parameter"},
                                     {1, "the gradients of parameter"},
                                     {2, "the values of parameter"}}) {
    ShortOfMemory poor(pieces);
    const absl::Status status = ModelMemory::Create(graph, poor, /*seed=*/1).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("'", graph.parameters(pieces / 2).name(), "' need ")));
  }
}

}  // namespace
}  // namespace muster::executor_test
