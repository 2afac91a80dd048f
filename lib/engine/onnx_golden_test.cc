// Models exported from PyTorch train here as they do there: tools/make_onnx_goldens.py made the
// files and says what is in them.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/optimizer/optimizer.h"
#include "lib/checkpoint/safetensors.h"
#include "lib/engine/device.h"
#include "lib/engine/executor.h"
#include "lib/engine/model_memory.h"
#include "lib/graph/lowering.h"
#include "lib/graph/onnx/onnx_import.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {
namespace {

constexpr int kBatches = 2;  // of a golden's samples; taken in turn

class OnnxGolden {
 public:
  explicit OnnxGolden(const std::string& name)
      : path_("tests/goldens/onnx/" + name + ".safetensors"),
        header_(ReadSafetensorsHeader(path_).value()) {}

  template <typename T>
  std::vector<T> Read(const std::string& tensor) const {
    const TensorEntry* entry = header_.Find(tensor);
    EXPECT_NE(entry, nullptr) << tensor;
    std::vector<T> values(entry->bytes / sizeof(T));
    EXPECT_TRUE(ReadFileRange(path_, entry->offset, entry->bytes, values.data()).ok());
    return values;
  }

  int64_t samples() const { return header_.Find("input")->shape[0]; }

 private:
  const std::string path_;
  const SafetensorsHeader header_;
};

void CopyBatch(const std::vector<std::byte>& samples, int batch, absl::Span<std::byte> to) {
  ASSERT_EQ(samples.size(), to.size() * kBatches);
  std::memcpy(to.data(), samples.data() + batch * to.size(), to.size());
}

class OnnxGoldenTest : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Models, OnnxGoldenTest,
                         testing::Values("mlp", "cnn", "resnet18", "transformer", "recurrent"));

TEST_P(OnnxGoldenTest, TwentyStepsOfSgdHaveTheLossesOfPyTorch) {
  const OnnxGolden golden(GetParam());
  v1::OnnxModel source;
  source.set_path(std::string("tests/goldens/onnx/") + GetParam() + ".onnx");
  const auto model = ImportOnnx(source);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto graph = TrainingGraph(model->graph, {});
  ASSERT_TRUE(graph.ok()) << graph.status();

  const auto device = Device::Create("cpu", 1).value();
  const ModelMemory memory(*graph, *device, /*seed=*/1);
  std::vector<std::vector<float>> momenta;
  for (int p = 0; p < graph->parameters_size(); ++p) {
    const std::vector<float>& values = model->initial_values[p];
    ASSERT_EQ(values.size(), memory.parameter(p).size());
    std::memcpy(memory.parameter(p).data(), values.data(), values.size() * sizeof(float));
    momenta.emplace_back(values.size());
  }
  const auto executor = Executor::Create(*graph, {.batch = golden.samples() / kBatches,
                                                  .device = device.get(),
                                                  .parameters = memory.parameters(),
                                                  .gradients = memory.gradients()});
  ASSERT_TRUE(executor.ok()) << executor.status();
  const kernels::OptimizerSettings sgd = {.rule = kernels::OptimizerRule::kSgdMomentum,
                                          .momentum = golden.Read<double>("momentum")[0]};
  const double learning_rate = golden.Read<double>("learning_rate")[0];
  const std::vector<std::byte> inputs = golden.Read<std::byte>("input");
  const std::vector<std::byte> targets = golden.Read<std::byte>("target");
  const std::vector<double> losses = golden.Read<double>("losses");

  for (size_t step = 0; step < losses.size(); ++step) {
    CopyBatch(inputs, step % kBatches, (*executor)->input("input"));
    CopyBatch(targets, step % kBatches, (*executor)->input("target"));
    const absl::Status run = (*executor)->Run({}, nullptr);
    ASSERT_TRUE(run.ok()) << run;
    const double loss = (*executor)->output(graph->loss()).value()[0];
    ASSERT_NEAR(loss, losses[step], 1e-4 * std::abs(losses[step])) << "step " << step;
    if (step == 0) {
      const std::vector<float> logits = golden.Read<float>("logits");
      const absl::Span<const float> own = (*executor)->output(graph->logits()).value();
      ASSERT_EQ(own.size(), logits.size());
      for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(own[i], logits[i], 1e-4) << i;
    }
    for (int p = 0; p < graph->parameters_size(); ++p) {
      if (graph->parameters(p).has_statistic_momentum()) continue;
      const kernels::Gradient gradients[] = {{memory.gradient(p).data()}};
      std::vector<float> values(memory.parameter(p).size()), momentum(values.size());
      kernels::OptimizerBuffers buffers{.gradients = gradients,
                                        .ranks = 1,
                                        .values_in = memory.parameter(p).data(),
                                        .values_out = values.data()};
      buffers.slots_in[0] = momenta[p].data();
      buffers.slots_out[0] = momentum.data();
      kernels::ApplyOptimizer(sgd, learning_rate, step, buffers, values.size());
      std::memcpy(memory.parameter(p).data(), values.data(), values.size() * sizeof(float));
      momenta[p] = std::move(momentum);
    }
  }
}

}  // namespace
}  // namespace muster
