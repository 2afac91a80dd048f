// The inputs, outputs, attributes and derivatives of every operator: the table of ops.md as data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

inline constexpr int kRankMax = 8;  // dimensions of a tensor

// A tensor of a signature, written "x T[..., inner]".
//
//   name    "bias?" may be omitted at the end. An optional output ("dbias?") exists if the
//           optional input without the d exists. "x*" repeats. "x(shape)": only its shape is read.
//   type    f32, i32. T: floating, the same type wherever T is used. U: the same, independent
//           of T. E: floating or i32, the same wherever E is used. A: floating or i32, any type.
//           @to: the type that attribute `to` names (any attribute may follow the @). "state" has
//           no dimensions.
//   word    names one dimension. It has the same size wherever it is used in the signature.
//           "..." (or "...word") stands for any number of dimensions, at most once in a tensor.
//           "...x#" differs from repeat to repeat: "...x0", "...x1".
struct Operand {
  enum class Arity { kOne, kOptional, kMany };

  Operand(const char* signature);  // NOLINT: implicit, so that the table reads like ops.md

  // An operand of any type that is read only for its shape. No gradient flows back to it, and it
  // does not bind a type.
  bool is_like() const { return shape_only && dtype == "A"; }

  std::string name;
  Arity arity = Arity::kOne;
  bool shape_only = false;
  std::string dtype;               // "f32", "i32", "T", "U", "E", "A", "@NAME", "state"
  std::vector<std::string> words;  // names of dimensions
  std::string type;                // as written: "T[..., inner]"
};

// The sizes of a signature's words.
class Dimensions {
 public:
  // Binds a word to sizes. Returns an error if it is bound to other sizes: "inner dimensions 100
  // and 128 differ".
  absl::Status Bind(absl::string_view word, absl::Span<const int64_t> sizes);
  absl::Status Bind(absl::string_view word, int64_t size) { return Bind(word, {&size, 1}); }

  bool contains(absl::string_view word) const { return sizes_.contains(word); }
  int64_t operator[](absl::string_view word) const;  // Requires: `word` is bound and not "..."
  const std::vector<int64_t>& Run(absl::string_view word) const;  // Requires: bound

 private:
  absl::flat_hash_map<std::string, std::vector<int64_t>> sizes_;
};

// The rule of an attribute, written as Integer("groups").Default(1).Within(1, 64). Without Default
// or Optional the attribute is required.
struct AttributeRule {
  enum class Absence {
    kRefused,
    kDefault,
    kMeaning
  };  // kMeaning: its absence has a meaning of its own

  AttributeRule Default(double value) const { return Default(std::vector<double>{value}); }
  AttributeRule Default(std::vector<double> values) const;
  AttributeRule DefaultOf(absl::string_view attribute) const;
  AttributeRule Optional() const;
  AttributeRule Within(double min, double max) const;  // for a list: each value
  AttributeRule Length(int64_t length) const;          // for a list
  AttributeRule OneOf(std::vector<absl::string_view> words) const;
  AttributeRule DefaultFirst() const;  // the first word of OneOf

  absl::string_view name;
  v1::Attribute::ValueCase kind;
  Absence absence = Absence::kRefused;
  std::vector<double> values = {};            // the default
  absl::string_view same_as = "";             // or the attribute that provides the default
  double min = 0, max = -1;                   // min > max: anything finite
  int64_t length = -1;                        // -1: any
  std::vector<absl::string_view> words = {};  // allowed
};

AttributeRule Integer(absl::string_view name);
AttributeRule Number(absl::string_view name);
AttributeRule Word(absl::string_view name);
AttributeRule Integers(absl::string_view name);
AttributeRule Numbers(absl::string_view name);

// One node of the backward pass.
struct GradientRule {
  absl::string_view op;
  // Names of the forward signature. "dy" is the gradient of the first output, "dNAME" the gradient
  // of another. Tensors that the node omits are omitted here.
  std::vector<absl::string_view> inputs;
  // The forward inputs that the gradient node's outputs belong to, in order. An input that the node
  // omits has no gradient.
  std::vector<absl::string_view> of;
  bool identity_if_same_type = false;  // if true, dy itself is the gradient and no node is needed
};

struct Operator {
  absl::string_view name;
  std::vector<Operand> inputs;
  std::vector<Operand> outputs;
  std::vector<AttributeRule> attributes;
  // Relations that words cannot express: binds words that only outputs have, and checks the rest.
  // Called after inputs and attributes were checked.
  absl::Status (*relate)(const v1::Node& node, Dimensions& dimensions) = nullptr;
  // The gradient nodes in the order in which they run: parameters first, so that their gradients
  // are final early. Empty: the op has no derivative.
  std::vector<GradientRule> gradients;
  // A step function like floor: its derivative is zero wherever it exists, so no gradient flows
  // back. Requires: no gradients.
  bool is_step = false;

  // Returns whether backward starts at this op: no gradient comes in.
  bool is_loss() const;

  // Returns the operand of a node's input i. If the last operand repeats, i may be beyond the
  // signature.
  const Operand& input(int i) const;
  const Operand& output(int i) const;
};

// Returns all operators, one family after another.
const std::vector<Operator>& Operators();

// Returns null if the operator is unknown.
const Operator* FindOperator(absl::string_view name);

}  // namespace muster
