// Fuzzes ONNX files: models from untrusted sources that the coordinator reads.
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "glog/logging.h"
#include "lib/graph/onnx/onnx_import.h"
#include "lib/graph/shape_inference.h"
#include "lib/plan/parameter_table.h"
#include "lib/status/status.h"
#include "tests/fuzz/fuzz_target.h"

namespace muster {
namespace {

// Returns a folder for this process only, because an ONNX file may name files next to it.
const std::string& Folder() {
  static const auto* const folder = [] {
    auto* path = new std::string(std::filesystem::temp_directory_path() / "onnx_fuzz-XXXXXX");
    CHECK(mkdtemp(path->data()) != nullptr) << *path;
    atexit([] { std::filesystem::remove_all(Folder()); });
    return path;
  }();
  return *folder;
}

}  // namespace

bool FuzzOne(absl::string_view bytes) {
  v1::OnnxModel spec;
  spec.set_path(Folder() + "/model.onnx");
  spec.set_loss("softmax_cross_entropy");
  std::ofstream(spec.path(), std::ios::binary | std::ios::trunc) << bytes;
  const auto model = ImportOnnx(spec);
  if (!model.ok()) {
    CHECK(absl::IsInvalidArgument(model.status())) << model.status();
    CHECK_EQ(ReasonOf(model.status()), "MODEL_INVALID") << model.status();
    CHECK(!model.status().message().empty());
    return false;
  }
  CHECK(v1::Graph().ParseFromString(model->graph.SerializeAsString())) << "as members get it";
  const auto types = InferTypes(model->graph, /*batch=*/2);
  CHECK(types.ok()) << types.status();
  CHECK_EQ(model->initial_values.size(), static_cast<size_t>(model->graph.parameters_size()));
  for (int i = 0; i < model->graph.parameters_size(); ++i) {
    CHECK_EQ(static_cast<int64_t>(model->initial_values[i].size()),
             ElementCount(model->graph.parameters(i)));
  }
  return true;
}

std::vector<std::string> FuzzSeeds() {
  std::vector<std::string> seeds;
  for (const char* name : {"mlp", "cnn", "recurrent", "transformer"}) {
    std::ifstream file("tests/goldens/onnx/" + std::string(name) + ".onnx", std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return seeds;
}

int FuzzTestInputs() { return 500; }

}  // namespace muster
