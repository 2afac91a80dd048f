#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "lib/graph/operators/axes.h"
#include "lib/graph/operators/families.h"

namespace muster {
namespace {

constexpr double kRanksMax = 1024;

// Returns a loss per element, with a target in f32, and its gradient op.
std::vector<Operator> ElementLoss(absl::string_view name, absl::string_view gradient,
                                  const char* input, const char* input_gradient,
                                  absl::string_view input_name) {
  const std::vector<AttributeRule> attributes = {Number("weight").Default(1)};
  return {{.name = name,
           .inputs = {input, "target f32[...]"},
           .outputs = {"loss f32[]"},
           .attributes = attributes,
           .gradients = {{gradient, {input_name, "target"}, {input_name}}}},
          {.name = gradient,
           .inputs = {input, "target f32[...]"},
           .outputs = {input_gradient},
           .attributes = attributes}};
}

absl::Status CheckClasses(const v1::Node& node, Dimensions& dimensions) {
  return CheckPart(node, dimensions["class"]);
}

}  // namespace

std::vector<Operator> LossOperators() {
  const AttributeRule ignore_index =
      Integer("ignore_index").Optional().Within(-2147483648.0, 2147483647.0);
  std::vector<AttributeRule> cross_entropy_grad = {
      Number("label_smoothing").Default(0).Within(0, 1), ignore_index, Number("weight").Default(1)};
  for (AttributeRule& rule : PartRules()) cross_entropy_grad.push_back(std::move(rule));
  std::vector<AttributeRule> cross_entropy = cross_entropy_grad;
  cross_entropy.push_back(Integer("ranks").Default(1).Within(1, kRanksMax));
  std::vector<Operator> operators = {
      {.name = "SoftmaxCrossEntropy",
       .inputs = {"logits T[..., class]", "target i32[...]"},
       .outputs = {"loss f32[]", "lse f32[...]"},
       .attributes = cross_entropy,
       .relate = CheckClasses,
       .gradients = {{"SoftmaxCrossEntropyGrad", {"logits", "target", "lse"}, {"logits"}}}},
      {.name = "SoftmaxCrossEntropyGrad",
       .inputs = {"logits T[..., class]", "target i32[...]", "lse f32[...]"},
       .outputs = {"dlogits T[..., class]"},
       .attributes = cross_entropy_grad,
       .relate = CheckClasses},
      {.name = "BatchShare",
       .inputs = {"x f32[]"},
       .outputs = {"y f32[]"},
       .gradients = {{"BatchShareGrad", {"x"}, {"x"}}}},
      {.name = "BatchShareGrad", .inputs = {"x(shape) f32[]"}, .outputs = {"dx f32[]"}},
      {.name = "TotalLoss", .inputs = {"loss* f32[]"}, .outputs = {"y f32[]"}},
      {.name = "CorrectCount",
       .inputs = {"logits T[..., class]", "target i32[...]"},
       .outputs = {"count f32[]"},
       .attributes = {ignore_index}},
  };
  for (const std::vector<Operator>& loss :
       {ElementLoss("SigmoidCrossEntropy", "SigmoidCrossEntropyGrad", "logits T[...]",
                    "dlogits T[...]", "logits"),
        ElementLoss("MeanSquaredError", "MeanSquaredErrorGrad", "prediction T[...]",
                    "dprediction T[...]", "prediction")}) {
    operators.insert(operators.end(), loss.begin(), loss.end());
  }
  return operators;
}

}  // namespace muster
