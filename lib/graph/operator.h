// What every operator takes, makes and how it differentiates: the table of ops.md as data. Private
// to lib/graph.
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

// A tensor of a signature, written "x f32[..., inner]". A word stands for one dimension and has the
// same size wherever it appears in the signature; "..." (or "...word") stands for any number of
// dimensions, at most once in a tensor. Trailing inputs may be optional ("bias? f32[outer]"); a
// sole input may be repeated ("x* f32[...]").
struct Operand {
  enum class Arity { kOne, kOptional, kMany };

  Operand(const char* signature);  // NOLINT: implicit, so that the table reads like ops.md

  std::string name;
  Arity arity = Arity::kOne;
  v1::DType dtype = v1::DTYPE_F32;
  std::vector<std::string> words;
  std::string type;  // as written: "f32[..., inner]"
};

// The sizes of a signature's words.
class Dimensions {
 public:
  // A word known already must have the same sizes: "inner dimensions 100 and 128 differ".
  absl::Status Bind(absl::string_view word, absl::Span<const int64_t> sizes);
  absl::Status Bind(absl::string_view word, int64_t size) { return Bind(word, {&size, 1}); }

  int64_t operator[](absl::string_view word) const;               // bound, not "..."
  const std::vector<int64_t>& Run(absl::string_view word) const;  // bound

 private:
  absl::flat_hash_map<std::string, std::vector<int64_t>> sizes_;
};

struct AttributeRule {
  absl::string_view name;
  v1::Attribute::ValueCase kind;
  bool required;
  double min;
  double max;
};

// One node of the backward pass.
struct GradientRule {
  absl::string_view op;
  std::vector<absl::string_view>
      inputs;  // "dy" (gradient of the first output) or names of the forward signature
  std::vector<absl::string_view>
      of;  // the forward inputs whose gradients are its outputs, in order
  bool identity_if_same_shape = false;  // then dy itself serves, and no node is needed
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

  // Whether backward starts here: no gradient comes in.
  bool is_loss() const;
};

// All operators, one family after another.
const std::vector<Operator>& Operators();

// Null when unknown.
const Operator* FindOperator(absl::string_view name);

}  // namespace muster
