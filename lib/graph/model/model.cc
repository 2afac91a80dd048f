#include "lib/graph/model/model.h"

#include <utility>

#include "lib/graph/model/external_model.h"
#include "lib/graph/zoo/zoo.h"
#include "lib/status/status.h"

namespace muster {

absl::StatusOr<Model> LoadModel(const v1::ModelSpec& spec,
                                std::function<absl::Status(const std::string& path)> may_read) {
  Model model;
  if (spec.has_onnx()) {
    ASSIGN_OR_RETURN(ImportedModel imported, ImportOnnx(spec.onnx(), std::move(may_read)));
    model.graph = std::move(imported.graph);
    model.initial_values = std::move(imported.initial_values);
    model.initializers = std::move(imported.initializers);
    model.outputs = std::move(imported.outputs);
    model.notes = std::move(imported.notes);
    model.warnings = std::move(imported.warnings);
  } else if (spec.has_external()) {
    ASSIGN_OR_RETURN(ExternalParameters parameters, ReadExternalModel(spec.external()));
    model.graph = std::move(parameters.graph);
    model.initial_values = std::move(parameters.initial_values);
  } else {
    ASSIGN_OR_RETURN(model.graph, BuildModel(spec));
  }
  return model;
}

}  // namespace muster
