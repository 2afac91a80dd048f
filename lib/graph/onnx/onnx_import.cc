#include "lib/graph/onnx/onnx_import.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/graph/dtype.h"
#include "lib/graph/onnx/importer.h"
#include "lib/graph/onnx/initializer_sharing.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr size_t kNamesShown = 5;

// Returns whether convolutions of a file without batch norms have batch norms folded into them.
// PyTorch's older exporter numbers the weights and biases that it computed. The newer one keeps
// their names, and names the convolution's output as it would name the batch norm's.
bool HasFoldedBatchNorms(const onnx::GraphProto& graph) {
  const auto folded = [](const onnx::NodeProto& node) {
    if (node.op_type() != "Conv" || node.output_size() != 1) return false;
    const bool numbered = node.input_size() == 3 &&
                          absl::StartsWith(node.input(1), "onnx::Conv_") &&
                          absl::StartsWith(node.input(2), "onnx::Conv_");
    return numbered || absl::StartsWith(node.output(0), "getitem") ||
           absl::StartsWith(node.output(0), "batch_norm");
  };
  return std::ranges::none_of(
             graph.node(),
             [](const onnx::NodeProto& node) { return node.op_type() == "BatchNormalization"; }) &&
         std::ranges::any_of(graph.node(), folded);
}

// Returns some of the names, and the number of others.
std::string Shown(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kNamesShown);
  const size_t more = names.size() - shown;
  return absl::StrCat(absl::StrJoin(names.begin(), names.begin() + shown, ", "),
                      more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

// Returns the initialisers with this role, if the role was a guess.
std::string Guessed(const std::vector<InitializerDecision>& decisions, InitializerRole role) {
  std::vector<std::string> names;
  for (const InitializerDecision& decision : decisions) {
    if (!decision.doubtful || decision.role != role) continue;
    names.push_back(absl::StrCat("'", decision.name, "' (", decision.reason, ")"));
  }
  return Shown(names);
}

std::vector<std::string> WarningsOf(const std::vector<InitializerDecision>& decisions,
                                    const Sharing& sharing, const onnx::GraphProto& graph) {
  std::vector<std::string> warnings;
  if (const std::string trained = Guessed(decisions, InitializerRole::kTrained); !trained.empty()) {
    warnings.push_back(absl::StrCat(
        "trained by a guess: ", trained,
        "; list what is a constant under onnx.freeze, the rest under onnx.train (what an exporter "
        "computed of parameters trains as one of its own: optimize=False of torch.onnx.export "
        "keeps those)"));
  }
  if (const std::string constant = Guessed(decisions, InitializerRole::kConstant);
      !constant.empty()) {
    warnings.push_back(
        absl::StrCat("constant by a guess: ", constant,
                     "; list what is to be trained under onnx.train, the rest under onnx.freeze "
                     "(an exporter that folds constants makes such tensors of parameters: "
                     "optimize=False of torch.onnx.export keeps those)"));
  }
  if (!sharing.doubts.empty()) {
    warnings.push_back(absl::StrCat(
        "weights that look like one tensor: ", Shown(sharing.doubts),
        "; list under onnx.untie what the model has several of (layers copied from one another "
        "begin equal), under onnx.tie what it has once"));
  }
  if (HasFoldedBatchNorms(graph)) {
    warnings.push_back(
        "the file was exported with its batch norms folded into convolutions: the model trains "
        "without them; export it with them: torch.onnx.export(model.train(), ..., dynamo=True, "
        "optimize=False), or dynamo=False with training=TrainingMode.TRAINING and "
        "do_constant_folding=False");
  }
  return warnings;
}

// Removes the decisions on parameters and statistics that are not in the graph. Keeps those on
// constants.
void DropUnused(const v1::Graph& graph, std::vector<InitializerDecision>& decisions) {
  absl::flat_hash_set<std::string> parameters;
  for (const v1::Parameter& parameter : graph.parameters()) parameters.insert(parameter.name());
  std::erase_if(decisions, [&](const InitializerDecision& decision) {
    return decision.role != InitializerRole::kConstant && !parameters.contains(decision.name);
  });
}

}  // namespace

std::string OnnxOutput::ToString() const {
  std::vector<std::string> sizes;
  for (const int64_t size : shape) {
    sizes.push_back(size == -1 ? "B" : size < -1 ? absl::StrCat(-size, "B") : absl::StrCat(size));
  }
  return absl::StrCat(DTypeName(dtype), "[", absl::StrJoin(sizes, ", "), "]");
}

absl::StatusOr<OnnxSignature> ReadOnnxSignature(const std::string& path) {
  ASSIGN_OR_RETURN(OnnxFile file, OnnxFile::Open(path));
  const auto read = [&]() -> absl::StatusOr<OnnxSignature> {
    const v1::OnnxModel plain;
    RETURN_IF_ERROR(SeparateInitializers(plain, file).status());
    ASSIGN_OR_RETURN(const std::vector<InitializerDecision> decisions, DecideRoles(plain, file));
    OnnxImporter importer(file, decisions);
    RETURN_IF_ERROR(importer.Run());
    return importer.Signature();
  };
  absl::StatusOr<OnnxSignature> signature = read();
  if (!signature.ok()) return Annotate(signature.status(), path);
  return signature;
}

absl::StatusOr<ImportedModel> ImportOnnx(const v1::OnnxModel& model, OnnxFile::MayRead may_read) {
  ASSIGN_OR_RETURN(OnnxFile file, OnnxFile::Open(model.path(), std::move(may_read)));
  const auto import = [&]() -> absl::StatusOr<ImportedModel> {
    ASSIGN_OR_RETURN(Sharing sharing, SeparateInitializers(model, file));
    ASSIGN_OR_RETURN(std::vector<InitializerDecision> decisions, DecideRoles(model, file));
    OnnxImporter importer(file, decisions);
    RETURN_IF_ERROR(importer.Run());
    OnnxSignature signature = importer.Signature();
    RETURN_IF_ERROR(importer.AddLoss(model));
    ASSIGN_OR_RETURN(ImportedModel imported, std::move(importer).Finish());
    imported.outputs = std::move(signature.outputs);
    DropUnused(imported.graph, decisions);
    imported.warnings = WarningsOf(decisions, sharing, file.graph());
    imported.initializers = std::move(decisions);
    imported.notes = std::move(sharing.notes);
    return imported;
  };
  absl::StatusOr<ImportedModel> imported = import();
  if (!imported.ok()) return Annotate(imported.status(), model.path());
  return imported;
}

absl::Status ExportOnnx(const v1::OnnxModel& model, const std::string& path,
                        const absl::flat_hash_map<std::string, std::vector<float>>& values) {
  ASSIGN_OR_RETURN(OnnxFile file, OnnxFile::Open(model.path()));
  RETURN_IF_ERROR(SeparateInitializers(model, file).status());
  return file.Save(path, values);
}

}  // namespace muster
