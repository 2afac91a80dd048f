// Compares operators of an ONNX file in two forms: computed while the model runs, and folded by the
// importer because their inputs are constants.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/engine/backends/backends.h"
#include "lib/engine/device.h"
#include "lib/engine/executor.h"
#include "lib/engine/model_memory.h"
#include "lib/graph/lowering/lowering.h"
#include "lib/graph/onnx/onnx_import.h"
#include "lib/graph/onnx/onnx_model_builder.h"
#include "lib/status/status.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/third_party/onnx/onnx.pb.h"

namespace muster::onnx_operators_test {
namespace {

using onnx::TensorProto;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Numbers = std::vector<double>;

// One run of a model on the CPU.
class OnnxRun {
 public:
  // If `loss` is empty the model is in inference form, otherwise in training form.
  OnnxRun(OnnxModelBuilder& model, int64_t batch, const std::string& loss = "",
          v1::Precision precision = v1::FP32) {
    v1::OnnxModel spec;
    spec.set_path(model.Write(
        absl::StrCat(testing::UnitTest::GetInstance()->current_test_info()->name(), ".onnx")));
    spec.set_loss(loss);
    for (const TensorProto& tensor : model.proto().graph().initializer()) {
      if (tensor.data_type() != TensorProto::FLOAT) continue;
      tensor.name() == "data" ? spec.add_freeze("data") : spec.add_train(tensor.name());
    }
    const auto imported = ImportOnnx(spec);
    if (!imported.ok()) {
      imported_ = imported.status();
      return;
    }
    const LoweringOptions options{.precision = precision};
    graph_ = loss.empty() ? InferenceGraph(imported->graph, options).value()
                          : TrainingGraph(imported->graph, options).value();
    memory_ = ModelMemory::Create(graph_, *device_, /*seed=*/1).value();
    for (int p = 0; p < graph_.parameters_size(); ++p) {
      std::ranges::copy(imported->initial_values[p], memory_->parameter(p).begin());
    }
    executor_ = CreateExecutor(graph_, {.batch = batch,
                                        .device = device_.get(),
                                        .parameters = memory_->parameters(),
                                        .gradients = memory_->gradients()})
                    .value();
  }

  void Fill(const std::string& input, const Numbers& numbers) {
    if (!imported_.ok()) return;
    for (const v1::GraphInput& known : graph_.inputs()) {
      if (known.name() != input) continue;
      if (known.dtype() == v1::DTYPE_F32) {
        Copy(std::vector<float>(numbers.begin(), numbers.end()), input);
      } else {
        Copy(std::vector<int32_t>(numbers.begin(), numbers.end()), input);
      }
    }
  }

  // Returns the logits, or the loss if the model computes it itself.
  absl::StatusOr<std::vector<float>> Run(const RunArguments& arguments = {}) {
    RETURN_IF_ERROR(imported_);
    RETURN_IF_ERROR(executor_->Run(arguments, nullptr));
    ASSIGN_OR_RETURN(const auto output,
                     executor_->output(graph_.logits().empty() ? graph_.loss() : graph_.logits()));
    return std::vector<float>(output.begin(), output.end());
  }

  absl::Span<const float> gradient(int p) const { return memory_->gradient(p); }

 private:
  template <typename T>
  void Copy(const std::vector<T>& values, const std::string& input) {
    const absl::Span<std::byte> to = executor_->input(input);
    ASSERT_EQ(to.size(), values.size() * sizeof(T)) << input;
    std::memcpy(to.data(), values.data(), to.size());
  }

