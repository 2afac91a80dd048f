#include "lib/graph/onnx/importer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using onnx::NodeProto;
using onnx::TensorProto;

constexpr int kNodesListedMax = 50;
constexpr double kLargestFloat = std::numeric_limits<float>::max();

bool IsDefaultDomain(const NodeProto& node) {
  return node.domain().empty() || node.domain() == "ai.onnx";
}

std::string NameOf(const NodeProto& node) {
  if (!node.name().empty()) return node.name();
  return node.output_size() > 0 ? node.output(0) : node.op_type();
}

const onnx::AttributeProto* FindAttribute(const NodeProto& node, absl::string_view name) {
  const auto found = std::ranges::find_if(
      node.attribute(), [&](const onnx::AttributeProto& a) { return a.name() == name; });
  return found == node.attribute().end() ? nullptr : &*found;
}

}  // namespace

v1::Attribute IntegerValue(int64_t value) {
  v1::Attribute attribute;
  attribute.set_i(value);
  return attribute;
}

v1::Attribute NumberValue(double value) {
  v1::Attribute attribute;
  attribute.set_f(value);
  return attribute;
}

v1::Attribute WordValue(absl::string_view value) {
  v1::Attribute attribute;
  attribute.set_s(std::string(value));
  return attribute;
}

v1::Attribute IntegersValue(absl::Span<const int64_t> values) {
  v1::Attribute attribute;
  attribute.mutable_integers()->mutable_values()->Add(values.begin(), values.end());
  return attribute;
}

absl::Status OnnxImporter::Fault(const NodeProto& node, absl::string_view what) {
  return WithReason(absl::InvalidArgumentError(
                        absl::StrCat("node '", NameOf(node), "' (", node.op_type(), ") ", what)),
                    "MODEL_INVALID");
}

int64_t OnnxImporter::Integer(const NodeProto& node, absl::string_view name,
                              int64_t otherwise) const {
  const onnx::AttributeProto* attribute = FindAttribute(node, name);
  return attribute == nullptr ? otherwise : attribute->i();
}

double OnnxImporter::Number(const NodeProto& node, absl::string_view name, double otherwise) const {
  const onnx::AttributeProto* attribute = FindAttribute(node, name);
  return attribute == nullptr ? otherwise : attribute->f();
}

std::string OnnxImporter::Word(const NodeProto& node, absl::string_view name,
                               absl::string_view otherwise) const {
  const onnx::AttributeProto* attribute = FindAttribute(node, name);
  return attribute == nullptr ? std::string(otherwise) : attribute->s();
}

absl::optional<std::vector<int64_t>> OnnxImporter::Integers(const NodeProto& node,
                                                            absl::string_view name) const {
  const onnx::AttributeProto* attribute = FindAttribute(node, name);
  if (attribute == nullptr) return absl::nullopt;
  return std::vector<int64_t>(attribute->ints().begin(), attribute->ints().end());
}

const FoldedValue* OnnxImporter::Folded(const NodeProto& node, int i) const {
  if (!HasInput(node, i)) return nullptr;
  const auto found = folded_.find(node.input(i));
  return found == folded_.end() ? nullptr : &found->second;
}

absl::StatusOr<absl::optional<std::vector<int64_t>>> OnnxImporter::IntegersOf(
    const NodeProto& node, int i, absl::string_view name) const {
  using Result = absl::optional<std::vector<int64_t>>;
  if (!HasInput(node, i)) return Integers(node, name);
  const FoldedValue* folded = Folded(node, i);
  if (folded == nullptr) return Fault(node, absl::StrCat("computes its ", name, " while it runs"));
  absl::StatusOr<std::vector<int64_t>> integers = PlainIntegers(*folded);
  if (!integers.ok()) return Fault(node, integers.status().message());
  return Result(*std::move(integers));
}

