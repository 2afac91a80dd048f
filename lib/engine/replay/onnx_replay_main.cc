// Replays a recording of a model of an ONNX file (onnx_replay.h) and prints one line of JSON.
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "glog/logging.h"
#include "lib/engine/replay/onnx_replay.h"
#include "lib/graph/onnx/onnx_import.h"
#include "proto/muster/v1/job.pb.h"

ABSL_FLAG(std::string, onnx, "", "the model");
ABSL_FLAG(std::string, recording, "", "its samples and losses: a safetensors file");
ABSL_FLAG(std::string, loss, "", "as onnx.loss of a job file");
ABSL_FLAG(std::string, logits, "", "as onnx.logits");
ABSL_FLAG(std::string, labels, "", "as onnx.labels");
ABSL_FLAG(std::vector<std::string>, train, {}, "as onnx.train, commas between patterns");
ABSL_FLAG(std::vector<std::string>, freeze, {}, "as onnx.freeze");
ABSL_FLAG(std::string, save, "", "write the model with its trained values to this ONNX file");
ABSL_FLAG(std::string, inference, "", "write the trained model's logits (or loss) here, as f32");

namespace muster {
namespace {

v1::OnnxModel Source() {
  v1::OnnxModel model;
  model.set_path(absl::GetFlag(FLAGS_onnx));
  model.set_loss(absl::GetFlag(FLAGS_loss));
  model.set_logits(absl::GetFlag(FLAGS_logits));
  model.set_labels(absl::GetFlag(FLAGS_labels));
  for (const std::string& name : absl::GetFlag(FLAGS_train)) model.add_train(name);
  for (const std::string& name : absl::GetFlag(FLAGS_freeze)) model.add_freeze(name);
  return model;
}

absl::Status Write(const OnnxReplay& replay) {
  if (const std::string path = absl::GetFlag(FLAGS_inference); !path.empty()) {
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(replay.inference.data()),
               static_cast<std::streamsize>(replay.inference.size() * sizeof(float)));
    if (!file.flush()) return absl::UnavailableError(path + ": cannot be written");
  }
  if (absl::GetFlag(FLAGS_save).empty()) return absl::OkStatus();
  return ExportOnnx(Source(), absl::GetFlag(FLAGS_save), replay.parameters);
}

int Main() {
  const auto replay = ReplayOnnx(Source(), absl::GetFlag(FLAGS_recording));
  const absl::Status written = replay.ok() ? Write(*replay) : absl::OkStatus();
  std::printf("%s\n", JudgementLine(replay).c_str());
  if (!written.ok()) std::fprintf(stderr, "onnx_replay: %s\n", written.ToString().c_str());
  return written.ok() ? 0 : 1;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  google::InitGoogleLogging(argv[0]);
  FLAGS_logtostderr = true;
  absl::SetProgramUsageMessage("repeats a recorded training of an ONNX model");
  absl::ParseCommandLine(argc, argv);
  return muster::Main();
}