  const std::unique_ptr<Device> device_ = CreateDevice("cpu", 1).value();
  absl::Status imported_;
  v1::Graph graph_;
  std::unique_ptr<ModelMemory> memory_;
  std::unique_ptr<Executor> executor_;
};

// Completes the model: out = (y + zeros) * scale, with y f32[batch, n]. `out` gives the logits,
// `scale` is a parameter.
void Finish(OnnxModelBuilder& model, int64_t n) {
  model.Input("zeros", {0, n}).Filled("scale", {1}, 1).Output("out");
  model.Node("Add", {"y", "zeros"}, {"sum"}).Node("Mul", {"sum", "scale"}, {"out"});
}

void Scalar(OnnxModelBuilder& model, const std::string& name, int64_t value) {
  model.Integers(name, {value});
  model.proto().mutable_graph()->mutable_initializer()->rbegin()->clear_dims();
}

// Adds x, one sample, as an input or as a constant.
void AddX(OnnxModelBuilder& model, bool is_constant, std::vector<int64_t> shape,
          const std::vector<int64_t>& x) {
  if (!is_constant) {
    model.Input("x", std::move(shape), TensorProto::INT64);
    return;
  }
  model.Integers("x", x);
  shape[0] = 1;
  model.proto().mutable_graph()->mutable_initializer()->rbegin()->mutable_dims()->Assign(
      shape.begin(), shape.end());
}

TEST(OnnxOperatorsTest, AnIndexOutsideTheClassesGivesARowOfZeros) {
  const std::vector<int64_t> x = {-4, -3, -1, 0, 2, 3, 255};
  for (const bool is_constant : {false, true}) {
    OnnxModelBuilder model;
    AddX(model, is_constant, {0, 7}, x);
    Scalar(model, "depth", 3);
    model.Integers("values", {0, 1});
    model.Node("OneHot", {"x", "depth", "values"}, {"hot"})
        .Node("Cast", {"hot"}, {"floats"}, {{"to", {TensorProto::FLOAT}}})
        .Node("Flatten", {"floats"}, {"y"});
    Finish(model, 21);
    OnnxRun run(model, /*batch=*/1);
    run.Fill("x", Numbers(x.begin(), x.end()));
    run.Fill("zeros", Numbers(21, 0));
    const auto y = run.Run();
    ASSERT_TRUE(y.ok()) << y.status();
    EXPECT_THAT(*y, ElementsAre(0, 0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0))
        << (is_constant ? "folded" : "computed");
  }
}

// Gathers from data f32[2, 3] = 0.25, 0.5, ...
absl::StatusOr<std::vector<float>> GatherNd(const std::vector<int64_t>& x, bool is_constant) {
  const int64_t rows = std::ssize(x) / 2;
  OnnxModelBuilder model;
  AddX(model, is_constant, {0, rows, 2}, x);
  model.Weight("data", {2, 3}).Node("GatherND", {"data", "x"}, {"y"});
  Finish(model, rows);
  OnnxRun run(model, /*batch=*/1);
  run.Fill("x", Numbers(x.begin(), x.end()));
  run.Fill("zeros", Numbers(rows, 0));
  return run.Run();
}

TEST(OnnxOperatorsTest, CoordinatesOutsideTheDataAreRefused) {
  for (const bool is_constant : {false, true}) {
    const auto y = GatherNd({0, 2, 1, 0, -1, -3, -2, 1}, is_constant);
    ASSERT_TRUE(y.ok()) << y.status();
    EXPECT_THAT(*y, ElementsAre(0.75, 1, 1, 0.5));
    for (const auto& outside : {std::vector<int64_t>{0, 3}, {0, -4}, {2, 0}, {-3, 0}}) {
      EXPECT_THAT(std::string(GatherNd(outside, is_constant).status().message()),
                  HasSubstr("outside"))
          << outside[0] << ", " << outside[1];
    }
  }
}

TEST(OnnxOperatorsTest, CoordinatesBehindTheBatchDimensionAreChecked) {
  OnnxModelBuilder model;
  AddX(model, /*is_constant=*/false, {0, 1, 2}, {});
  model.Input("z", {0, 3}).Input("updates", {0, 1});
  model.Node("ScatterND", {"z", "x", "updates"}, {"y"});
  Finish(model, 3);
  OnnxRun run(model, /*batch=*/2);
  run.Fill("z", Numbers(6, 0));
  run.Fill("zeros", Numbers(6, 0));
  run.Fill("updates", {7, 8});
  run.Fill("x", {0, 1, -1, -1});
  const auto y = run.Run();
  ASSERT_TRUE(y.ok()) << y.status();
  EXPECT_THAT(*y, ElementsAre(0, 7, 0, 0, 0, 8));
  for (const Numbers& outside : {Numbers{0, 3, 0, 0}, {0, 0, 1, -4}, {2, 0, 0, 0}, {0, 0, -3, 2}}) {
    run.Fill("x", outside);
    EXPECT_THAT(std::string(run.Run().status().message()), HasSubstr("outside"));
  }
}

TEST(OnnxOperatorsTest, ACastToBoolComparesWithZero) {
  for (const bool is_constant : {false, true}) {
    OnnxModelBuilder model;
    model.Input("like", {0, 1}).Weight("data", {1, 4});
    const float numbers[] = {0.5f, 0, -0.25f, 2};
    model.proto().mutable_graph()->mutable_initializer(0)->mutable_float_data()->Assign(
        std::begin(numbers), std::end(numbers));
    if (!is_constant) model.Input("x", {0, 4});
    model.Node("Equal", {"like", "like"}, {"truth"})
        .Node("Identity", {"truth"}, {"same"})
        .Node("CastLike", {is_constant ? "data" : "x", "same"}, {"is"})
        .Node("Cast", {"is"}, {"y"}, {{"to", {TensorProto::FLOAT}}});
    Finish(model, 4);
    OnnxRun run(model, /*batch=*/1);
    run.Fill("like", {1});
    run.Fill("x", Numbers(std::begin(numbers), std::end(numbers)));
    run.Fill("zeros", Numbers(4, 0));
    const auto y = run.Run();
    ASSERT_TRUE(y.ok()) << y.status();
    EXPECT_THAT(*y, ElementsAre(1, 0, 1, 1)) << (is_constant ? "folded" : "computed");
  }
}

// Applies a dropout to ones [samples, 4] with the sequence dimension first. `position` is the first
// sample's position in the global batch.
std::vector<float> Dropped(int64_t position, int64_t samples) {
  OnnxModelBuilder model;
  model.Input("x", {0, 4, 1}).Filled("scale", {1, 1}, 1).Output("out");
  model.Node("Transpose", {"x"}, {"sequence"}, {{"perm", {1, 0, 2}}})
      .Node("Dropout", {"sequence"}, {"dropped"})
      .Node("Transpose", {"dropped"}, {"y"}, {{"perm", {1, 0, 2}}})
      .Node("Mul", {"y", "scale"}, {"rows"})
      .Node("Flatten", {"rows"}, {"out"});
  OnnxRun run(model, samples, "softmax_cross_entropy");
  run.Fill("x", Numbers(4 * samples, 1));
  run.Fill("target", Numbers(samples, 0));
  const auto y = run.Run({.batch = 8, .first_position = position, .seed = 7});
  EXPECT_TRUE(y.ok()) << y.status();
  return y.value_or(std::vector<float>());
}

TEST(OnnxOperatorsTest, DropoutOfASequenceDoesNotDependOnTheShare) {
  const std::vector<float> whole = Dropped(0, 8);
  EXPECT_THAT(whole, Contains(0));
  EXPECT_THAT(whole, Contains(2));
  std::vector<float> shares;
  for (const auto& [position, samples] : {std::pair(0, 3), std::pair(3, 1), std::pair(4, 4)}) {
    const std::vector<float> share = Dropped(position, samples);
    shares.insert(shares.end(), share.begin(), share.end());
  }
  EXPECT_EQ(shares, whole);
}

TEST(OnnxOperatorsTest, ALossWithoutTargetsIsZero) {
  OnnxModelBuilder model;
  model.Input("x", {0, 3}).Weight("w", {3, 4}).Input("labels", {0}, TensorProto::INT64);
  model.Output("loss").Node("MatMul", {"x", "w"}, {"scores"});
  model.Node("SoftmaxCrossEntropyLoss", {"scores", "labels"}, {"loss"}, {{"ignore_index", {-100}}});
  OnnxRun run(model, /*batch=*/2, "output");
  run.Fill("x", {1, 2, 3, 4, 5, 6});
  run.Fill("labels", {-100, -100});
  const auto nothing = run.Run();
  ASSERT_TRUE(nothing.ok()) << nothing.status();
  EXPECT_THAT(*nothing, ElementsAre(0));
  EXPECT_THAT(run.gradient(0), Each(0));
  run.Fill("labels", {-100, 1});
  const auto one = run.Run();
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_GT((*one)[0], 0);
  EXPECT_NE(run.gradient(0)[0], 0);
}

// Checks that the mean is not computed from the sum of the rows' losses, which f16 cannot hold.
TEST(OnnxOperatorsTest, ALossThatIgnoresTargetsIsAMeanInF16) {
  constexpr int64_t kRows = 20000, kClasses = 100;
  OnnxModelBuilder model;
  model.Input("x", {0, 1}).Filled("w", {1, kClasses}, 0.5).Input("labels", {0}, TensorProto::INT64);
  model.Output("loss").Node("MatMul", {"x", "w"}, {"scores"});
  model.Node("SoftmaxCrossEntropyLoss", {"scores", "labels"}, {"loss"}, {{"ignore_index", {-100}}});
  OnnxRun run(model, kRows, "output", v1::FP16);
  run.Fill("x", Numbers(kRows, 1));
  Numbers labels(kRows);
  for (int64_t i = 0; i < kRows; ++i) labels[i] = i % 16 == 0 ? -100 : i % kClasses;
  run.Fill("labels", labels);
  const auto loss = run.Run();
  ASSERT_TRUE(loss.ok()) << loss.status();
  EXPECT_NEAR((*loss)[0], std::log(kClasses), 0x1p-9 * std::log(kClasses));
  for (const float derivative : run.gradient(0)) EXPECT_TRUE(std::isfinite(derivative));
}

}  // namespace
}  // namespace muster::onnx_operators_test
