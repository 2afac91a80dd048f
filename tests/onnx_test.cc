// A model from an ONNX file, through a job and back into the file.
#include <stdlib.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/engine/backends/backends.h"
#include "lib/engine/device.h"
#include "lib/graph/lowering/lowering.h"
#include "lib/graph/onnx/onnx_import.h"
#include "tests/training_cluster.h"

namespace muster::onnx_test {
namespace {

namespace fs = std::filesystem;

constexpr int kSamples = 4;

class OnnxTest : public testing::Test {
 protected:
  // Copies the model to `model_`, which a test may delete.
  OnnxTest() : model_(absl::StrCat(testing::TempDir(), "/model.", getpid(), ".onnx")) {
    fs::copy_file("tests/goldens/onnx/cnn.onnx", model_, fs::copy_options::overwrite_existing);
  }

  ImportedModel Import() const {
    v1::OnnxModel source;
    source.set_path("tests/goldens/onnx/cnn.onnx");
    return ImportOnnx(source).value();
  }

  std::string Job(int steps, const std::string& learning_rate) const {
    return absl::StrCat("name: onnx\nmodel: {onnx: {path: ", model_,
                        "}}\ndata: {synthetic: {samples: 64}, batch_size: 8}\n"
                        "training: {steps: ",
                        steps, ", optimizer: {sgd: {learning_rate: ", learning_rate,
                        ", momentum: 0.9}}}\nresources: {workers: {min: 2}, ps: 2}\n");
  }

