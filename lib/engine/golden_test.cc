// A training step gives what PyTorch gives: the files and their makers are described in
// tools/make_goldens.py.
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "kernels/optimizer/optimizer.h"
#include "lib/checkpoint/safetensors.h"
#include "lib/engine/device.h"
#include "lib/engine/executor.h"
#include "lib/engine/model_memory.h"
#include "lib/graph/autodiff.h"
#include "lib/graph/zoo.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {
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

  v1::Graph BuildGraph() const {
    v1::ModelSpec spec;
    ParseMetadata("model", *spec.mutable_zoo());
    return Differentiate(BuildModel(spec).value()).value();
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

// The golden's graph on the CPU, its parameters at the golden's first values.
class Model {
 public:
  Model(const Golden& golden, int64_t batch)
      : graph_(golden.BuildGraph()), memory_(graph_, *device_, /*seed=*/1) {
    executor_ = Executor::Create(graph_, {.batch = batch,
                                          .device = device_.get(),
                                          .parameters = memory_.parameters(),
                                          .gradients = memory_.gradients()})
                    .value();
    for (int p = 0; p < graph_.parameters_size(); ++p) {
      std::ranges::copy(golden.Floats("parameters/" + name(p)), memory_.parameter(p).begin());
    }
  }

  int parameters() const { return graph_.parameters_size(); }
  const std::string& name(int p) const { return graph_.parameters(p).name(); }
  absl::Span<float> parameter(int p) const { return memory_.parameter(p); }
  absl::Span<float> gradient(int p) const { return memory_.gradient(p); }

  // Fills inputs from part `step` of the golden's.
  void SetInputs(const Golden& golden, int64_t step) {
    for (const char* input : {"input", "target"}) {
      const absl::Span<std::byte> to = executor_->input(input);
      const std::vector<std::byte> from = golden.Bytes(input);
      ASSERT_LE((step + 1) * to.size(), from.size());
      std::copy_n(from.begin() + step * to.size(), to.size(), to.begin());
    }
  }

  float Run() {
    EXPECT_TRUE(executor_->Run(1.0f, nullptr).ok());
    return executor_->output(graph_.loss())[0];
  }

  // The values that `settings` makes of parameter p; `slots` are updated.
  std::vector<float> Updated(int p, kernels::OptimizerSettings settings, double learning_rate,
                             int64_t step, std::vector<std::vector<float>>& slots) const {
    if (!graph_.parameters(p).weight_decay()) settings.weight_decay = 0;
    std::vector<float> values(parameter(p).size());
    slots.resize(kernels::OptimizerSlots(settings.rule), std::vector<float>(values.size()));
    std::vector<std::vector<float>> slots_out = slots;
    const float* const gradients[] = {gradient(p).data()};
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
  const std::unique_ptr<Device> device_ = Device::Create("cpu", 1).value();
  const v1::Graph graph_;
  const ModelMemory memory_;
  std::unique_ptr<Executor> executor_;
};

kernels::OptimizerSettings Adamw(const Golden& golden) {
  return {.rule = kernels::OptimizerRule::kAdamw,
          .beta1 = golden.Setting("adamw", "beta1"),
          .beta2 = golden.Setting("adamw", "beta2"),
          .epsilon = golden.Setting("adamw", "epsilon"),
          .weight_decay = golden.Setting("adamw", "weight_decay")};
}

// Relative to the tensor's largest magnitude: the goldens are computed in float64, and an element
// of a sum in f32 carries the rounding of the sum's terms however small it is itself.
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

TEST_P(GoldenTest, OneStepIsThatOfPyTorch) {
  const Golden golden(GetParam());
  Model model(golden, golden.Size("input", 0));
  model.SetInputs(golden, 0);

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

TEST(GoldenTrainingTest, SeveralStepsInARowAreThoseOfPyTorch) {
  const Golden golden("gpt_training");
  Model model(golden, golden.Size("input", 1));
  const std::vector<float> losses = golden.Floats("losses");
  std::vector<std::vector<std::vector<float>>> moments(model.parameters());

  for (size_t step = 0; step < losses.size(); ++step) {
    model.SetInputs(golden, step);
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

}  // namespace
}  // namespace muster
