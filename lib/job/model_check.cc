#include "lib/job/model_check.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/repeated_field.h"
#include "lib/limits/limits.h"

namespace muster {
namespace {

constexpr char kOnnxLosses[] =
    "softmax_cross_entropy, sigmoid_cross_entropy, mean_squared_error or output";

class ModelCheck {
 public:
  ModelCheck(const v1::JobSpec& spec, FieldChecks& faults) : spec_(spec), faults_(faults) {}

  void Run() {
    switch (spec_.model().source_case()) {
      case v1::ModelSpec::kZoo:
        if (spec_.model().zoo().name().empty()) {
          faults_.Add("model.zoo.name", "required: a model's name, for example gpt2 or resnet50");
        }
        return;
      case v1::ModelSpec::kOnnx:
        return Onnx(spec_.model().onnx());
      case v1::ModelSpec::kExternal:
        faults_.Path("model.external.path", spec_.model().external().path(), "a safetensors file");
        return;
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
