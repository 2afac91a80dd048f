// The state of an import: what is known of each ONNX value, and the graph so far. Private to
// lib/graph/onnx.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "lib/graph/onnx/folded_value.h"
#include "lib/graph/onnx/folding.h"
#include "lib/graph/onnx/initializer_roles.h"
#include "lib/graph/onnx/onnx_file.h"
#include "lib/graph/onnx/onnx_import.h"
#include "lib/graph/onnx/onnx_node.h"
#include "lib/graph/shape_inference.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

using Attributes = std::vector<std::pair<std::string, v1::Attribute>>;

class OnnxImporter {
 public:
  OnnxImporter(const OnnxFile& file, const std::vector<InitializerDecision>& roles)
      : file_(file), roles_(roles) {}

  // Inputs, initialisers and nodes. Once.
  absl::Status Run();
  absl::Status AddLoss(const v1::OnnxModel& model);
  absl::StatusOr<ImportedModel> Finish() &&;

  // ---- for the converters of operators: `node` is the one being converted, and at least one of
  // its inputs is no constant

  // Null where the input is no constant, or is left out.
  const FoldedValue* Folded(const onnx::NodeProto& node, int i) const;
  // The one number of a constant input; `otherwise` where it is left out.
  absl::StatusOr<double> Number(const onnx::NodeProto& node, int i, double otherwise) const;
  // Plain integers of input i where it is there; attribute `name` of older opsets otherwise.
  absl::StatusOr<absl::optional<std::vector<int64_t>>> IntegersOf(const onnx::NodeProto& node,
                                                                  int i,
                                                                  absl::string_view name) const;
  // Sizes given by constant input i.
  absl::StatusOr<std::vector<Extent>> ExtentsOf(const onnx::NodeProto& node, int i) const;

  // The graph's tensor for input i; a constant becomes a Constant node.
  absl::StatusOr<std::string> Tensor(const onnx::NodeProto& node, int i);
  // The same where the operator broadcasts: a constant may have 1 in place of a batch that another
  // input has.
  absl::StatusOr<std::string> Operand(const onnx::NodeProto& node, int i);
  // Of a constant that no input is.
  absl::StatusOr<std::string> TensorFor(const onnx::NodeProto& node, const FoldedValue& value,
                                        bool broadcasts = false);
  // Every input, none left out.
  absl::StatusOr<std::vector<std::string>> Tensors(const onnx::NodeProto& node);
  // The parameter that input i is; -1 where it is none.
  int ParameterOf(const onnx::NodeProto& node, int i) const;
  // Makes it a statistic.
  absl::Status MakeStatistic(const onnx::NodeProto& node, int i, double momentum);

  // Its shape, with what depends on the batch marked.
  absl::StatusOr<std::vector<Extent>> ShapeOf(const std::string& tensor) const;
  // Of the graph's tensor for input i.
  absl::StatusOr<std::vector<Extent>> InputShape(const onnx::NodeProto& node, int i);
  absl::StatusOr<int64_t> Rank(const onnx::NodeProto& node, int i);
  v1::DType TypeOf(const std::string& tensor) const { return types_[0].at(tensor).dtype; }

  // Appends a node and infers its outputs. Its name is made unique from the ONNX node's.
  absl::Status Add(const onnx::NodeProto& from, absl::string_view op,
                   std::vector<std::string> inputs, std::vector<std::string> outputs,
                   const Attributes& attributes = {});
  // The same with one output, an intermediate tensor, whose name is returned.
  absl::StatusOr<std::string> Make(const onnx::NodeProto& from, absl::string_view op,
                                   std::vector<std::string> inputs,
                                   const Attributes& attributes = {});
  // A name for an intermediate tensor of the node.
  std::string Intermediate(const onnx::NodeProto& node, absl::string_view what);
  // Constants of one number, and of the given ones.
  absl::StatusOr<std::string> Scalar(const onnx::NodeProto& node, double value, bool floating);
  absl::StatusOr<std::string> Constant(const onnx::NodeProto& node, bool floating,
                                       const NumberArray& array);
  // x in another shape of the same elements; at most one size may depend on the batch.
  absl::StatusOr<std::string> Reshaped(const onnx::NodeProto& node, const std::string& x,
                                       const std::vector<Extent>& shape);
  absl::StatusOr<std::string> Transposed(const onnx::NodeProto& node, const std::string& x,
                                         const std::vector<int64_t>& permutation);
  // x repeated to a shape that it broadcasts to, the batch's size included.
  absl::StatusOr<std::string> Expanded(const onnx::NodeProto& node, const std::string& x,
                                       const std::vector<Extent>& shape);

