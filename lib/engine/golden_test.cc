// A training step gives the results of PyTorch. tools/make_goldens.py describes the golden files
// and how they were made.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "kernels/optimizer/optimizer.h"
#include "lib/checkpoint/safetensors.h"
#include "lib/engine/backends/backends.h"
#include "lib/engine/device.h"
#include "lib/engine/executor.h"
#include "lib/engine/model_memory.h"
#include "lib/engine/reference/reference.h"
#include "lib/engine/reference/tensor.h"
#include "lib/graph/lowering/lowering.h"
#include "lib/graph/shape_inference.h"
#include "lib/graph/zoo/zoo.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::golden_test {
namespace {

class Golden {
 public:
  explicit Golden(const std::string& name)
      : path_("tests/goldens/" + name + ".safetensors"),
        header_(ReadSafetensorsHeader(path_).value()) {}

  std::vector<std::byte> Bytes(const std::string& tensor) const {
    const TensorEntry* entry = header_.Find(tensor);
    EXPECT_NE(entry, nullptr) << tensor;
    std::vector<std::byte> bytes(entry->bytes);
    EXPECT_TRUE(ReadFileRange(path_, entry->offset, entry->bytes, bytes.data()).ok()) << tensor;
    return bytes;
  }

  std::vector<float> Floats(const std::string& tensor) const {
    const std::vector<std::byte> bytes = Bytes(tensor);
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  int64_t Size(const std::string& tensor, int dimension) const {
    return header_.Find(tensor)->shape[dimension];
  }

  v1::ZooModel model() const {
    v1::ZooModel model;
    ParseMetadata("model", model);
    return model;
  }

  double Setting(const std::string& optimizer, const std::string& name) const {
    google::protobuf::Struct settings;
    ParseMetadata(optimizer, settings);
    return settings.fields().at(name).number_value();
  }

 private:
  void ParseMetadata(const std::string& key, google::protobuf::Message& message) const {
    EXPECT_TRUE(
        google::protobuf::util::JsonStringToMessage(header_.metadata.at(key), &message).ok());
  }

  const std::string path_;
  const SafetensorsHeader header_;
};

// A zoo model's training step on the CPU.
class Model {
 public:
  Model(const v1::ZooModel& zoo, int64_t batch)
      : graph_(BuildGraph(zoo)), memory_(graph_, *device_, /*seed=*/1) {
    executor_ = CreateExecutor(graph_, {.batch = batch,
                                        .device = device_.get(),
                                        .parameters = memory_.parameters(),
                                        .gradients = memory_.gradients()})
                    .value();
  }

  const v1::Graph& graph() const { return graph_; }
  int parameters() const { return graph_.parameters_size(); }
  const std::string& name(int p) const { return graph_.parameters(p).name(); }
  absl::Span<float> parameter(int p) const { return memory_.parameter(p); }
  absl::Span<float> gradient(int p) const { return memory_.gradient(p); }
  absl::Span<std::byte> input(const std::string& name) { return executor_->input(name); }

  float Run() {
    const absl::Status status = executor_->Run({}, nullptr);
    EXPECT_TRUE(status.ok()) << status;
    return executor_->output(graph_.loss()).value()[0];
  }

  // Returns the values of parameter p after an update with `settings`; also updates `slots`.
  std::vector<float> Updated(int p, kernels::OptimizerSettings settings, double learning_rate,
                             int64_t step, std::vector<std::vector<float>>& slots) const {
    if (!graph_.parameters(p).weight_decay()) settings.weight_decay = 0;
    std::vector<float> values(parameter(p).size());
    slots.resize(kernels::OptimizerSlots(settings.rule), std::vector<float>(values.size()));
    std::vector<std::vector<float>> slots_out = slots;
    const kernels::Gradient gradients[] = {{gradient(p).data()}};
    kernels::OptimizerBuffers buffers{.gradients = gradients,
                                      .ranks = 1,
                                      .values_in = parameter(p).data(),
                                      .values_out = values.data()};
    for (size_t s = 0; s < slots.size(); ++s) {
      buffers.slots_in[s] = slots[s].data();
      buffers.slots_out[s] = slots_out[s].data();
    }
    kernels::ApplyOptimizer(settings, learning_rate, step, buffers, values.size());
    slots = std::move(slots_out);
    return values;
  }

