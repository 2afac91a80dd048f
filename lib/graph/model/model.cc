#include "lib/graph/model/model.h"

#include <utility>

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
  } else {
    ASSIGN_OR_RETURN(model.graph, BuildModel(spec));
  }
  return model;
}

}  // namespace muster