absl::StatusOr<std::string> OnnxImporter::Tensor(const NodeProto& node, int i) {
  if (!HasInput(node, i)) return Fault(node, absl::StrCat("lacks input ", i));
  const std::string& value = node.input(i);
  if (folded_.contains(value)) return Materialize(value, node);
  if (const auto alias = alias_.find(value); alias != alias_.end()) return alias->second;
  if (types2_.contains(value)) return value;
  return Fault(node, absl::StrCat("reads '", value, "', which nothing makes"));
}

absl::StatusOr<std::vector<std::string>> OnnxImporter::Tensors(const NodeProto& node) {
  std::vector<std::string> tensors;
  for (int i = 0; i < node.input_size(); ++i) {
    ASSIGN_OR_RETURN(tensors.emplace_back(), Tensor(node, i));
  }
  return tensors;
}

// Where a constant has the batch's size it is a filling, which broadcasts.
absl::StatusOr<std::string> OnnxImporter::Materialize(const std::string& value,
                                                      const NodeProto& node) {
  if (const auto known = materialized_.find(value); known != materialized_.end()) {
    return known->second;
  }
  const FoldedValue& folded = folded_.at(value);
  std::vector<int64_t> shape;
  for (const Extent& extent : folded.shape) shape.push_back(extent.of_batch ? 1 : extent.value);
  std::vector<std::pair<std::string, v1::Attribute>> attributes = {
      {"shape", IntegersValue(shape)}, {"dtype", WordValue(folded.floating ? "f32" : "i32")}};
  if (folded.fill) {
    attributes.emplace_back("value",
                            NumberValue(std::clamp(*folded.fill, -kLargestFloat, kLargestFloat)));
  } else if (folded.floating) {
    // Masks hide with infinities, attributes are finite: the largest float hides as well.
    v1::Attribute numbers;
    for (double number : folded.numbers) {
      numbers.mutable_numbers()->add_values(std::clamp(number, -kLargestFloat, kLargestFloat));
    }
    attributes.emplace_back("values", std::move(numbers));
  } else {
    absl::StatusOr<std::vector<int64_t>> integers = PlainIntegers(folded);
    if (!integers.ok()) return Fault(node, integers.status().message());
    attributes.emplace_back("integers", IntegersValue(*integers));
  }
  std::string name = value;
  while (!names_.insert(name).second) name += "'";
  RETURN_IF_ERROR(Add(node, "Constant", {}, {name}, attributes).status());
  materialized_[value] = name;
  return name;
}