 private:
  static v1::Graph BuildGraph(const v1::ZooModel& zoo) {
    v1::ModelSpec spec;
    *spec.mutable_zoo() = zoo;
    return TrainingGraph(BuildModel(spec).value(), {}).value();
  }

  const std::unique_ptr<Device> device_ = CreateDevice("cpu", 1).value();
  const v1::Graph graph_;
  const ModelMemory memory_;
  std::unique_ptr<Executor> executor_;
};

void SetParameters(const Golden& golden, Model& model) {
  for (int p = 0; p < model.parameters(); ++p) {
    std::ranges::copy(golden.Floats("parameters/" + model.name(p)), model.parameter(p).begin());
  }
}

// Fills the model's inputs from part `step` of the golden's inputs.
void SetInputs(const Golden& golden, int64_t step, Model& model) {
  for (const char* input : {"input", "target"}) {
    const absl::Span<std::byte> to = model.input(input);
    const std::vector<std::byte> from = golden.Bytes(input);
    ASSERT_LE((step + 1) * to.size(), from.size());
    std::copy_n(from.begin() + step * to.size(), to.size(), to.begin());
  }
}

kernels::OptimizerSettings Adamw(const Golden& golden) {
  return {.rule = kernels::OptimizerRule::kAdamw,
          .beta1 = golden.Setting("adamw", "beta1"),
          .beta2 = golden.Setting("adamw", "beta2"),
          .epsilon = golden.Setting("adamw", "epsilon"),
          .weight_decay = golden.Setting("adamw", "weight_decay")};
}

// The tolerance is relative to the tensor's largest magnitude. The goldens are computed in float64.
// An element of a sum in f32 carries the rounding of the sum's terms, however small the element is.
void ExpectClose(absl::Span<const float> actual, const std::vector<float>& expected,
                 double relative, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double largest = 0, error = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(double{expected[i]}));
    error = std::max(error, std::abs(double{actual[i]} - expected[i]));
    ASSERT_FALSE(std::isnan(actual[i])) << what;
  }
  EXPECT_LE(error, relative * largest) << what;
}

class GoldenTest : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Zoo, GoldenTest,
                         testing::Values("linear", "mlp", "lenet", "gpt", "gpt_tied"));

TEST_P(GoldenTest, OneStepMatchesPyTorch) {
  const Golden golden(GetParam());
  Model model(golden.model(), golden.Size("input", 0));
  SetParameters(golden, model);
  SetInputs(golden, /*step=*/0, model);

  const float loss = model.Run();

  ExpectClose({&loss, 1}, golden.Floats("loss"), 1e-5, "loss");
  for (int p = 0; p < model.parameters(); ++p) {
    const std::string& name = model.name(p);
    ExpectClose(model.gradient(p), golden.Floats("gradients/" + name), 1e-5, "gradient " + name);
    std::vector<std::vector<float>> momentum, moments;
    ExpectClose(model.Updated(p,
                              {.rule = kernels::OptimizerRule::kSgdMomentum,
                               .momentum = golden.Setting("sgd", "momentum")},
                              golden.Setting("sgd", "learning_rate"), /*step=*/0, momentum),
                golden.Floats("after_sgd/" + name), 1e-5, "sgd " + name);
    ExpectClose(model.Updated(p, Adamw(golden), golden.Setting("adamw", "learning_rate"),
                              /*step=*/0, moments),
                golden.Floats("after_adamw/" + name), 1e-5, "adamw " + name);
  }
}

