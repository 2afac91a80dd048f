// The state of an import: what is known of each ONNX value, and the graph so far. Private to
// lib/graph/onnx.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "lib/graph/onnx/folded_value.h"
#include "lib/graph/onnx/onnx_file.h"
#include "lib/graph/onnx/onnx_import.h"
#include "lib/graph/shape_inference.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

class OnnxImporter {
 public:
  explicit OnnxImporter(const OnnxFile& file) : file_(file) {}

  // Inputs, initialisers and nodes. Once.
  absl::Status Run();
  absl::Status AddLoss(const v1::OnnxModel& model);
  absl::StatusOr<ImportedModel> Finish() &&;

  // ---- for the converters of operators: `node` is the one being converted

  static absl::Status Fault(const onnx::NodeProto& node, absl::string_view what);

  // Attributes with ONNX's defaults given by the caller.
  int64_t Integer(const onnx::NodeProto& node, absl::string_view name, int64_t otherwise) const;
  double Number(const onnx::NodeProto& node, absl::string_view name, double otherwise) const;
  std::string Word(const onnx::NodeProto& node, absl::string_view name,
                   absl::string_view otherwise) const;
  absl::optional<std::vector<int64_t>> Integers(const onnx::NodeProto& node,
                                                absl::string_view name) const;

  static bool HasInput(const onnx::NodeProto& node, int i) {
    return i < node.input_size() && !node.input(i).empty();
  }
  // Null where the input is no constant.
  const FoldedValue* Folded(const onnx::NodeProto& node, int i) const;
  // Plain integers of input i where it is there; attribute `name` of older opsets otherwise.
  absl::StatusOr<absl::optional<std::vector<int64_t>>> IntegersOf(const onnx::NodeProto& node,
                                                                  int i,
                                                                  absl::string_view name) const;

  // The graph's tensor for input i; a constant becomes a Constant node.
  absl::StatusOr<std::string> Tensor(const onnx::NodeProto& node, int i);
  absl::StatusOr<std::vector<std::string>> Tensors(const onnx::NodeProto& node);
  // Whether input i is a parameter, and makes it a statistic.
  absl::Status MakeStatistic(const onnx::NodeProto& node, int i, double momentum);

  // Its shape, with what depends on the batch marked.
  absl::StatusOr<std::vector<Extent>> ShapeOf(const std::string& tensor) const;
  v1::DType TypeOf(const std::string& tensor) const { return types2_.at(tensor).dtype; }

  // Appends a node and infers its outputs. Its name is made unique from the ONNX node's.
  absl::StatusOr<v1::Node*> Add(
      const onnx::NodeProto& from, absl::string_view op, std::vector<std::string> inputs,
      std::vector<std::string> outputs,
      const std::vector<std::pair<std::string, v1::Attribute>>& with = {});
  // A name for an intermediate tensor of the node.
  std::string Intermediate(const onnx::NodeProto& node, absl::string_view what);
  // A Constant node of one number.
  absl::StatusOr<std::string> Scalar(const onnx::NodeProto& node, double value);

  // Output i of the ONNX node is this constant / is this tensor of the graph.
  void SetFolded(const onnx::NodeProto& node, int i, FoldedValue value) {
    folded_[node.output(i)] = std::move(value);
  }
  void Alias(const onnx::NodeProto& node, int i, const std::string& tensor) {
    alias_[node.output(i)] = tensor;
  }
  // Output i of the node under its own name; "" stands for one that nobody wants.
  std::string Output(const onnx::NodeProto& node, int i);

  const OnnxFile& file() const { return file_; }
  // The size that the file gives to the batch; 0 where it leaves it open.
  int64_t traced_batch() const { return traced_batch_; }

 private:
  absl::Status AddInputs();
  absl::Status AddInitializers();
  absl::Status ListUnsupported() const;
  absl::StatusOr<std::string> Materialize(const std::string& value, const onnx::NodeProto& node);
  absl::Status Infer(const v1::Node& node);

  const OnnxFile& file_;
  v1::Graph graph_;
  std::vector<std::vector<float>> values_;
  absl::flat_hash_map<std::string, int> parameters_;      // by name
  absl::flat_hash_map<std::string, FoldedValue> folded_;  // by ONNX value
  absl::flat_hash_map<std::string, std::string> alias_;   // ONNX value -> tensor of the graph
  absl::flat_hash_map<std::string, std::string> materialized_;
  absl::flat_hash_set<std::string> names_;       // of tensors
  absl::flat_hash_set<std::string> node_names_;  // of nodes
  TensorTypes types2_, types3_;                  // for batches of 2 and 3
  int64_t traced_batch_ = 0;
};

v1::Attribute IntegerValue(int64_t value);
v1::Attribute NumberValue(double value);
v1::Attribute WordValue(absl::string_view value);
v1::Attribute IntegersValue(absl::Span<const int64_t> values);

using OnnxConverter = absl::Status (*)(OnnxImporter& importer, const onnx::NodeProto& node);

// Null for an operator that is not supported.
OnnxConverter FindOnnxConverter(absl::string_view op_type);

}  // namespace muster