  const std::string model_;
};

TEST_F(OnnxTest, AJobStartsFromTheFilesValuesAndNeedsTheFileOnlyWhenItIsCreated) {
  TrainingCluster cluster({.ps = 2, .workers = 2, .ps_threads = 1});
  // The learning rate is too small to change a weight.
  const std::string job = cluster.Submit(Job(/*steps=*/1, "1e-30"));
  fs::remove(model_);
  cluster.AwaitState(job, v1::SUCCEEDED);
  fs::copy_file("tests/goldens/onnx/cnn.onnx", model_);  // as the constructor left it

  const std::map<std::string, std::vector<float>> trained = cluster.Parameters(job, 1);
  const ImportedModel model = Import();
  ASSERT_EQ(trained.size(), static_cast<size_t>(model.graph.parameters_size()));
  for (int p = 0; p < model.graph.parameters_size(); ++p) {
    if (model.graph.parameters(p).has_statistic_momentum()) continue;
    const std::string& name = model.graph.parameters(p).name();
    EXPECT_THAT(trained.at(name),
                testing::Pointwise(testing::FloatNear(1e-20f), model.initial_values[p]))
        << name;
  }
}

TEST_F(OnnxTest, WhatTheImportGuessedIsAWarningOfTheJob) {
  fs::copy_file("tests/goldens/onnx/transformer.onnx", model_,
                fs::copy_options::overwrite_existing);
  TrainingCluster cluster({.ps = 2, .workers = 2, .ps_threads = 1});
  const v1::Job job = cluster.Get(cluster.Run(Job(/*steps=*/1, "0.01")));
  ASSERT_EQ(job.warnings_size(), 1);
  EXPECT_THAT(job.warnings(0), testing::HasSubstr("trained by a guess: 'positions'"));
}

TEST_F(OnnxTest, AJobThatDivergedSaysSoWhenItEnds) {
  TrainingCluster cluster({.ps = 2, .workers = 2, .ps_threads = 1});
  // Squares of errors that grow a million times in each step.
  std::string diverging = absl::StrCat(Job(/*steps=*/16, "1e6"), "on_non_finite: ignore\n");
  diverging.insert(diverging.find("}}"), ", loss: mean_squared_error");
  const v1::Job job = cluster.Get(cluster.Run(diverging));
  EXPECT_EQ(job.state(), v1::SUCCEEDED);
  EXPECT_EQ(job.reason(), "NONFINITE_LOSS");
}

TEST_F(OnnxTest, AFileThatCannotBeImportedIsAFaultOfTheJob) {
  TrainingCluster cluster({.ps = 1, .workers = 1, .ps_threads = 1});
  std::ofstream(model_) << "no model";
  const absl::Status error = cluster.SubmitError(Job(1, "0.1"));
  EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(error.message()), testing::HasSubstr("model.onnx"));
  EXPECT_THAT(std::string(error.message()), testing::HasSubstr("is no ONNX file"));
}

// Returns the logits of `parameters` for the inputs sin(0), sin(1), ...
std::vector<float> Logits(const v1::Graph& forward,
                          const std::map<std::string, std::vector<float>>& parameters) {
  const v1::Graph graph = InferenceGraph(forward, {}).value();
  const auto device = CreateDevice("cpu", 1).value();
  std::vector<Device::Memory> memory;
  std::vector<float*> pointers;
  for (const v1::Parameter& parameter : graph.parameters()) {
    const std::vector<float>& values = parameters.at(parameter.name());
    memory.push_back(device->Allocate(values.size() * sizeof(float), parameter.name()).value());
    pointers.push_back(reinterpret_cast<float*>(memory.back().get()));
    std::memcpy(pointers.back(), values.data(), values.size() * sizeof(float));
  }
  const auto executor =
      CreateExecutor(graph, {.batch = kSamples, .device = device.get(), .parameters = pointers})
          .value();
  const absl::Span<std::byte> input = executor->input("input");
  auto* floats = reinterpret_cast<float*>(input.data());
  for (size_t i = 0; i < input.size() / sizeof(float); ++i) {
    floats[i] = static_cast<float>(std::sin(static_cast<double>(i)));
  }
  EXPECT_TRUE(executor->Run({}, nullptr).ok());
  const absl::Span<const float> logits = executor->output(graph.logits()).value();
  return {logits.begin(), logits.end()};
}

// Checks that the file has these numbers up to rounding.
void ExpectFloats(const std::string& path, const std::vector<float>& own) {
  std::vector<float> theirs(own.size());
  std::ifstream stream(path, std::ios::binary);
  stream.read(reinterpret_cast<char*>(theirs.data()), theirs.size() * sizeof(float));
  ASSERT_EQ(stream.gcount(), static_cast<std::streamsize>(theirs.size() * sizeof(float)));
  for (size_t i = 0; i < own.size(); ++i) EXPECT_NEAR(own[i], theirs[i], 1e-5) << i;
}

TEST_F(OnnxTest, OnnxruntimeGivesTheTrainedModelsLogits) {
  if (system("python3 -c 'import onnxruntime, numpy' 2>/dev/null") != 0) {
    GTEST_SKIP() << "python3 with the packages onnxruntime and numpy is not here";
  }
  TrainingCluster cluster({.ps = 2, .workers = 2, .ps_threads = 1});
  const std::string job = cluster.Run(Job(/*steps=*/20, "0.05"));
  const std::string trained = model_ + ".trained";
  const std::string output = model_ + ".logits";
  ASSERT_EQ(system(absl::StrCat("cli/muster --server ", cluster.members().address(),
                                " checkpoint export ", job, " --onnx ", trained)
                       .c_str()),
            0);
  const std::string script = absl::StrCat(
      "import numpy, onnxruntime; s = onnxruntime.InferenceSession('", trained,
      "', providers=['CPUExecutionProvider']); n = ", kSamples,
      "; x = numpy.sin(numpy.arange(n * 3 * 12 * 12, dtype='float64')).astype('float32'); "
      "s.run(None, {'input': x.reshape(n, 3, 12, 12)})[0].astype('float32').tofile('",
      output, "')");
  ASSERT_EQ(system(absl::StrCat("python3 -c \"", script, "\"").c_str()), 0);

  const std::vector<float> own = Logits(Import().graph, cluster.Parameters(job, 20));
  ExpectFloats(output, own);
}

TEST_F(OnnxTest, InitWritesAJobFileThatTrainsAsItIs) {
  TrainingCluster cluster({.ps = 1, .workers = 2, .ps_threads = 1});
  const std::string job = absl::StrCat(testing::TempDir(), "/init.", getpid(), ".yaml");
  const std::string muster = absl::StrCat("cli/muster --server ", cluster.members().address(), " ");
  ASSERT_EQ(system(absl::StrCat(muster, "init ", job, " --onnx ", model_).c_str()), 0);
  EXPECT_EQ(system(absl::StrCat(muster, "validate ", job).c_str()), 0);
  EXPECT_EQ(system(absl::StrCat(muster, "submit --wait ", job, " --set training.steps=60").c_str()),
            0);
}

// The lines of docs/onnx.md that load trained weights.
std::string LinesForPyTorch() {
  std::ifstream page("docs/onnx.md");
  std::string lines;
  bool is_there = false;
  for (std::string line; std::getline(page, line);) {
    is_there = is_there || absl::StrContains(line, "from load_back import");
    if (is_there && line.empty()) break;
    if (is_there) absl::StrAppend(&lines, line.substr(4), "\n");
  }
  return lines;
}

// Runs `script` with python3 in the folder.
int Python(const std::string& folder, const std::string& script) {
  std::ofstream(folder + "/script.py") << script;
  return system(absl::StrCat("cd ", folder, " && python3 script.py").c_str());
}

constexpr char kModule[] = R"(
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(4)
        self.register_buffer("scale", torch.tensor([1.5]))
        self.head = torch.nn.Linear(4 * 12 * 12, 5)
    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x)) * self.scale).flatten(1))