TEST(GoldenTrainingTest, SeveralStepsMatchPyTorch) {
  const Golden golden("gpt_training");
  Model model(golden.model(), golden.Size("input", 1));
  SetParameters(golden, model);
  const std::vector<float> losses = golden.Floats("losses");
  std::vector<std::vector<std::vector<float>>> moments(model.parameters());

  for (size_t step = 0; step < losses.size(); ++step) {
    SetInputs(golden, step, model);
    const float loss = model.Run();
    ExpectClose({&loss, 1}, {losses[step]}, 1e-5, "loss " + std::to_string(step));
    for (int p = 0; p < model.parameters(); ++p) {
      std::ranges::copy(model.Updated(p, Adamw(golden), golden.Setting("adamw", "learning_rate"),
                                      step, moments[p]),
                        model.parameter(p).begin());
    }
  }

  for (int p = 0; p < model.parameters(); ++p) {
    ExpectClose(model.parameter(p), golden.Floats("after_adamw/" + model.name(p)), 1e-5,
                model.name(p));
  }
}

// Numbers in [-1, 1) that depend on name and index, like uniform() of tools/make_goldens.py.
//   Source: Vigna, splitmix64, 2015 (public domain), for the mixing; FNV-1a for the seed.
std::vector<double> Uniform(const std::string& name, size_t count) {
  uint64_t state = 0xCBF29CE484222325;
  for (const char byte : name) {
    state = (state ^ static_cast<unsigned char>(byte)) * 0x100000001B3;
  }
  std::vector<double> values;
  for (size_t i = 0; i < count; ++i) {
    uint64_t z = state += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    values.push_back(std::ldexp((z ^ (z >> 31)) >> 11, -52) - 1);
  }
  return values;
}

double Dot(absl::Span<const float> a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

double Norm(absl::Span<const float> values) {
  return std::sqrt(Dot(values, {values.begin(), values.end()}));
}

// A file that describes a training step and the norms of its gradients.
class Fingerprint {
 public:
  explicit Fingerprint(const std::string& name) {
    std::ifstream file("tests/goldens/" + name + ".json");
    std::stringstream text;
    text << file.rdbuf();
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(text.str(), &json_).ok()) << name;
    const google::protobuf::Struct& model = Field("model").struct_value();
    model_.set_name(model.fields().at("name").string_value());
    *model_.mutable_args() = model.fields().at("args").struct_value();
  }

  const v1::ZooModel& model() const { return model_; }
  int64_t batch() const { return Field("batch").number_value(); }
  double loss() const { return Field("loss").number_value(); }

  struct Parameter {
    double mean, half_width;
    double gradient_norm, gradient_projection;
  };
  int parameters() const { return Field("parameters").struct_value().fields_size(); }
  Parameter parameter(const std::string& name) const {
    const auto& numbers =
        Field("parameters").struct_value().fields().at(name).list_value().values();
    return {numbers[0].number_value(), numbers[1].number_value(), numbers[2].number_value(),
            numbers[3].number_value()};
  }

  std::vector<float> Values(const std::string& name, int64_t elements) const {
    const Parameter range = parameter(name);
    std::vector<float> values;
    for (const double u : Uniform(name, elements)) {
      values.push_back(range.mean + range.half_width * u);
    }
    return values;
  }

  // The values of an input; whole numbers if the input has integers.
  std::vector<float> Input(const std::string& name, int64_t elements) const {
    const google::protobuf::Value& content = Field("inputs").struct_value().fields().at(name);
    std::vector<float> values;
    if (content.has_list_value()) {
      for (const auto& number : content.list_value().values()) {
        values.push_back(number.number_value());
      }
    } else {
      for (const double u : Uniform(name, elements)) values.push_back(content.number_value() * u);
    }
    EXPECT_EQ(values.size(), elements) << name;
    return values;
  }

 private:
  const google::protobuf::Value& Field(const std::string& name) const {
    return json_.fields().at(name);
  }

  google::protobuf::Struct json_;
  v1::ZooModel model_;
};

