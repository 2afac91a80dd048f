#include "lib/graph/lowering/precision.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/repeated_field.h"
#include "lib/graph/attributes.h"
#include "lib/graph/dependence.h"
#include "lib/graph/dtype.h"
#include "lib/graph/operator.h"
#include "lib/graph/shape_inference.h"
#include "lib/status/status.h"

namespace muster {
namespace {

class Lowering {
 public:
  Lowering(const v1::Graph& forward, const TensorTypes& types, v1::DType low)
      : low_(low), dependent_(DependentOnTrained(forward, types)), graph_(forward) {
    for (const auto& [name, type] : types) dtypes_[name] = type.dtype;
    for (const v1::Node& node : forward.nodes()) node_names_.insert(node.name());
  }

  v1::Graph Run() && {
    for (v1::Parameter& parameter : *graph_.mutable_parameters()) {
      if (parameter.has_statistic_momentum()) continue;
      parameter.set_dtype(low_);
      dtypes_[parameter.name()] = low_;
    }
    google::protobuf::RepeatedPtrField<v1::Node> nodes = std::move(*graph_.mutable_nodes());
    graph_.clear_nodes();
    for (v1::Node& node : nodes) {
      if (node.op() == "Constant") {
        constants_[node.outputs(0)] = node;
        if (IsFloating(dtypes_.at(node.outputs(0))) && IsLarge(node)) {
          large_.insert(node.outputs(0));
        }
      }
      Lower(node);
      *graph_.add_nodes() = std::move(node);
    }
    return std::move(graph_);
  }

 private:
  void Lower(v1::Node& node) {
    const Operator& op = *FindOperator(node.op());
    bool is_low = false, is_large = false;
    for (int i = 0; i < node.inputs_size(); ++i) {
      if (op.input(i).is_like()) continue;
      is_low |= dependent_.contains(node.inputs(i));
      is_large |= large_.contains(node.inputs(i));
    }
    // A tensor computed from a large constant may be as large, unless a parameter goes into it.
    for (const std::string& output : node.outputs()) {
      if (is_large && !is_low && IsFloating(dtypes_.at(output))) large_.insert(output);
    }
    const v1::DType follows = is_low ? low_ : v1::DTYPE_F32;
    if (node.op() == "Cast") return LowerCast(is_low, node);
    for (int i = 0; i < node.inputs_size(); ++i) {
      if (op.input(i).is_like()) continue;
      const v1::DType dtype = dtypes_.at(node.inputs(i));
      const v1::DType want = op.input(i).dtype == "f32" ? v1::DTYPE_F32 : follows;
      if (IsFloating(dtype) && dtype != want) node.set_inputs(i, As(node.inputs(i), want));
    }
    for (int i = 0; i < node.outputs_size(); ++i) {
      v1::DType& dtype = dtypes_.at(node.outputs(i));
      if (IsFloating(dtype) && op.output(i).dtype != "f32") dtype = follows;
    }
  }

  // A Cast takes every type. If its input depends on a parameter, its output follows the precision.
  void LowerCast(bool is_low, v1::Node& node) {
    v1::DType& dtype = dtypes_.at(node.outputs(0));
    if (!is_low || !IsFloating(dtype)) return;
    dtype = low_;
    (*node.mutable_attributes())["to"].set_s(std::string(DTypeName(low_)));
  }

  // Returns `tensor` in another type. The conversion is inserted before the first node that needs
  // it.
  const std::string& As(const std::string& tensor, v1::DType dtype) {
    auto [other, is_new] = others_.try_emplace({tensor, dtype});
    if (!is_new) return other->second;
    v1::Node node;
    if (const auto constant = constants_.find(tensor); constant != constants_.end()) {
      node = constant->second;
      (*node.mutable_attributes())["dtype"].set_s(std::string(DTypeName(dtype)));
      if (Is16Bit(dtype)) Narrow(node);
    } else {
      node.set_op("Cast");
      node.add_inputs(large_.contains(tensor) && Is16Bit(dtype) ? Clipped(tensor) : tensor);
      (*node.mutable_attributes())["to"].set_s(std::string(DTypeName(dtype)));
    }
    return other->second =
               Insert(std::move(node), absl::StrCat(tensor, " as ", DTypeName(dtype)), dtype);
  }

  // Inserts a node before the node that is being lowered. Returns the name of its output.
  std::string Insert(v1::Node node, std::string output, v1::DType dtype) {
    while (!dtypes_.try_emplace(output, dtype).second) output += "'";
    node.set_name(output);
    while (!node_names_.insert(node.name()).second) node.mutable_name()->push_back('\'');
    node.clear_outputs();
    node.add_outputs(output);
    *graph_.add_nodes() = std::move(node);
    return output;
  }

  static bool Is16Bit(v1::DType dtype) { return dtype == v1::DTYPE_BF16 || dtype == v1::DTYPE_F16; }

  // Returns whether the constant has a value that would be infinite in the low type.
  bool IsLarge(const v1::Node& constant) const {
    const auto is_large = [this](double value) { return std::abs(value) > most_; };
    if (HasAttribute(constant, "value")) return is_large(NumberAttribute(constant, "value"));
    return HasAttribute(constant, "values") &&
           std::ranges::any_of(NumbersAttribute(constant, "values"), is_large);
  }

  // Clamps the constant to finite numbers of the low type. Masks hide keys with the lowest number
  // there is. A query that sees no key then still has a distribution; with -infinity it would have
  // none. Clipped() does this for masks computed from such a constant and data. Input data that is
  // too large is not clamped.
  void Narrow(v1::Node& constant) const {
    auto& attributes = *constant.mutable_attributes();
    if (HasAttribute(constant, "value")) {
      attributes["value"].set_f(std::clamp(NumberAttribute(constant, "value"), -most_, most_));
    }
    if (!HasAttribute(constant, "values")) return;
    for (double& value : *attributes["values"].mutable_numbers()->mutable_values()) {
      value = std::clamp(value, -most_, most_);
    }
  }

  std::string Clipped(const std::string& tensor) {
    v1::Node node;
    node.set_op("Clip");
    node.add_inputs(tensor);
    (*node.mutable_attributes())["min"].set_f(-most_);
    (*node.mutable_attributes())["max"].set_f(most_);
    return Insert(std::move(node), absl::StrCat(tensor, " within ", DTypeName(low_)),
                  v1::DTYPE_F32);
  }

  const v1::DType low_;
  // Largest finite number of the low type.
  const double most_ = low_ == v1::DTYPE_F16 ? 65504.0 : 0x1.fep127;
  const absl::flat_hash_set<std::string> dependent_;
  v1::Graph graph_;
  absl::flat_hash_set<std::string> node_names_;
  absl::flat_hash_map<std::string, v1::DType> dtypes_;
  absl::flat_hash_map<std::string, v1::Node> constants_;  // key: output
  // f32 tensors that depend on no trained parameter: constants larger than most_, and tensors
  // computed from them.
  absl::flat_hash_set<std::string> large_;
  absl::flat_hash_map<std::pair<std::string, v1::DType>, std::string> others_;
};

}  // namespace

absl::StatusOr<v1::Graph> LowerPrecision(const v1::Graph& forward, v1::DType dtype) {
  ASSIGN_OR_RETURN(const TensorTypes types, InferTypes(forward, /*batch=*/1));
  return Lowering(forward, types, dtype).Run();
}

}  // namespace muster
