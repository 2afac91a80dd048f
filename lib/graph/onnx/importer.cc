#include "lib/graph/onnx/importer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "lib/graph/onnx/converters/converters.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using onnx::NodeProto;
using onnx::TensorProto;

constexpr size_t kFaultsShown = 50;
constexpr double kLargestFloat = std::numeric_limits<float>::max();
constexpr int64_t kConstantElementsMax = int64_t{1} << 24;
constexpr int64_t kInputElementsMax = int64_t{1} << 32;  // elements of one sample

bool IsDefaultDomain(const NodeProto& node) {
  return node.domain().empty() || node.domain() == "ai.onnx";
}

absl::Status Invalid(absl::string_view what) {
  return WithReason(absl::InvalidArgumentError(what), "MODEL_INVALID");
}

// Appends the names of all tensors that the nodes of a graph read.
void AddFreeNames(const onnx::GraphProto& graph, std::vector<std::string>& names) {
  for (const NodeProto& node : graph.node()) {
    names.insert(names.end(), node.input().begin(), node.input().end());
  }
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

// ---------------------------------------------------------------- for converters

const FoldedValue* OnnxImporter::Folded(const NodeProto& node, int i) const {
  if (!HasInput(node, i)) return nullptr;
  const auto found = folded_.find(node.input(i));
  return found == folded_.end() ? nullptr : &found->second;
}

absl::StatusOr<double> OnnxImporter::Number(const NodeProto& node, int i, double otherwise) const {
  if (!HasInput(node, i)) return otherwise;
  const FoldedValue* folded = Folded(node, i);
  const absl::optional<double> number = folded == nullptr ? absl::nullopt : folded->Single();
  if (!number) return NodeFault(node, absl::StrCat("computes input ", i, " while it runs"));
  return *number;
}

absl::StatusOr<absl::optional<std::vector<int64_t>>> OnnxImporter::IntegersOf(
    const NodeProto& node, int i, absl::string_view name) const {
  using Result = absl::optional<std::vector<int64_t>>;
  if (!HasInput(node, i)) return Integers(node, name);
  const FoldedValue* folded = Folded(node, i);
  if (folded == nullptr) {
    return NodeFault(node, absl::StrCat("computes its ", name, " while it runs"));
  }
  absl::StatusOr<std::vector<int64_t>> integers = folded->PlainIntegers();
  if (!integers.ok()) return NodeFault(node, integers.status().message());
  return Result(*std::move(integers));
}

absl::StatusOr<std::vector<Extent>> OnnxImporter::ExtentsOf(const NodeProto& node, int i) const {
  const FoldedValue* folded = Folded(node, i);
  if (folded == nullptr) return NodeFault(node, "has a shape that is computed while it runs");
  absl::StatusOr<std::vector<Extent>> extents = folded->Extents();
  if (!extents.ok()) return NodeFault(node, extents.status().message());
  return extents;
}

absl::StatusOr<std::string> OnnxImporter::Tensor(const NodeProto& node, int i) {
  if (!HasInput(node, i)) return NodeFault(node, absl::StrCat("lacks input ", i));
  return TensorOf(node, node.input(i), /*broadcasts=*/false);
}

absl::StatusOr<std::string> OnnxImporter::Operand(const NodeProto& node, int i) {
  if (!HasInput(node, i)) return NodeFault(node, absl::StrCat("lacks input ", i));
  return TensorOf(node, node.input(i), GivesBatch(node, i));
}

bool OnnxImporter::GivesBatch(const NodeProto& node, int i) const {
  const FoldedValue* folded = Folded(node, i);
  if (folded == nullptr || !folded->depends_on_batch()) return false;
  const absl::StatusOr<std::vector<Extent>> own = folded->Shape();
  if (!own.ok()) return false;
  for (int j = 0; j < node.input_size(); ++j) {
    if (j == i || !HasInput(node, j) || Folded(node, j) != nullptr) continue;
    const auto alias = alias_.find(node.input(j));
    const std::string& tensor = alias == alias_.end() ? node.input(j) : alias->second;
    if (!types_[0].contains(tensor)) continue;
    const absl::StatusOr<std::vector<Extent>> other = ShapeOf(tensor);
    if (!other.ok() || other->size() < own->size()) continue;
    const size_t added = other->size() - own->size();
    bool covers = true;
    for (size_t d = 0; d < own->size(); ++d) {
      covers = covers && (!(*own)[d].of_batch || (*other)[added + d] == (*own)[d]);
    }
    if (covers) return true;
  }
  return false;
}

absl::StatusOr<std::string> OnnxImporter::TensorOf(const NodeProto& node, const std::string& value,
                                                   bool broadcasts) {
  if (const auto folded = folded_.find(value); folded != folded_.end()) {
    const auto key = std::pair(value, broadcasts);
    if (const auto known = materialized_.find(key); known != materialized_.end()) {
      return known->second;
    }
    ASSIGN_OR_RETURN(std::string name, TensorFor(node, folded->second, broadcasts));
    materialized_[key] = name;
    return name;
  }
  if (const auto alias = alias_.find(value); alias != alias_.end()) return alias->second;
  if (types_[0].contains(value)) return value;
  return NodeFault(node, absl::StrCat("reads '", value, "', which nothing makes"));
}

absl::StatusOr<std::vector<std::string>> OnnxImporter::Tensors(const NodeProto& node) {
  std::vector<std::string> tensors;
  for (int i = 0; i < node.input_size(); ++i) {
    ASSIGN_OR_RETURN(tensors.emplace_back(), Tensor(node, i));
  }
  return tensors;
}

int OnnxImporter::ParameterOf(const NodeProto& node, int i) const {
  if (!HasInput(node, i)) return -1;
  const auto alias = alias_.find(node.input(i));
  const auto found = parameters_.find(alias == alias_.end() ? node.input(i) : alias->second);
  return found == parameters_.end() ? -1 : found->second;
}

absl::Status OnnxImporter::MakeStatistic(const NodeProto& node, int i, double momentum) {
  const int parameter = ParameterOf(node, i);
  if (parameter < 0) {
    return NodeFault(node, absl::StrCat("has running statistics (input ", i,
                                        ") that are not an initialiser of the file"));
  }
  graph_.mutable_parameters(parameter)->set_statistic_momentum(momentum);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Extent>> OnnxImporter::ShapeOf(const std::string& tensor) const {
  std::vector<Extent> shape;
  for (size_t d = 0; d < types_[0].at(tensor).shape.size(); ++d) {
    std::array<int64_t, kProbes> sizes;
    for (int p = 0; p < kProbes; ++p) sizes[p] = types_[p].at(tensor).shape[d];
    const absl::optional<Extent> extent = ExtentOf(sizes);
    if (!extent) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", tensor, "' has a size that is not a multiple of the batch"));
    }
    shape.push_back(*extent);
  }
  return shape;
}

absl::StatusOr<std::vector<Extent>> OnnxImporter::InputShape(const NodeProto& node, int i) {
  ASSIGN_OR_RETURN(const std::string x, Tensor(node, i));
  return ShapeOf(x);
}

absl::StatusOr<int64_t> OnnxImporter::Rank(const NodeProto& node, int i) {
  ASSIGN_OR_RETURN(const std::string x, Tensor(node, i));
  return std::ssize(types_[0].at(x).shape);
}

absl::Status OnnxImporter::Add(const NodeProto& from, absl::string_view op,
                               std::vector<std::string> inputs, std::vector<std::string> outputs,
                               const Attributes& attributes) {
  v1::Node& node = *graph_.add_nodes();
  std::string name = NameOf(from);
  while (!node_names_.insert(name).second) name += "'";
  node.set_name(std::move(name));
  node.set_op(std::string(op));
  node.mutable_inputs()->Add(inputs.begin(), inputs.end());
  node.mutable_outputs()->Add(outputs.begin(), outputs.end());
  for (const auto& [key, value] : attributes) (*node.mutable_attributes())[key] = value;
  for (TensorTypes& types : types_) {
    if (absl::Status inferred = InferNode(node, types); !inferred.ok()) {
      graph_.mutable_nodes()->RemoveLast();
      return WithReason(inferred, "MODEL_INVALID");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> OnnxImporter::Make(const NodeProto& from, absl::string_view op,
                                               std::vector<std::string> inputs,
                                               const Attributes& attributes) {
  std::string name = Intermediate(from, op);
  RETURN_IF_ERROR(Add(from, op, std::move(inputs), {name}, attributes));
  return name;
}

std::string OnnxImporter::Unique(std::string name) {
  while (!names_.insert(name).second) name += "'";
  return name;
}

std::string OnnxImporter::Intermediate(const NodeProto& node, absl::string_view what) {
  std::string name = Unique(absl::StrCat(node.output(0), "/", what));
  own_names_.insert(name);
  return name;
}

absl::StatusOr<std::string> OnnxImporter::Scalar(const NodeProto& node, double value,
                                                 bool floating) {
  return Constant(node, floating, {{}, {value}});
}

absl::StatusOr<std::string> OnnxImporter::Constant(const NodeProto& node, bool floating,
                                                   const NumberArray& array) {
  if (array.values.empty()) return NodeFault(node, "reads an empty constant");
  v1::Attribute values;
  // Masks hide with infinities, but attributes must be finite. The largest float hides just as
  // well.
  for (double value : array.values) {
    if (std::isnan(value)) return NodeFault(node, "reads a constant that is not a number");
    if (floating) {
      values.mutable_numbers()->add_values(std::clamp(value, -kLargestFloat, kLargestFloat));
    } else {
      values.mutable_integers()->add_values(
          std::clamp<int64_t>(ToInteger(value), std::numeric_limits<int32_t>::min(),
                              std::numeric_limits<int32_t>::max()));
    }
  }
  Attributes attributes = {{"shape", IntegersValue(array.shape)},
                           {"dtype", WordValue(floating ? "f32" : "i32")}};
  const bool filling =
      std::ranges::all_of(array.values, [&](double value) { return value == array.values[0]; });
  if (filling && floating) {
    attributes.emplace_back("value", NumberValue(values.numbers().values(0)));
  } else {
    if (const absl::Status kept = budget_.Keep(std::ssize(array.values)); !kept.ok()) {
      return NodeFault(node, kept.message());
    }
    attributes.emplace_back(floating ? "values" : "integers", std::move(values));
  }
  return Make(node, "Constant", {}, attributes);
}

absl::StatusOr<std::string> OnnxImporter::Reshaped(const NodeProto& node, const std::string& x,
                                                   const std::vector<Extent>& shape) {
  std::vector<int64_t> sizes;
  for (const Extent& extent : shape) sizes.push_back(extent.of_batch ? -1 : extent.value);
  if (std::ranges::count(sizes, -1) > 1) {
    return NodeFault(node, "has the batch in several dimensions");
  }
  return Make(node, "Reshape", {x}, {{"shape", IntegersValue(sizes)}});
}

absl::StatusOr<std::string> OnnxImporter::Transposed(const NodeProto& node, const std::string& x,
                                                     const std::vector<int64_t>& permutation) {
  if (std::ranges::is_sorted(permutation)) return x;
  return Make(node, "Transpose", {x}, {{"permutation", IntegersValue(permutation)}});
}

absl::StatusOr<std::string> OnnxImporter::Like(const NodeProto& node) const {
  if (graph_.inputs().empty()) return NodeFault(node, "needs the batch, and the file has no input");
  return graph_.inputs(0).name();
}

absl::StatusOr<std::string> OnnxImporter::Expanded(const NodeProto& node, const std::string& x,
                                                   const std::vector<Extent>& shape) {
  ASSIGN_OR_RETURN(const std::vector<Extent> own, ShapeOf(x));
  const int64_t added = std::ssize(shape) - std::ssize(own);
  if (added < 0) return NodeFault(node, "expands to fewer dimensions");
  std::vector<int64_t> sizes;
  bool over_batch = false;
  for (int64_t d = 0; d < std::ssize(shape); ++d) {
    const bool is_own = d >= added && own[d - added] == shape[d];
    if (is_own) {
      sizes.push_back(0);
    } else if (!shape[d].of_batch) {
      sizes.push_back(shape[d].value);
    } else if (d == 0 && shape[d].value == 1) {
      sizes.push_back(-1);
      over_batch = true;
    } else {
      return NodeFault(node, "repeats a tensor along the batch other than in its first dimension");
    }
  }
  std::vector<std::string> inputs = {x};
  if (over_batch) {
    ASSIGN_OR_RETURN(inputs.emplace_back(), Like(node));
  }
  return Make(node, "Expand", std::move(inputs), {{"shape", IntegersValue(sizes)}});
}

// If the importer made the tensor for this node, the tensor gets the file's name of output i. So
// messages and `model describe` use names that the user knows.
void OnnxImporter::Alias(const NodeProto& node, int i, const std::string& tensor) {
  if (!HasOutput(node, i)) return;
  const std::string& name = node.output(i);
  const bool is_constant = std::ranges::any_of(
      materialized_, [&](const auto& constant) { return constant.second == tensor; });
  if (is_constant || !own_names_.contains(tensor) ||
      !absl::StartsWith(tensor, absl::StrCat(node.output(0), "/")) || !names_.insert(name).second) {
    alias_[name] = tensor;
    return;
  }
  const auto rename = [&](std::string& other) {
    if (other == tensor) other = name;
  };
  for (int n = graph_.nodes_size() - 1; n >= 0; --n) {
    v1::Node& own = *graph_.mutable_nodes(n);
    std::ranges::for_each(*own.mutable_inputs(), rename);
    std::ranges::for_each(*own.mutable_outputs(), rename);
    if (std::ranges::count(own.outputs(), name) > 0) break;  // no earlier node reads it
  }
  own_names_.erase(tensor);
  for (TensorTypes& types : types_) {
    // A copy, because entries may move when the table grows.
    const TensorType type = types.at(tensor);
    types[name] = type;
  }
}

std::string OnnxImporter::Output(const NodeProto& node, int i) {
  if (HasOutput(node, i)) {
    names_.insert(node.output(i));
    return node.output(i);
  }
  return Intermediate(node, absl::StrCat("output", i));
}

// ---------------------------------------------------------------- inputs and initialisers

absl::Status OnnxImporter::AddInput(const onnx::ValueInfoProto& value) {
  const auto fail = [&](absl::string_view what) {
    return Invalid(absl::StrCat("input '", value.name(), "' ", what));
  };
  const onnx::TypeProto::Tensor& type = value.type().tensor_type();
  const int rank = type.shape().dim_size();
  if (type.elem_type() == TensorProto::BOOL) truths_.insert(value.name());
  if (!value.type().has_tensor_type() || rank == 0) {
    return fail("is not a tensor with a batch as its first dimension");
  }
  // If the file leaves the second dimension open but not the first, the sequence comes first and
  // the second dimension is the batch.
  const auto& dimensions = type.shape().dim();
  const bool swapped = rank > 1 && dimensions[0].dim_value() > 0 && dimensions[1].dim_value() < 1;
  std::vector<int64_t> order(rank);
  for (int d = 0; d < rank; ++d) order[d] = swapped && d < 2 ? 1 - d : d;
  v1::GraphInput& input = *graph_.add_inputs();
  input.set_name(value.name());
  input.set_dtype(IsFloating(type.elem_type()) ? v1::DTYPE_F32 : v1::DTYPE_I32);
  input.add_shape(-1);
  for (int d = 1; d < rank; ++d) {
    const onnx::TensorShapeProto::Dimension& dimension = dimensions[order[d]];
    if (dimension.dim_value() < 1) {
      return fail(absl::StrCat("leaves dimension ", order[d], " (", dimension.dim_param(),
                               ") open: export the model with fixed sizes, except the batch"));
    }
    input.add_shape(dimension.dim_value());
  }
  const int64_t traced = dimensions[order[0]].dim_value();
  if (traced > 0 && traced_batch_ > 0 && traced != traced_batch_) {
    return fail(absl::StrCat("is for a batch of ", traced, ", another one for ", traced_batch_));
  }
  traced_batch_ = std::max(traced_batch_, traced);
  if (ElementsOf({input.shape().begin() + 1, input.shape().end()}) > kInputElementsMax) {
    return fail("has samples of an impossible size");
  }
  for (int p = 0; p < kProbes; ++p) {
    TensorType& own = types_[p][value.name()];
    own.dtype = input.dtype();
    own.shape.assign(input.shape().begin(), input.shape().end());
    own.shape[0] = kProbeBatch[p];
  }
  names_.insert(value.name());
  if (swapped) {
    NodeProto node;
    node.set_name(absl::StrCat(value.name(), "/batch_second"));
    node.add_output(node.name());
    ASSIGN_OR_RETURN(alias_[value.name()], Transposed(node, value.name(), order));
  }
  return absl::OkStatus();
}

absl::Status OnnxImporter::AddInputs() {
  absl::flat_hash_set<std::string> initializers;
  for (const TensorProto& tensor : file_.graph().initializer()) initializers.insert(tensor.name());
  std::vector<std::string> faults;
  for (const onnx::ValueInfoProto& value : file_.graph().input()) {
    // Files before IR version 4 list initialisers as inputs.
    if (initializers.contains(value.name())) continue;
    if (absl::Status added = AddInput(value); !added.ok()) {
      faults.push_back(std::string(added.message()));
    }
  }
  return faults.empty() ? absl::OkStatus() : Invalid(absl::StrJoin(faults, "; "));
}

absl::Status OnnxImporter::AddParameter(const TensorProto& tensor) {
  ASSIGN_OR_RETURN(std::vector<float> values, file_.Floats(tensor));
  parameters_[tensor.name()] = graph_.parameters_size();
  v1::Parameter& parameter = *graph_.add_parameters();
  parameter.set_name(tensor.name());
  parameter.mutable_shape()->Add(tensor.dims().begin(), tensor.dims().end());
  if (tensor.dims_size() == 0) parameter.add_shape(1);
  parameter.mutable_initializer()->set_constant(0);  // the values come from the file
  parameter.set_weight_decay(tensor.dims_size() > 1);
  values_.push_back(std::move(values));
  for (TensorTypes& types : types_) {
    types[tensor.name()] = {.shape = {parameter.shape().begin(), parameter.shape().end()}};
  }
  names_.insert(tensor.name());
  if (tensor.dims_size() > 0) return absl::OkStatus();
  NodeProto node;
  node.set_name(absl::StrCat(tensor.name(), "/scalar"));
  node.add_output(node.name());
  ASSIGN_OR_RETURN(alias_[tensor.name()], Reshaped(node, tensor.name(), {}));
  return absl::OkStatus();
}

absl::Status OnnxImporter::AddInitializers(const onnx::GraphProto& graph) {
  absl::flat_hash_map<std::string, InitializerRole> roles;
  for (const InitializerDecision& decision : roles_) roles[decision.name] = decision.role;
  for (const TensorProto& tensor : graph.initializer()) {
    const bool floating = IsFloating(tensor.data_type());
    const auto role = roles.find(tensor.name());
    if (tensor.data_type() == TensorProto::BOOL) truths_.insert(tensor.name());
    NumberArray array{.shape = {tensor.dims().begin(), tensor.dims().end()}};
    if (ElementsOf(tensor) < 0) {
      return Invalid(absl::StrCat("initialiser '", tensor.name(), "' has an impossible shape"));
    }
    if (ElementsOf(tensor) == 0) {
      // This may be an empty list of axes. An empty weight fails at its use.
    } else if (floating && role != roles.end() && role->second != InitializerRole::kConstant) {
      RETURN_IF_ERROR(AddParameter(tensor));
      continue;
    } else if (ElementsOf(tensor) > kConstantElementsMax) {
      return Invalid(absl::StrCat(
          "initialiser '", tensor.name(), "' would be a constant of ", ElementsOf(tensor),
          " elements, at most ", kConstantElementsMax, " are possible",
          floating ? ": list it under onnx.train, and if it must not change give it a parameter "
                     "group with frozen: true"
                   : ""));
    } else if (!floating) {
      ASSIGN_OR_RETURN(const std::vector<int64_t> integers, file_.Integers(tensor));
      array.values.assign(integers.begin(), integers.end());
    } else {
      ASSIGN_OR_RETURN(const std::vector<float> numbers, file_.Floats(tensor));
      array.values.assign(numbers.begin(), numbers.end());
    }
    FoldedValue value(floating, std::move(array));
    if (const absl::Status kept = budget_.Keep(value.numbers()); !kept.ok()) {
      return Invalid(absl::StrCat("initialiser '", tensor.name(), "' ", kept.message()));
    }
    folded_.insert_or_assign(tensor.name(), std::move(value));
  }
  return absl::OkStatus();
}

// ---------------------------------------------------------------- nodes

void OnnxImporter::Refuse(const NodeProto& node, absl::string_view what) {
  // Converters report "node 'NAME' (OP) WHAT" with the file's operator. Shape inference reports the
  // graph's operator and name, which ends in ' if several nodes come from one. The name is removed,
  // so that nodes with the same cause become one fault, which names the first node.
  if (absl::ConsumePrefix(&what, absl::StrCat("node '", NameOf(node)))) {
    while (absl::ConsumePrefix(&what, "'")) {
    }
    absl::ConsumePrefix(&what, " ");
    absl::ConsumePrefix(&what, absl::StrCat("(", node.op_type(), ") "));
  }
  Fault& fault =
      faults_[{absl::StrCat(IsDefaultDomain(node) ? "" : node.domain() + ".", node.op_type()),
               std::string(what)}];
  if (fault.count++ == 0) fault.first = NameOf(node);
  for (const std::string& output : node.output()) {
    if (!output.empty()) failed_.insert(output);
  }
}

absl::Status OnnxImporter::Faults() const {
  if (faults_.empty()) return absl::OkStatus();
  int64_t nodes = 0;
  std::vector<std::string> lines;
  for (const auto& [key, fault] : faults_) {
    nodes += fault.count;
    if (lines.size() == kFaultsShown) continue;
    lines.push_back(fault.count == 1
                        ? absl::StrCat(key.first, " (node '", fault.first, "') ", key.second)
                        : absl::StrCat(fault.count, " ", key.first, " (first node '", fault.first,
                                       "') ", key.second));
  }
  const size_t more = faults_.size() - lines.size();
  if (more > 0) lines.push_back(absl::StrCat("and ", more, " more kinds"));
  std::string message = absl::StrCat(nodes, nodes == 1 ? " node" : " nodes",
                                     " cannot be imported: ", absl::StrJoin(lines, "; "));
  if (skipped_ > 0) {
    absl::StrAppend(&message, "; ", skipped_, " that read them were not looked at");
  }
  if (traced_batch_ > 0) {
    absl::StrAppend(&message, "; the file was exported for a batch of ", traced_batch_,
                    ", which may be why: export it with a dynamic batch "
                    "(dynamic_shapes or dynamic_axes of torch.onnx.export)");
  }
  return Invalid(message);
}

// Folds the node if all its inputs are known. Returns whether it did.
absl::StatusOr<bool> OnnxImporter::Fold(const NodeProto& node) {
  if (!IsDefaultDomain(node) || !IsFoldable(node.op_type())) return false;
  std::vector<const FoldedValue*> inputs;
  for (int i = 0; i < node.input_size(); ++i) {
    inputs.push_back(Folded(node, i));
    if (HasInput(node, i) && inputs.back() == nullptr) return false;
  }
  absl::StatusOr<std::vector<FoldedValue>> outputs = FoldNode(node, inputs, file_, budget_);
  if (!outputs.ok()) return NodeFault(node, outputs.status().message());
  for (int i = 0; i < std::min<int>(node.output_size(), outputs->size()); ++i) {
    SetFolded(node, i, std::move((*outputs)[i]));
  }
  return true;
}

// Converts Shape to a constant: the shape of a tensor is known even if its values are not.
absl::Status OnnxImporter::ConvertShape(const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string x, Tensor(node, 0));
  ASSIGN_OR_RETURN(const FoldedValue blank,
                   FoldedValue::Make(true, true, [&](int p) -> absl::StatusOr<NumberArray> {
                     return NumberArray{.shape = types_[p].at(x).shape};
                   }));
  const FoldedValue* inputs[] = {&blank};
  absl::StatusOr<std::vector<FoldedValue>> outputs = FoldNode(node, inputs, file_, budget_);
  if (!outputs.ok()) return NodeFault(node, outputs.status().message());
  SetFolded(node, 0, std::move(outputs->front()));
  return absl::OkStatus();
}

// Converts an If with a known condition: the nodes of the selected graph replace the If.
absl::Status OnnxImporter::ConvertIf(const NodeProto& node) {
  const FoldedValue* condition = Folded(node, 0);
  const absl::optional<double> chosen = condition == nullptr ? absl::nullopt : condition->Single();
  if (!chosen)
    return NodeFault(
        node, "has a condition that is computed in the run; only constants can select a branch");
  const onnx::AttributeProto* branch =
      FindAttribute(node, *chosen != 0 ? "then_branch" : "else_branch");
  if (branch == nullptr || !branch->has_g() || branch->g().output_size() != node.output_size()) {
    return NodeFault(node, "lacks a branch");
  }
  for (const TensorProto& tensor : branch->g().initializer()) {
    if (IsFloating(tensor.data_type()) && tensor.dims_size() > 0) {
      return NodeFault(node, "holds weights in a branch: export them outside of it");
    }
  }
  RETURN_IF_ERROR(AddInitializers(branch->g()));
  Convert(branch->g());
  for (int i = 0; i < node.output_size(); ++i) {
    const std::string& from = branch->g().output(i).name();
    if (failed_.contains(from)) {
      failed_.insert(node.output(i));
    } else if (const auto folded = folded_.find(from); folded != folded_.end()) {
      SetFolded(node, i, FoldedValue(folded->second));
    } else {
      ASSIGN_OR_RETURN(alias_[node.output(i)], TensorOf(node, from, /*broadcasts=*/false));
    }
  }
  return absl::OkStatus();
}

bool OnnxImporter::IsOfTruth(const NodeProto& node) const {
  static const auto& makers = *new absl::flat_hash_set<absl::string_view>{
      "And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual",
      "Not", "Or",    "Xor"};
  static const auto& movers = *new absl::flat_hash_set<absl::string_view>{
      "Concat",  "Expand", "Flatten", "Gather",  "GatherElements", "GatherND",  "Identity",
      "Reshape", "Slice",  "Split",   "Squeeze", "Tile",           "Transpose", "Unsqueeze"};
  const auto is_truth = [&](int i) { return HasInput(node, i) && truths_.contains(node.input(i)); };
  if (makers.contains(node.op_type())) return true;
  if (movers.contains(node.op_type())) return is_truth(0);
  if (node.op_type() == "Where" || node.op_type() == "CastLike") return is_truth(1);
  if (node.op_type() == "Cast") return Integer(node, "to", 0) == TensorProto::BOOL;
  const onnx::AttributeProto* value = FindAttribute(node, "value");
  return value != nullptr && value->t().data_type() == TensorProto::BOOL;
}

absl::Status OnnxImporter::ConvertNode(const NodeProto& node) {
  if (node.output_size() == 0) return NodeFault(node, "has no output");
  if (IsOfTruth(node)) truths_.insert(node.output().begin(), node.output().end());
  if (node.op_type() == "CastLike" && HasInput(node, 1) && truths_.contains(node.input(1))) {
    NodeProto cast = node;
    cast.set_op_type("Cast");
    cast.mutable_input()->DeleteSubrange(1, cast.input_size() - 1);
    onnx::AttributeProto& to = *cast.add_attribute();
    to.set_name("to");
    to.set_i(TensorProto::BOOL);
    return ConvertNode(cast);
  }
  ASSIGN_OR_RETURN(const bool folded, Fold(node));
  if (folded) return absl::OkStatus();
  if (node.op_type() == "Shape" || node.op_type() == "Size") return ConvertShape(node);
  if (node.op_type() == "If") return ConvertIf(node);
  const OnnxConverter convert = FindOnnxConverter(node.op_type());
  if (!IsDefaultDomain(node) || convert == nullptr) {
    return NodeFault(node, "is an operator that is not supported");
  }
  return convert(*this, node);
}

void OnnxImporter::Convert(const onnx::GraphProto& graph) {
  for (const NodeProto& node : graph.node()) {
    std::vector<std::string> read(node.input().begin(), node.input().end());
    for (const onnx::AttributeProto& attribute : node.attribute()) {
      if (attribute.has_g()) AddFreeNames(attribute.g(), read);
    }
    if (std::ranges::any_of(read,
                            [&](const std::string& name) { return failed_.contains(name); })) {
      ++skipped_;
      for (const std::string& output : node.output()) {
        if (!output.empty()) failed_.insert(output);
      }
      continue;
    }
    if (const absl::Status converted = ConvertNode(node); !converted.ok()) {
      Refuse(node, converted.message());
    }
  }
}

absl::Status OnnxImporter::Run() {
  graph_.set_name(file_.graph().name().empty() ? "onnx" : file_.graph().name());
  RETURN_IF_ERROR(AddInputs());
  RETURN_IF_ERROR(AddInitializers(file_.graph()));
  Convert(file_.graph());
  return Faults();
}

OnnxSignature OnnxImporter::Signature() const {
  OnnxSignature signature{.inputs = {graph_.inputs().begin(), graph_.inputs().end()}};
  for (const onnx::ValueInfoProto& value : file_.graph().output()) {
    const auto alias = alias_.find(value.name());
    const std::string& tensor = alias == alias_.end() ? value.name() : alias->second;
    if (!types_[0].contains(tensor)) continue;  // a constant
    const absl::StatusOr<std::vector<Extent>> shape = ShapeOf(tensor);
    if (!shape.ok()) continue;  // no loss takes such a size
    OnnxOutput output{.name = value.name(), .dtype = TypeOf(tensor)};
    for (const Extent& extent : *shape) {
      output.shape.push_back(extent.of_batch ? -extent.value : extent.value);
    }
    signature.outputs.push_back(std::move(output));
  }
  return signature;
}

// Drops the nodes and parameters that lead neither to the loss nor to `correct`: such a parameter
// would never train.
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
  if (model.graph.parameters().empty()) {
    return Invalid("nothing of the file would be trained: no parameter leads to the loss");
  }
  return model;
}

}  // namespace muster