void SetParametersAndInputs(const Fingerprint& golden, Model& model) {
  for (int p = 0; p < model.parameters(); ++p) {
    const absl::Span<float> values = model.parameter(p);
    std::ranges::copy(golden.Values(model.name(p), values.size()), values.begin());
  }
  for (const v1::GraphInput& input : model.graph().inputs()) {
    const absl::Span<std::byte> bytes = model.input(input.name());
    const std::vector<float> values = golden.Input(input.name(), bytes.size() / sizeof(float));
    if (input.dtype() == v1::DTYPE_I32) {
      std::ranges::copy(values, reinterpret_cast<int32_t*>(bytes.data()));
    } else {
      std::ranges::copy(values, reinterpret_cast<float*>(bytes.data()));
    }
  }
}

class FingerprintTest : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Zoo, FingerprintTest,
                         testing::Values("vgg16", "resnet50", "resnet101", "inception_v3",
                                         "lstm_lm", "gnmt", "transformer", "bert", "gpt2", "ncf"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(FingerprintTest, GradientsMatchTheNormsAndDirectionsOfPyTorch) {
  const Fingerprint golden(GetParam());
  Model model(golden.model(), golden.batch());
  ASSERT_EQ(model.parameters(), golden.parameters());
  SetParametersAndInputs(golden, model);

  const float loss = model.Run();

  EXPECT_NEAR(loss, golden.loss(), 1e-5 * golden.loss());
  double whole = 0;
  for (int p = 0; p < model.parameters(); ++p) {
    if (model.graph().parameters(p).has_statistic_momentum()) continue;
    whole = std::hypot(whole, golden.parameter(model.name(p)).gradient_norm);
  }
  for (int p = 0; p < model.parameters(); ++p) {
    const std::string& name = model.name(p);
    const Fingerprint::Parameter expected = golden.parameter(name);
    // A gradient that cancels to zero (the bias before a batch norm) carries the rounding of its
    // terms.
    const bool cancels = expected.gradient_norm < 1e-12 * whole;
    const double tolerance = cancels ? 1e-6 * whole : 1e-4 * expected.gradient_norm;
    const std::vector<double> direction = Uniform(name + ".direction", model.gradient(p).size());
    EXPECT_NEAR(Norm(model.gradient(p)), expected.gradient_norm, tolerance) << name;
    EXPECT_NEAR(Dot(model.gradient(p), direction), expected.gradient_projection,
                tolerance * std::sqrt(direction.size()))
        << name;
  }
}

// The loss in float64, by the reference evaluator.
double LossOfReference(const Fingerprint& golden, const v1::ZooModel& model) {
  v1::ModelSpec spec;
  *spec.mutable_zoo() = model;
  const v1::Graph graph = BuildModel(spec).value();
  const TensorTypes types = InferTypes(graph, golden.batch()).value();
  reference::Tensors given;
  for (const v1::Parameter& parameter : graph.parameters()) {
    const TensorType& type = types.at(parameter.name());
    const std::vector<float> values = golden.Values(parameter.name(), type.elements());
    given[parameter.name()] = {.shape = type.shape, .values = {values.begin(), values.end()}};
  }
  for (const v1::GraphInput& input : graph.inputs()) {
    const TensorType& type = types.at(input.name());
    const std::vector<float> values = golden.Input(input.name(), type.elements());
    given[input.name()] = {.shape = type.shape,
                           .values = {values.begin(), values.end()},
                           .is_integer = type.dtype == v1::DTYPE_I32};
  }
  return reference::Evaluate(graph, given).at(graph.loss()).values[0];
}

TEST_P(FingerprintTest, TheReferenceMatchesTheLossOfPyTorch) {
  const Fingerprint golden(GetParam());

  EXPECT_NEAR(LossOfReference(golden, golden.model()), golden.loss(), 1e-12);
}

// The dropout rate is so small that nothing is dropped.
TEST(AttentionDropoutTest, DropoutOfRateZeroDoesNotChangeAttention) {
  for (const char* name : {"bert", "gpt2"}) {
    const Fingerprint golden(name);
    v1::ZooModel model = golden.model();
    (*model.mutable_args()->mutable_fields())["attention_dropout"].set_number_value(1e-12);

    EXPECT_NEAR(LossOfReference(golden, model), golden.loss(), 1e-9) << name;
  }
}

}  // namespace
}  // namespace muster::golden_test
