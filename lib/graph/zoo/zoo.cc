#include "lib/graph/zoo/zoo.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "lib/graph/shape_inference.h"
#include "lib/graph/zoo/models.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"

namespace muster {
namespace {

struct ModelEntry {
  absl::string_view name;
  absl::StatusOr<v1::Graph> (*build)(const v1::ZooModel& model);
};

constexpr ModelEntry kModels[] = {
    {"linear", zoo::BuildLinear},
    {"mlp", zoo::BuildMlp},
    {"lenet", zoo::BuildLenet},
    {"vgg16", zoo::BuildVgg16},
    {"resnet50", zoo::BuildResnet50},
    {"resnet101", zoo::BuildResnet101},
    {"inception_v3", zoo::BuildInceptionV3},
    {"lstm_lm", zoo::BuildLstmLm},
    {"gnmt", zoo::BuildGnmt},
    {"transformer", zoo::BuildTransformer},
    {"bert", zoo::BuildBert},
    {"gpt", zoo::BuildGpt},
    {"gpt2", zoo::BuildGpt2},
    {"ncf", zoo::BuildNcf},
};

absl::StatusOr<v1::Graph> Build(const v1::ModelSpec& spec) {
  if (!spec.has_zoo()) return absl::InvalidArgumentError("no model is given");
  const v1::ZooModel& model = spec.zoo();
  const auto entry = std::ranges::find(kModels, model.name(), &ModelEntry::name);
  if (entry != std::end(kModels)) return entry->build(model);
  const auto append_name = [](std::string* out, const ModelEntry& known) {
    absl::StrAppend(out, known.name);
  };
  return absl::InvalidArgumentError(absl::StrCat("unknown model '", model.name(), "'; there are ",
                                                 absl::StrJoin(kModels, ", ", append_name)));
}

absl::Status CheckSize(const v1::Graph& graph) {
  // InferTypes limits the size of each parameter, and the number of parameters is bounded, so the
  // sum cannot overflow.
  ASSIGN_OR_RETURN(const TensorTypes types, InferTypes(graph, /*batch=*/1));
  int64_t elements = 0;
  for (const v1::Parameter& parameter : graph.parameters())
    elements += types.at(parameter.name()).elements();
  if (elements > limits::kParameterElementsMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the model has ", elements, " parameters, more than ", limits::kParameterElementsMax));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::Graph> BuildModel(const v1::ModelSpec& spec) {
  absl::StatusOr<v1::Graph> graph = Build(spec);
  if (!graph.ok()) return WithReason(graph.status(), "MODEL_INVALID");
  if (absl::Status size = CheckSize(*graph); !size.ok()) {
    return WithReason(Annotate(size, absl::StrCat("model '", spec.zoo().name(), "'")),
                      "MODEL_INVALID");
  }
  return graph;
}

}  // namespace muster