  // Output i of the ONNX node is this constant / is this tensor of the graph.
  void SetFolded(const onnx::NodeProto& node, int i, FoldedValue value) {
    if (HasOutput(node, i)) folded_.insert_or_assign(node.output(i), std::move(value));
  }
  void Alias(const onnx::NodeProto& node, int i, const std::string& tensor);
  // Output i of the node under its own name; "" stands for one that nobody wants.
  std::string Output(const onnx::NodeProto& node, int i);

  // Output 0 of the ONNX node is a sequence of these tensors. It exists during the import only:
  // nodes that index it by a constant become aliases.
  void SetSequence(const onnx::NodeProto& node, std::vector<std::string> tensors) {
    sequences_.insert_or_assign(node.output(0), std::move(tensors));
  }
  // The tensors of the sequence that input 0 is. Null: it is no sequence that the import knows.
  const std::vector<std::string>* Sequence(const onnx::NodeProto& node) const {
    const auto found = sequences_.find(node.input(0));
    return found == sequences_.end() ? nullptr : &found->second;
  }

  const OnnxFile& file() const { return file_; }
  // The size that the file gives to the batch; 0 where it leaves it open.
  int64_t traced_batch() const { return traced_batch_; }

 private:
  // One cause, and the nodes that have it.
  struct Fault {
    int64_t count = 0;
    std::string first;  // node
  };

  absl::Status AddInputs();
  absl::Status AddInput(const onnx::ValueInfoProto& value);
  absl::Status AddInitializers(const onnx::GraphProto& graph);
  absl::Status AddParameter(const onnx::TensorProto& tensor);
  void Convert(const onnx::GraphProto& graph);
  absl::Status ConvertNode(const onnx::NodeProto& node);
  absl::StatusOr<bool> Fold(const onnx::NodeProto& node);
  // Whether its outputs are truth values, as far as the file tells.
  bool IsOfTruth(const onnx::NodeProto& node) const;
  absl::Status ConvertShape(const onnx::NodeProto& node);
  absl::Status ConvertIf(const onnx::NodeProto& node);
  void Refuse(const onnx::NodeProto& node, absl::string_view what);
  absl::Status Faults() const;

  // Whether another input has the batch wherever constant input i has it.
  bool GivesBatch(const onnx::NodeProto& node, int i) const;
  absl::StatusOr<std::string> TensorOf(const onnx::NodeProto& node, const std::string& value,
                                       bool broadcasts);
  absl::StatusOr<std::string> MaterializeNumber(const onnx::NodeProto& node,
                                                const FoldedValue& value);
  absl::StatusOr<std::string> MaterializeRows(const onnx::NodeProto& node, const FoldedValue& value,
                                              int64_t axis, int64_t each, bool broadcasts);
  // A tensor whose first dimension is the batch.
  absl::StatusOr<std::string> Like(const onnx::NodeProto& node) const;
  std::string Unique(std::string name);

  absl::StatusOr<std::string> LossTensor(const v1::OnnxModel& model) const;
  absl::Status AddOwnLoss(const std::string& loss);
  absl::Status AddLabels(const std::string& labels, bool of_classes,
                         const std::vector<int64_t>& logits);

  const OnnxFile& file_;
  const std::vector<InitializerDecision>& roles_;
  v1::Graph graph_;
  std::vector<std::vector<float>> values_;
  absl::flat_hash_map<std::string, int> parameters_;      // by name
  absl::flat_hash_map<std::string, FoldedValue> folded_;  // by ONNX value
  FoldBudget budget_;                                     // of those, and of the graph's constants
  absl::flat_hash_set<std::string> truths_;               // ONNX values of type bool
  absl::flat_hash_map<std::string, std::string> alias_;   // ONNX value -> tensor of the graph
  absl::flat_hash_map<std::string, std::vector<std::string>> sequences_;  // ONNX value -> tensors
  // ONNX value -> its Constant, exact or with 1 for the batch.
  absl::flat_hash_map<std::pair<std::string, bool>, std::string> materialized_;
  absl::flat_hash_set<std::string> names_;       // of tensors
  absl::flat_hash_set<std::string> own_names_;   // of those that the importer named
  absl::flat_hash_set<std::string> node_names_;  // of nodes
  std::array<TensorTypes, kProbes> types_;
  int64_t traced_batch_ = 0;
  absl::flat_hash_set<std::string> failed_;  // values that a fault keeps from being made
  int64_t skipped_ = 0;                      // nodes that read one of them
  std::map<std::pair<std::string, std::string>, Fault> faults_;  // by operator and cause
};

v1::Attribute IntegerValue(int64_t value);
v1::Attribute NumberValue(double value);
v1::Attribute WordValue(absl::string_view value);
v1::Attribute IntegersValue(absl::Span<const int64_t> values);

}  // namespace muster
