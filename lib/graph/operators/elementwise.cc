#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "lib/graph/operators/axes.h"
#include "lib/graph/operators/broadcast.h"
#include "lib/graph/operators/families.h"
#include "lib/status/status.h"

namespace muster {
namespace {

// Adds y = f(x) and its gradient op, which reads dy and one of x and y.
void AddUnary(absl::string_view name, absl::string_view gradient, const char* read,
              std::vector<AttributeRule> attributes, std::vector<Operator>& operators) {
  operators.push_back({.name = name,
                       .inputs = {"x T[...]"},
                       .outputs = {"y T[...]"},
                       .attributes = attributes,
                       .gradients = {{gradient, {"dy", absl::string_view(read, 1)}, {"x"}}}});
  operators.push_back({.name = gradient,
                       .inputs = {"dy T[...]", read},
                       .outputs = {"dx T[...]"},
                       .attributes = attributes});
}

void AddUnaries(std::vector<Operator>& operators) {
  constexpr const char* kX = "x T[...]";
  constexpr const char* kY = "y T[...]";
  AddUnary("Relu", "ReluGrad", kY, {}, operators);
  AddUnary("Tanh", "TanhGrad", kY, {}, operators);
  AddUnary("Sigmoid", "SigmoidGrad", kY, {}, operators);
  AddUnary("Sqrt", "SqrtGrad", kY, {}, operators);
  AddUnary("Exp", "ExpGrad", kY, {}, operators);
  AddUnary("Gelu", "GeluGrad", kX, {Integer("exact").Default(0).Within(0, 1)}, operators);
  AddUnary("Silu", "SiluGrad", kX, {}, operators);
  AddUnary("Erf", "ErfGrad", kX, {}, operators);
  AddUnary("Log", "LogGrad", kX, {}, operators);
  AddUnary("Sin", "SinGrad", kX, {}, operators);
  AddUnary("Cos", "CosGrad", kX, {}, operators);
  AddUnary("Softplus", "SoftplusGrad", kX, {}, operators);
  AddUnary("Elu", "EluGrad", kX, {Number("alpha").Default(1)}, operators);
  AddUnary("LeakyRelu", "LeakyReluGrad", kX, {Number("slope").Default(0.01)}, operators);
  AddUnary("HardSigmoid", "HardSigmoidGrad", kX,
           {Number("alpha").Default(0.2), Number("beta").Default(0.5)}, operators);
  AddUnary("Clip", "ClipGrad", kX, {Number("min").Optional(), Number("max").Optional()}, operators);
  for (absl::string_view step : {"Floor", "Ceil", "Round", "Sign"}) {
    operators.push_back({.name = step, .inputs = {kX}, .outputs = {kY}, .is_step = true});
  }
  operators.push_back({.name = "IsNan", .inputs = {kX}, .outputs = {"y i32[...]"}});
}

// `gradients` has the rules of a and b.
Operator Binary(absl::string_view name, std::vector<GradientRule> gradients) {
  return {.name = name,
          .inputs = {"a E[...a]", "b E[...b]"},
          .outputs = {"y E[...y]"},
          .relate = RelateBroadcast,
          .gradients = std::move(gradients)};
}

Operator Comparison(absl::string_view name) {
  return {.name = name,
          .inputs = {"a E[...a]", "b E[...b]"},
          .outputs = {"y i32[...y]"},
          .relate = RelateBroadcast};
}

// Returns the gradient op of one operand. Its signature calls the operand "...a", whether it is a
// or b of the forward op.
Operator BinaryGradient(absl::string_view name, std::vector<Operand> inputs, const char* output) {
  return {.name = name,
          .inputs = std::move(inputs),
          .outputs = {output},
          .relate = RelateBroadcastGradient};
}

void AddBinaries(std::vector<Operator>& operators) {
  operators.insert(
      operators.end(),
      {Binary("Add", {{"AddGrad", {"dy", "a"}, {"a"}, /*identity_if_same_type=*/true},
                      {"AddGrad", {"dy", "b"}, {"b"}, /*identity_if_same_type=*/true}}),
       Binary("Sub", {{"AddGrad", {"dy", "a"}, {"a"}, /*identity_if_same_type=*/true},
                      {"SubGradB", {"dy", "b"}, {"b"}}}),
       Binary("Mul", {{"MulGrad", {"dy", "a", "b"}, {"a"}}, {"MulGrad", {"dy", "b", "a"}, {"b"}}}),
       Binary("Div",
              {{"DivGradA", {"dy", "a", "b"}, {"a"}}, {"DivGradB", {"dy", "a", "b"}, {"b"}}}),
       Binary("Minimum",
              {{"MinimumGrad", {"dy", "a", "b"}, {"a"}}, {"MinimumGrad", {"dy", "b", "a"}, {"b"}}}),
       Binary("Maximum",
              {{"MaximumGrad", {"dy", "a", "b"}, {"a"}}, {"MaximumGrad", {"dy", "b", "a"}, {"b"}}}),
       Binary("Mod", {{"AddGrad", {"dy", "a"}, {"a"}, /*identity_if_same_type=*/true}}),
       {.name = "Pow",
        .inputs = {"a T[...a]", "b T[...b]"},
        .outputs = {"y T[...y]"},
        .relate = RelateBroadcast,
        .gradients = {{"PowGradA", {"dy", "a", "b"}, {"a"}},
                      {"PowGradB", {"dy", "a", "b"}, {"b"}}}},
       Comparison("Equal"),
       Comparison("Less"),
       Comparison("LessOrEqual"),

       BinaryGradient("AddGrad", {"dy T[...y]", "a(shape) T[...a]"}, "da T[...a]"),
       BinaryGradient("SubGradB", {"dy T[...y]", "b(shape) T[...a]"}, "db T[...a]"),
       BinaryGradient("MulGrad", {"dy T[...y]", "a(shape) T[...a]", "b T[...b]"}, "da T[...a]"),
       BinaryGradient("DivGradA", {"dy T[...y]", "a(shape) T[...a]", "b T[...b]"}, "da T[...a]"),
       BinaryGradient("DivGradB", {"dy T[...y]", "a T[...b]", "b T[...a]"}, "db T[...a]"),
       BinaryGradient("MinimumGrad", {"dy T[...y]", "a T[...a]", "b T[...b]"}, "da T[...a]"),
       BinaryGradient("MaximumGrad", {"dy T[...y]", "a T[...a]", "b T[...b]"}, "da T[...a]"),
       BinaryGradient("PowGradA", {"dy T[...y]", "a T[...a]", "b T[...b]"}, "da T[...a]"),
       BinaryGradient("PowGradB", {"dy T[...y]", "a T[...b]", "b T[...a]"}, "db T[...a]")});
}

absl::Status RelateWhere(const v1::Node&, Dimensions& dimensions) {
  ASSIGN_OR_RETURN(const std::vector<int64_t> chosen,
                   Broadcast(dimensions.Run("...a"), dimensions.Run("...b")));
  ASSIGN_OR_RETURN(const std::vector<int64_t> y, Broadcast(dimensions.Run("...condition"), chosen));
  return dimensions.Bind("...y", y);
}

absl::Status CheckLastPart(const v1::Node& node, Dimensions& dimensions) {
  const std::vector<int64_t>& shape = dimensions.Run("...");
  return CheckPart(node, shape.empty() ? 1 : shape.back());
}

}  // namespace

std::vector<Operator> ElementwiseOperators() {
  const std::vector<AttributeRule> to = {Word("to").OneOf({"f32", "bf16", "f16", "i32"})};
  std::vector<AttributeRule> dropout = {Number("rate").Within(0, 0.999),
                                        Integer("salt").Within(0, 2147483647.0)};
  for (AttributeRule& rule : PartRules()) dropout.push_back(std::move(rule));
  std::vector<Operator> operators = {
      {.name = "Neg",
       .inputs = {"x E[...]"},
       .outputs = {"y E[...]"},
       .gradients = {{"NegGrad", {"dy"}, {"x"}}}},
      {.name = "Abs",
       .inputs = {"x E[...]"},
       .outputs = {"y E[...]"},
       .gradients = {{"AbsGrad", {"dy", "x"}, {"x"}}}},
      {.name = "AbsGrad", .inputs = {"dy T[...]", "x T[...]"}, .outputs = {"dx T[...]"}},
      {.name = "NegGrad", .inputs = {"dy T[...]"}, .outputs = {"dx T[...]"}},
      {.name = "Where",
       .inputs = {"condition i32[...condition]", "a E[...a]", "b E[...b]"},
       .outputs = {"y E[...y]"},
       .relate = RelateWhere,
       .gradients = {{"WhereGradA", {"dy", "condition", "a"}, {"a"}},
                     {"WhereGradB", {"dy", "condition", "b"}, {"b"}}}},
      BinaryGradient("WhereGradA",
                     {"dy T[...y]", "condition i32[...condition]", "a(shape) T[...a]"},
                     "da T[...a]"),
      BinaryGradient("WhereGradB",
                     {"dy T[...y]", "condition i32[...condition]", "b(shape) T[...a]"},
                     "db T[...a]"),
      {.name = "Cast",
       .inputs = {"x E[...]"},
       .outputs = {"y @to[...]"},
       .attributes = to,
       .gradients = {{"CastGrad", {"dy", "x"}, {"x"}}}},
      {.name = "CastGrad",
       .inputs = {"dy T[...]", "x(shape) U[...]"},
       .outputs = {"dx U[...]"},
       .attributes = to},
      {.name = "Dropout",
       .inputs = {"x T[...]"},
       .outputs = {"y T[...]"},
       .attributes = dropout,
       .relate = CheckLastPart,
       .gradients = {{"DropoutGrad", {"dy"}, {"x"}}}},
      {.name = "DropoutGrad",
       .inputs = {"dy T[...]"},
       .outputs = {"dx T[...]"},
       .attributes = dropout,
       .relate = CheckLastPart},
      {.name = "Accumulate", .inputs = {"x* T[...]"}, .outputs = {"y T[...]"}},
  };
  AddUnaries(operators);
  AddBinaries(operators);
  return operators;
}

}  // namespace muster
