// What every operator takes, makes and how it differentiates: the table of ops.md as data.
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
//   name    "bias?" may be left out from the end; an optional output ("dbias?") is there when the
//           optional input without the d is. "x*" repeats. "x(shape)": only its shape is read
//   type    f32, i32; T: floating, the same wherever T stands; U: likewise, but another; E:
//           floating or i32; A: likewise, whatever it is elsewhere; @to: what the attribute `to`
//           names; "state" has no dimensions
//   word    stands for one dimension and has the same size wherever it appears in the signature.
//           "..." (or "...word") stands for any number of dimensions, at most once in a tensor.
//           "...x#" differs from repeat to repeat: "...x0", "...x1"
struct Operand {
  enum class Arity { kOne, kOptional, kMany };

  Operand(const char* signature);  // NOLINT: implicit, so that the table reads like ops.md

  // Any tensor of the graph, asked for its shape: nothing flows back to it, and no type follows it.
  bool is_like() const { return shape_only && dtype == "A"; }

  std::string name;
  Arity arity = Arity::kOne;
  bool shape_only = false;
  std::string dtype;               // "f32", "i32", "T", "U", "E", "A", "@to", "state"
  std::vector<std::string> words;  // of dimensions
  std::string type;                // as written: "T[..., inner]"
};

// The sizes of a signature's words.
class Dimensions {
 public:
  // A word known already must have the same sizes: "inner dimensions 100 and 128 differ".
  absl::Status Bind(absl::string_view word, absl::Span<const int64_t> sizes);
  absl::Status Bind(absl::string_view word, int64_t size) { return Bind(word, {&size, 1}); }

  bool contains(absl::string_view word) const { return sizes_.contains(word); }
  int64_t operator[](absl::string_view word) const;               // bound, not "..."
  const std::vector<int64_t>& Run(absl::string_view word) const;  // bound

 private:
  absl::flat_hash_map<std::string, std::vector<int64_t>> sizes_;
};

// Written Integer("groups").Default(1).Within(1, 64); without Default or Optional it is required.
struct AttributeRule {
  enum class Absence {
    kRefused,
    kDefault,
    kMeaning
  };  // kMeaning: that it is absent says something

  AttributeRule Default(double value) const { return Default(std::vector<double>{value}); }
  AttributeRule Default(std::vector<double> values) const;
  AttributeRule DefaultOf(absl::string_view attribute) const;
  AttributeRule Optional() const;
  AttributeRule Within(double min, double max) const;  // each value of a list
  AttributeRule Length(int64_t length) const;          // of a list
  AttributeRule OneOf(std::vector<absl::string_view> words) const;
  AttributeRule DefaultFirst() const;  // of OneOf

  absl::string_view name;
  v1::Attribute::ValueCase kind;
  Absence absence = Absence::kRefused;
  std::vector<double> values = {};            // the default
  absl::string_view same_as = "";             // or the attribute that it is taken from
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
  // Names of the forward signature; "dy" is the gradient of the first output, "dNAME" that of
  // another. What the node leaves out is left out here.
  std::vector<absl::string_view> inputs;
  // The forward inputs whose gradients are its outputs, in order; one that the node leaves out has
  // none.
  std::vector<absl::string_view> of;
  bool identity_if_same_type = false;  // then dy itself serves, and no node is needed
};

struct Operator {
  absl::string_view name;
  std::vector<Operand> inputs;
  std::vector<Operand> outputs;
  std::vector<AttributeRule> attributes;
  // What words do not say: binds words that only outputs have, checks the rest. Inputs and
  // attributes are checked before.
  absl::Status (*relate)(const v1::Node& node, Dimensions& dimensions) = nullptr;
  // In the order in which to run them: parameters first, so that their gradients are final early.
  // Empty: no derivative.
  std::vector<GradientRule> gradients;
  // Goes up and down in steps, like floor: the derivative is zero wherever there is one, so that
  // nothing flows back, as nothing flows through integers. Has no gradients.
  bool is_step = false;

  // Whether backward starts here: no gradient comes in.
  bool is_loss() const;

  // What input i of a node stands for; i may be beyond the signature when the last one repeats.
  const Operand& input(int i) const;
  const Operand& output(int i) const;
};

// All operators, one family after another.
const std::vector<Operator>& Operators();

// Null when unknown.
const Operator* FindOperator(absl::string_view name);

}  // namespace muster
