#include "lib/job/model_check.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/repeated_field.h"
#include "lib/limits/limits.h"

namespace muster {
namespace {

constexpr char kOnnxLosses[] =
    "softmax_cross_entropy, sigmoid_cross_entropy, mean_squared_error or output";

constexpr int kProgramArgumentsMax = 256;
constexpr int kProgramProcessesMax = 64;

// Whether every shell can set such an environment variable.
bool IsVariableName(absl::string_view name) {
  return !name.empty() && !absl::ascii_isdigit(name[0]) &&
         std::ranges::all_of(name, [](char c) { return absl::ascii_isalnum(c) || c == '_'; });
}

class ModelCheck {
 public:
  ModelCheck(const v1::JobSpec& spec, FieldChecks& faults) : spec_(spec), faults_(faults) {}

  void Run() {
    if (spec_.has_program()) Program(spec_.program());
    switch (spec_.model().source_case()) {
      case v1::ModelSpec::kZoo:
        if (spec_.model().zoo().name().empty()) {
          faults_.Add("model.zoo.name", "required: a model's name, for example gpt2 or resnet50");
        }
        return;
      case v1::ModelSpec::kOnnx:
        return Onnx(spec_.model().onnx());
      case v1::ModelSpec::kExternal:
        return External();
      case v1::ModelSpec::SOURCE_NOT_SET:
        faults_.Add("model",
                    "required: zoo: {name: gpt2}, onnx: {path: model.onnx} or external: {path: "
                    "model.safetensors}");
        return;
    }
  }

 private:
  void Onnx(const v1::OnnxModel& onnx) {
    faults_.Path("model.onnx.path", onnx.path(), "an ONNX file");
    faults_.TensorName("model.onnx.logits", onnx.logits());
    faults_.TensorName("model.onnx.labels", onnx.labels());
    const std::string& loss = onnx.loss();
    if (!loss.empty() && loss != "softmax_cross_entropy" && loss != "sigmoid_cross_entropy" &&
        loss != "mean_squared_error" && loss != "output") {
      faults_.Add("model.onnx.loss",
                  absl::StrCat("must be ", kOnnxLosses, " (is \"",
                               loss.substr(0, 2 * limits::kNameBytesMax), "\")"));
    }
    OnnxPatterns("model.onnx.train", onnx.train());
    OnnxPatterns("model.onnx.freeze", onnx.freeze());
    OnnxPatterns("model.onnx.tie", onnx.tie());
    OnnxPatterns("model.onnx.untie", onnx.untie());
  }

  void External() {
    faults_.Path("model.external.path", spec_.model().external().path(), "a safetensors file");
    ExternalSync();
    ExternalTraining(spec_.training());
    if (spec_.on_non_finite() == v1::NON_FINITE_ROLLBACK) {
      faults_.Add("on_non_finite",
                  "rollback is not possible with model.external: it leaves a batch out, and the "
                  "program alone knows the batches; use fail or ignore");
    }
  }

  void ExternalSync() {
    const v1::SyncMode mode = spec_.sync().mode();
    if (mode == v1::LOCAL_SGD || mode == v1::ALLREDUCE) {
      faults_.Add("sync.mode",
                  absl::StrCat(mode == v1::ALLREDUCE ? "allreduce" : "local_sgd",
                               " is not possible with model.external: the program sends gradients "
                               "to ps; use bsp, ssp or asp"));
    }
    const v1::Optimizer& optimizer = spec_.training().optimizer();
    if ((optimizer.has_lamb() || optimizer.has_lars()) && spec_.resources().ps_replication() > 1) {
      faults_.Add("resources.ps_replication",
                  absl::StrCat("2 is not possible with model.external and ",
                               optimizer.has_lamb() ? "lamb" : "lars",
                               ": a replica does not know the learning rates that the program "
                               "names; use 1, or another optimizer"));
    }
  }

  void ExternalTraining(const v1::TrainingSpec& training) {
    if (training.precision() != v1::PRECISION_UNSPECIFIED && training.precision() != v1::FP32) {
      faults_.Add("training.precision",
                  "only fp32 with model.external: the program chooses the types in which it "
                  "computes (torch.autocast); remove it");
    }
    if (training.micro_batch_size() != 0) {
      faults_.Add("training.micro_batch_size",
                  "not with model.external: the program accumulates gradients itself; remove it");
    }
    if (training.recompute()) {
      faults_.Add("training.recompute",
                  "not with model.external: the program decides what it keeps "
                  "(torch.utils.checkpoint); remove it");
    }
    if (training.evaluate_every_steps() != 0) {
      faults_.Add("training.evaluate_every_steps",
                  "not with model.external: the program decides when it calls job.evaluate(); "
                  "remove it");
    }
  }

  void Program(const v1::ProgramSpec& program) {
    if (!spec_.model().has_external()) {
      faults_.Add("program", "only with model.external: Muster computes other models itself");
    }
    if (program.command().empty() || program.command(0).empty()) {
      faults_.Add("program.command",
                  "required: the program and its arguments, [\"python3\", \"train.py\"]");
    }
    if (program.command_size() > kProgramArgumentsMax) {
      faults_.Add("program.command", absl::StrCat("at most ", kProgramArgumentsMax, " (has ",
                                                  program.command_size(), ")"));
    }
    const std::map<std::string, std::string> environment(program.environment().begin(),
                                                         program.environment().end());
    for (const auto& [name, value] : environment) {
      if (IsVariableName(name)) continue;
      faults_.Add("program.environment",
                  absl::StrCat("a name must be letters, digits and '_', and not begin with a digit "
                               "(is \"",
                               name.substr(0, limits::kNameBytesMax), "\")"));
    }
    if (!program.directory().empty()) {
      faults_.Path("program.directory", program.directory(), "a folder of the workers");
    }
    faults_.InRange("program.processes", program.processes(), 0, kProgramProcessesMax,
                    "1 is the default; one per GPU is usual");
  }

  void OnnxPatterns(const std::string& path,
                    const google::protobuf::RepeatedPtrField<std::string>& patterns) {
    if (patterns.size() > limits::kOnnxPatternsMax) {
      faults_.Add(
          path, absl::StrCat("at most ", limits::kOnnxPatternsMax, " (has ", patterns.size(), ")"));
    }
    for (int i = 0; i < std::min(patterns.size(), limits::kOnnxPatternsMax); ++i) {
      const std::string field = absl::StrCat(path, "[", i, "]");
      if (patterns[i].empty()) {
        faults_.Add(field, "an empty pattern matches no name; \"*\" matches all");
      }
      faults_.TensorName(field, patterns[i]);
    }
  }

  const v1::JobSpec& spec_;
  FieldChecks& faults_;
};

}  // namespace

void CheckModel(const v1::JobSpec& spec, FieldChecks& faults) { ModelCheck(spec, faults).Run(); }

}  // namespace muster
