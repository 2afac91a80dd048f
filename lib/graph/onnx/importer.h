// The state of an import: the properties of each ONNX value, and the graph so far. Private to
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

  // Imports inputs, initialisers and nodes. Call it once.
  absl::Status Run();
  // Call these after Run().
  OnnxSignature Signature() const;
  absl::Status AddLoss(const v1::OnnxModel& model);
  absl::StatusOr<ImportedModel> Finish() &&;

  // ---- For the converters of operators. `node` is the one being converted.

  // Returns null if the input is not constant, or omitted.
  const FoldedValue* Folded(const onnx::NodeProto& node, int i) const;
  // Returns the only number of a constant input; `otherwise` if the input is omitted.
  absl::StatusOr<double> Number(const onnx::NodeProto& node, int i, double otherwise) const;
  // Returns the plain integers of input i if there is one, otherwise attribute `name` of older
  // opsets.
  absl::StatusOr<absl::optional<std::vector<int64_t>>> IntegersOf(const onnx::NodeProto& node,
                                                                  int i,
                                                                  absl::string_view name) const;
  // Returns the sizes in constant input i.
  absl::StatusOr<std::vector<Extent>> ExtentsOf(const onnx::NodeProto& node, int i) const;

  // Returns the graph's tensor for input i. A constant becomes a Constant node.
  absl::StatusOr<std::string> Tensor(const onnx::NodeProto& node, int i);
  // Like Tensor(), for operators that broadcast: a constant may have 1 in place of a batch that
  // another input has.
  absl::StatusOr<std::string> Operand(const onnx::NodeProto& node, int i);
  // Returns the tensor of a constant that is not an input.
  absl::StatusOr<std::string> TensorFor(const onnx::NodeProto& node, const FoldedValue& value,
                                        bool broadcasts = false);
  // Returns the tensors of all inputs. Requires: none is omitted.
  absl::StatusOr<std::vector<std::string>> Tensors(const onnx::NodeProto& node);
  // Returns the parameter that is input i, or -1 if it is not one.
  int ParameterOf(const onnx::NodeProto& node, int i) const;
  // Makes the parameter that is input i a statistic.
  absl::Status MakeStatistic(const onnx::NodeProto& node, int i, double momentum);

  // Returns the tensor's shape; extents that depend on the batch are marked.
  absl::StatusOr<std::vector<Extent>> ShapeOf(const std::string& tensor) const;
  // Returns the shape of the graph's tensor for input i.
  absl::StatusOr<std::vector<Extent>> InputShape(const onnx::NodeProto& node, int i);
  absl::StatusOr<int64_t> Rank(const onnx::NodeProto& node, int i);
  v1::DType TypeOf(const std::string& tensor) const { return types_[0].at(tensor).dtype; }

  // Appends a node and infers its outputs. Its name is the ONNX node's, made unique.
  absl::Status Add(const onnx::NodeProto& from, absl::string_view op,
                   std::vector<std::string> inputs, std::vector<std::string> outputs,
                   const Attributes& attributes = {});
  // Like Add(), with one intermediate tensor as output. Returns its name.
  absl::StatusOr<std::string> Make(const onnx::NodeProto& from, absl::string_view op,
                                   std::vector<std::string> inputs,
                                   const Attributes& attributes = {});
  // Returns a name for an intermediate tensor of the node.
  std::string Intermediate(const onnx::NodeProto& node, absl::string_view what);
  // Make a constant of one number, and of an array.
  absl::StatusOr<std::string> Scalar(const onnx::NodeProto& node, double value, bool floating);
  absl::StatusOr<std::string> Constant(const onnx::NodeProto& node, bool floating,
                                       const NumberArray& array);
  // Returns x in another shape with the same elements. At most one size may depend on the batch.
  absl::StatusOr<std::string> Reshaped(const onnx::NodeProto& node, const std::string& x,
                                       const std::vector<Extent>& shape);
  absl::StatusOr<std::string> Transposed(const onnx::NodeProto& node, const std::string& x,
                                         const std::vector<int64_t>& permutation);
  // Returns x repeated to a shape that it broadcasts to, including the batch.
  absl::StatusOr<std::string> Expanded(const onnx::NodeProto& node, const std::string& x,
                                       const std::vector<Extent>& shape);

  // Record that output i of the ONNX node is this constant, or this tensor of the graph.
  void SetFolded(const onnx::NodeProto& node, int i, FoldedValue value) {
    if (HasOutput(node, i)) folded_.insert_or_assign(node.output(i), std::move(value));
  }
  void Alias(const onnx::NodeProto& node, int i, const std::string& tensor);
  // Returns the name of output i of the node. An omitted output gets an unused name.
  std::string Output(const onnx::NodeProto& node, int i);

  // Records that output 0 of the ONNX node is a sequence of these tensors. It exists during the
  // import only: nodes that index it by a constant become aliases.
  void SetSequence(const onnx::NodeProto& node, std::vector<std::string> tensors) {
    sequences_.insert_or_assign(node.output(0), std::move(tensors));
  }
  // Returns the tensors of the sequence that is input 0, or null if it is no known sequence.
  const std::vector<std::string>* Sequence(const onnx::NodeProto& node) const {
    const auto found = sequences_.find(node.input(0));
    return found == sequences_.end() ? nullptr : &found->second;
  }

  const OnnxFile& file() const { return file_; }
  // Returns the size that the file gives to the batch; 0 if the file leaves it open.
  int64_t traced_batch() const { return traced_batch_; }

 private:
  // The nodes that fail for one cause: their number, and the name of the first one.
  struct Fault {
    int64_t count = 0;
    std::string first;
  };

  absl::Status AddInputs();
  absl::Status AddInput(const onnx::ValueInfoProto& value);
  absl::Status AddInitializers(const onnx::GraphProto& graph);
  absl::Status AddParameter(const onnx::TensorProto& tensor);
  void Convert(const onnx::GraphProto& graph);
  absl::Status ConvertNode(const onnx::NodeProto& node);
  absl::StatusOr<bool> Fold(const onnx::NodeProto& node);
  // Returns whether the node's outputs are known to be truth values.
  bool IsOfTruth(const onnx::NodeProto& node) const;
  absl::Status ConvertShape(const onnx::NodeProto& node);
  absl::Status ConvertIf(const onnx::NodeProto& node);
  void Refuse(const onnx::NodeProto& node, absl::string_view what);
  absl::Status Faults() const;

  // Returns whether another input has the batch in every dimension in which constant input i has
  // it.
  bool GivesBatch(const onnx::NodeProto& node, int i) const;
  absl::StatusOr<std::string> TensorOf(const onnx::NodeProto& node, const std::string& value,
                                       bool broadcasts);
  absl::StatusOr<std::string> MaterializeNumber(const onnx::NodeProto& node,
                                                const FoldedValue& value);
  absl::StatusOr<std::string> MaterializeRows(const onnx::NodeProto& node, const FoldedValue& value,
                                              int64_t axis, int64_t each, bool broadcasts);
  // Returns a tensor with the batch as its first dimension.
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
  absl::flat_hash_map<std::string, int> parameters_;      // key: name
  absl::flat_hash_map<std::string, FoldedValue> folded_;  // key: ONNX value
  FoldBudget budget_;                                    // for these, and for the graph's constants
  absl::flat_hash_set<std::string> truths_;              // ONNX values of type bool
  absl::flat_hash_map<std::string, std::string> alias_;  // ONNX value -> tensor of the graph
  absl::flat_hash_map<std::string, std::vector<std::string>> sequences_;  // ONNX value -> tensors
  // ONNX value -> its Constant: with the batch's size, or with 1 in place of it.
  absl::flat_hash_map<std::pair<std::string, bool>, std::string> materialized_;
  absl::flat_hash_set<std::string> names_;       // names of tensors
  absl::flat_hash_set<std::string> own_names_;   // names that the importer chose
  absl::flat_hash_set<std::string> node_names_;  // names of nodes
  std::array<TensorTypes, kProbes> types_;
  int64_t traced_batch_ = 0;
  absl::flat_hash_set<std::string> failed_;  // values that could not be made because of a fault
  int64_t skipped_ = 0;                      // nodes that read one of them
  std::map<std::pair<std::string, std::string>, Fault> faults_;  // key: operator and cause
};

v1::Attribute IntegerValue(int64_t value);
v1::Attribute NumberValue(double value);
v1::Attribute WordValue(absl::string_view value);
v1::Attribute IntegersValue(absl::Span<const int64_t> values);

}  // namespace muster