torch.manual_seed(1)
model = Net()
)";

TEST_F(OnnxTest, PyTorchLoadsTheTrainedWeightsStrictlyAndGivesTheSameLogits) {
  if (system("python3 -c 'import torch, safetensors.torch, numpy, onnxscript' 2>/dev/null") != 0) {
    GTEST_SKIP() << "python3 with torch, safetensors, numpy and onnxscript is not here";
  }
  const std::string folder = absl::StrCat(testing::TempDir(), "/pytorch.", getpid());
  fs::create_directory(folder);
  fs::copy_file("examples/onnx_cnn/load_back.py", folder + "/load_back.py");
  fs::remove(model_);
  ASSERT_EQ(Python(folder, absl::StrCat(kModule,
                                        "torch.onnx.export(model.train(), (torch.randn(2, "
                                        "3, 12, 12),), '",
                                        model_,
                                        "', dynamo=True, optimize=False, "
                                        "dynamic_shapes=({0: 'batch'},), input_names=['input'])")),
            0);
  TrainingCluster cluster({.ps = 2, .workers = 2, .ps_threads = 1});
  const std::string job = cluster.Run(Job(/*steps=*/20, "0.05"));
  ASSERT_EQ(system(absl::StrCat("cli/muster --server ", cluster.members().address(),
                                " checkpoint get ", job, " ", folder, "/trained")
                       .c_str()),
            0);
  const std::string output = folder + "/logits";
  ASSERT_EQ(Python(folder,
                   absl::StrCat(kModule, LinesForPyTorch(), "x = torch.sin(torch.arange(", kSamples,
                                " * 3 * 12 * 12, dtype=torch.float64)).float()\n"
                                "logits = model.eval()(x.reshape(-1, 3, 12, 12))\n"
                                "logits.detach().numpy().tofile('",
                                output, "')")),
            0);

  v1::OnnxModel source;
  source.set_path(model_);
  const std::vector<float> own =
      Logits(ImportOnnx(source).value().graph, cluster.Parameters(job, 20));
  ExpectFloats(output, own);
}

}  // namespace
}  // namespace muster::onnx_test