absl::Status OnnxImporter::MakeStatistic(const NodeProto& node, int i, double momentum) {
  const auto found = HasInput(node, i) ? parameters_.find(node.input(i)) : parameters_.end();
  if (found == parameters_.end()) {
    return Fault(node, absl::StrCat("has running statistics (input ", i,
                                    ") that are no initialiser of the file"));
  }
  graph_.mutable_parameters(found->second)->set_statistic_momentum(momentum);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Extent>> OnnxImporter::ShapeOf(const std::string& tensor) const {
  const std::vector<int64_t>& two = types2_.at(tensor).shape;
  const std::vector<int64_t>& three = types3_.at(tensor).shape;
  std::vector<Extent> shape;
  for (size_t d = 0; d < two.size(); ++d) {
    if (two[d] == three[d]) {
      shape.push_back({two[d]});
    } else if (two[d] % 2 == 0 && two[d] / 2 * 3 == three[d]) {
      shape.push_back({two[d] / 2, true});
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", tensor, "' depends on the batch size in an unusual way"));
    }
  }
  return shape;
}

std::string OnnxImporter::Intermediate(const NodeProto& node, absl::string_view what) {
  std::string name = absl::StrCat(node.output(0), "/", what);
  while (!names_.insert(name).second) name += "'";
  return name;
}

absl::StatusOr<std::string> OnnxImporter::Scalar(const NodeProto& node, double value) {
  const std::string name = Intermediate(node, "constant");
  RETURN_IF_ERROR(Add(node, "Constant", {}, {name},
                      {{"shape", IntegersValue({})}, {"value", NumberValue(value)}})
                      .status());
  return name;
}

std::string OnnxImporter::Output(const NodeProto& node, int i) {
  if (i < node.output_size() && !node.output(i).empty()) {
    names_.insert(node.output(i));
    return node.output(i);
  }
  return Intermediate(node, absl::StrCat("output", i));
}

absl::Status OnnxImporter::Infer(const v1::Node& node) {
  RETURN_IF_ERROR(InferNode(node, types2_));
  return InferNode(node, types3_);
}

absl::StatusOr<v1::Node*> OnnxImporter::Add(
    const NodeProto& from, absl::string_view op, std::vector<std::string> inputs,
    std::vector<std::string> outputs,
    const std::vector<std::pair<std::string, v1::Attribute>>& with) {
  v1::Node& node = *graph_.add_nodes();
  std::string name = NameOf(from);
  while (!node_names_.insert(name).second) name += "'";
  node.set_name(std::move(name));
  node.set_op(std::string(op));
  node.mutable_inputs()->Add(inputs.begin(), inputs.end());
  node.mutable_outputs()->Add(outputs.begin(), outputs.end());
  for (const auto& [key, value] : with) (*node.mutable_attributes())[key] = value;
  if (absl::Status inferred = Infer(node); !inferred.ok()) {
    return WithReason(inferred, "MODEL_INVALID");
  }
  return &node;
}

absl::Status OnnxImporter::ListUnsupported() const {
  std::vector<std::string> unsupported;
  for (const NodeProto& node : file_.graph().node()) {
    if (IsDefaultDomain(node) && FindOnnxConverter(node.op_type()) != nullptr) continue;
    unsupported.push_back(absl::StrCat(IsDefaultDomain(node) ? "" : node.domain() + ".",
                                       node.op_type(), " (node '", NameOf(node), "')"));
  }
  if (unsupported.empty()) return absl::OkStatus();
  const size_t count = unsupported.size();
  if (count > kNodesListedMax) {
    unsupported.resize(kNodesListedMax);
    unsupported.push_back(absl::StrCat("and ", count - kNodesListedMax, " more"));
  }
  return WithReason(absl::InvalidArgumentError(absl::StrCat(
                        count, count == 1 ? " node has an operator" : " nodes have operators",
                        " that cannot be imported: ", absl::StrJoin(unsupported, ", "))),
                    "MODEL_INVALID");
}

absl::Status OnnxImporter::AddInputs() {
  absl::flat_hash_set<std::string> initializers;
  for (const TensorProto& tensor : file_.graph().initializer()) initializers.insert(tensor.name());
  for (const onnx::ValueInfoProto& value : file_.graph().input()) {
    if (initializers.contains(value.name())) continue;  // files of before IR version 4
    const auto fail = [&](absl::string_view what) {
      return WithReason(
          absl::InvalidArgumentError(absl::StrCat("input '", value.name(), "' ", what)),
          "MODEL_INVALID");
    };
    const onnx::TypeProto::Tensor& type = value.type().tensor_type();
    if (!value.type().has_tensor_type() || type.shape().dim_size() == 0) {
      return fail("is no tensor with a batch as its first dimension");
    }
    v1::GraphInput& input = *graph_.add_inputs();
    input.set_name(value.name());
    input.set_dtype(IsFloating(type.elem_type()) ? v1::DTYPE_F32 : v1::DTYPE_I32);
    input.add_shape(-1);
    for (int d = 1; d < type.shape().dim_size(); ++d) {
      const onnx::TensorShapeProto::Dimension& dimension = type.shape().dim(d);
      if (dimension.dim_value() < 1) {
        return fail(absl::StrCat("leaves dimension ", d, " (", dimension.dim_param(),
                                 ") open: export the model with fixed sizes, but for the batch"));
      }
      input.add_shape(dimension.dim_value());
    }
    traced_batch_ = std::max(traced_batch_, type.shape().dim(0).dim_value());
    for (const auto& [types, batch] : {std::pair(&types2_, 2), std::pair(&types3_, 3)}) {
      TensorType& own = (*types)[value.name()];
      own.dtype = input.dtype();
      own.shape.assign(input.shape().begin(), input.shape().end());
      own.shape[0] = batch;
    }
    names_.insert(value.name());
  }
  return absl::OkStatus();
}

absl::Status OnnxImporter::AddInitializers() {
  for (const TensorProto& tensor : file_.graph().initializer()) {
    if (ElementsOf(tensor) < 1) {
      // An empty list of axes, say; an empty weight fails where it is used.
      folded_[tensor.name()] = {.shape = {{0}}, .floating = IsFloating(tensor.data_type())};
      continue;
    }
    if (!IsFloating(tensor.data_type())) {
      ASSIGN_OR_RETURN(const std::vector<int64_t> integers, file_.Integers(tensor));
      FoldedValue& folded = folded_[tensor.name()];
      for (int64_t size : tensor.dims()) folded.shape.push_back({size});
      for (int64_t integer : integers) folded.integers.push_back({integer});
      continue;
    }
    ASSIGN_OR_RETURN(std::vector<float> values, file_.Floats(tensor));
    if (tensor.dims_size() == 0) {
      folded_[tensor.name()] = {.floating = true, .numbers = {values[0]}};
      continue;
    }
    parameters_[tensor.name()] = graph_.parameters_size();
    v1::Parameter& parameter = *graph_.add_parameters();
    parameter.set_name(tensor.name());
    parameter.mutable_shape()->Add(tensor.dims().begin(), tensor.dims().end());
    parameter.mutable_initializer()->set_constant(0);  // the values come from the file
    parameter.set_weight_decay(tensor.dims_size() > 1);
    values_.push_back(std::move(values));
    TensorType type{.shape = {tensor.dims().begin(), tensor.dims().end()}};
    types2_[tensor.name()] = type;
    types3_[tensor.name()] = std::move(type);
    names_.insert(tensor.name());
  }
  return absl::OkStatus();
}

absl::Status OnnxImporter::Run() {
  graph_.set_name(file_.graph().name().empty() ? "onnx" : file_.graph().name());
  RETURN_IF_ERROR(ListUnsupported());
  RETURN_IF_ERROR(AddInputs());
  RETURN_IF_ERROR(AddInitializers());
  for (const NodeProto& node : file_.graph().node()) {
    if (node.output_size() == 0) return Fault(node, "has no output");
    RETURN_IF_ERROR(FindOnnxConverter(node.op_type())(*this, node));
  }
  return absl::OkStatus();
}

absl::Status OnnxImporter::AddLoss(const v1::OnnxModel& model) {
  const auto fail = [](absl::string_view what) {
    return WithReason(absl::InvalidArgumentError(what), "MODEL_INVALID");
  };
  std::vector<std::string> outputs;
  for (const onnx::ValueInfoProto& output : file_.graph().output()) {
    outputs.push_back(output.name());
  }
  std::string logits = model.logits();
  if (logits.empty() && outputs.size() == 1) logits = outputs.front();
  if (std::ranges::count(outputs, logits) == 0) {
    return fail(absl::StrCat(
        "logits: ", logits.empty() ? "must name" : absl::StrCat("'", logits, "' is not"),
        " one of the file's outputs: ", absl::StrJoin(outputs, ", ")));
  }
  if (const auto alias = alias_.find(logits); alias != alias_.end()) logits = alias->second;
  if (!types2_.contains(logits)) return fail(absl::StrCat("output '", logits, "' is a constant"));

  const std::vector<int64_t>& shape = types2_.at(logits).shape;
  const bool of_classes = model.loss().empty() || model.loss() == "softmax_cross_entropy";
  const bool sigmoid = model.loss() == "sigmoid_cross_entropy";
  if (!of_classes && !sigmoid && model.loss() != "mean_squared_error") {
    return fail(absl::StrCat("loss: '", model.loss(),
                             "' is unknown; there are softmax_cross_entropy, "
                             "sigmoid_cross_entropy, mean_squared_error"));
  }
  if (shape.empty() || shape[0] != 2 || types3_.at(logits).shape[0] != 3 ||
      (of_classes && shape.size() < 2)) {
    return fail(absl::StrCat("output '", logits, "' is ", types2_.at(logits).ToString(),
                             " for a batch of 2: a loss needs the batch first",
                             of_classes ? " and the classes last" : ""));
  }
  const std::string labels = model.labels().empty() ? "target" : model.labels();
  const auto existing = std::ranges::find_if(
      graph_.inputs(), [&](const v1::GraphInput& input) { return input.name() == labels; });
  if (existing == graph_.inputs().end()) {
    if (names_.contains(labels)) return fail(absl::StrCat("labels: '", labels, "' is a tensor"));
    v1::GraphInput& input = *graph_.add_inputs();
    input.set_name(labels);
    input.set_dtype(of_classes ? v1::DTYPE_I32 : v1::DTYPE_F32);
    input.add_shape(-1);
    for (size_t d = 1; d + (of_classes ? 1 : 0) < shape.size(); ++d) input.add_shape(shape[d]);
  }
  const auto add = [&](absl::string_view op, std::vector<std::string> node_outputs) {
    v1::Node& node = *graph_.add_nodes();
    node.set_name(node_outputs.front());
    node.set_op(std::string(op));
    node.add_inputs(logits);
    node.add_inputs(labels);
    node.mutable_outputs()->Add(node_outputs.begin(), node_outputs.end());
  };
  const auto unique = [&](std::string name) {
    while (!names_.insert(name).second) name += "'";
    return name;
  };
  graph_.set_loss(unique("loss"));
  if (of_classes) {
    add("SoftmaxCrossEntropy", {graph_.loss(), unique("loss/lse")});
    graph_.set_logits(logits);
    if (shape.size() == 2) {
      graph_.set_correct(unique("correct"));
      add("CorrectCount", {graph_.correct()});
    }
  } else {
    add(sigmoid ? "SigmoidCrossEntropy" : "MeanSquaredError", {graph_.loss()});
  }
  return absl::OkStatus();
}

// What does not lead to the loss is not part of the model: a parameter of it would never train.
absl::StatusOr<ImportedModel> OnnxImporter::Finish() && {
  absl::flat_hash_set<std::string> wanted = {graph_.loss()};
  if (!graph_.correct().empty()) wanted.insert(graph_.correct());
  std::vector<bool> keep(graph_.nodes_size());
  for (int i = graph_.nodes_size() - 1; i >= 0; --i) {
    const v1::Node& node = graph_.nodes(i);
    keep[i] = std::ranges::any_of(node.outputs(),
                                  [&](const std::string& y) { return wanted.contains(y); });
    if (keep[i]) wanted.insert(node.inputs().begin(), node.inputs().end());
  }
  ImportedModel model{.graph = graph_};
  model.graph.clear_nodes();
  model.graph.clear_parameters();
  for (int i = 0; i < graph_.nodes_size(); ++i) {
    if (keep[i]) model.graph.mutable_nodes()->Add(std::move(*graph_.mutable_nodes(i)));
  }
  for (int p = 0; p < graph_.parameters_size(); ++p) {
    if (!wanted.contains(graph_.parameters(p).name())) continue;
    model.graph.mutable_parameters()->Add(std::move(*graph_.mutable_parameters(p)));
    model.initial_values.push_back(std::move(values_[p]));
  }
  return model;
}

absl::StatusOr<ImportedModel> ImportOnnx(const v1::OnnxModel& model) {
  ASSIGN_OR_RETURN(const OnnxFile file, OnnxFile::Open(model.path()));
  const auto import = [&]() -> absl::StatusOr<ImportedModel> {
    OnnxImporter importer(file);
    RETURN_IF_ERROR(importer.Run());
    RETURN_IF_ERROR(importer.AddLoss(model));
    return std::move(importer).Finish();
  };
  absl::StatusOr<ImportedModel> imported = import();
  if (!imported.ok()) return Annotate(imported.status(), model.path());
  return imported;
}

}  // namespace muster
