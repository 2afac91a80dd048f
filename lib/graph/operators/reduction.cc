#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "lib/graph/attributes.h"
#include "lib/graph/operators/axes.h"
#include "lib/graph/operators/families.h"
#include "lib/status/status.h"

namespace muster {
namespace {

absl::Status RelateReduction(const v1::Node& node, Dimensions& dimensions) {
  std::vector<int64_t> shape = dimensions.Run("...x");
  RETURN_IF_ERROR(CheckAxes(node, shape.size()));
  const bool keep = IntegerAttribute(node, "keep") != 0;
  const std::vector<int64_t> axes = AxesAttribute(node, shape.size());
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    if (keep) {
      shape[*axis] = 1;
    } else {
      shape.erase(shape.begin() + *axis);
    }
  }
  return dimensions.Bind("...y", shape);
}

}  // namespace

std::vector<Operator> ReductionOperators() {
  const std::vector<AttributeRule> attributes = {Integers("axes").Within(-kRankMax, kRankMax - 1),
                                                 Integer("keep").Default(1).Within(0, 1)};
  const auto reduction = [&](absl::string_view name, GradientRule gradient) -> Operator {
    return {.name = name,
            .inputs = {"x T[...x]"},
            .outputs = {"y T[...y]"},
            .attributes = attributes,
            .relate = RelateReduction,
            .gradients = {std::move(gradient)}};
  };
  const auto gradient = [&](absl::string_view name, std::vector<Operand> inputs) -> Operator {
    return {.name = name,
            .inputs = std::move(inputs),
            .outputs = {"dx T[...x]"},
            .attributes = attributes,
            .relate = RelateReduction};
  };
  const auto softmax = [](absl::string_view name, absl::string_view gradient) -> Operator {
    return {.name = name,
            .inputs = {"x T[..., class]"},
            .outputs = {"y T[..., class]"},
            .gradients = {{gradient, {"dy", "y"}, {"x"}}}};
  };
  const auto softmax_gradient = [](absl::string_view name) -> Operator {
    return {.name = name,
            .inputs = {"dy T[..., class]", "y T[..., class]"},
            .outputs = {"dx T[..., class]"}};
  };
  const std::vector<AttributeRule> cumulative = {Integer("axis").Within(-kRankMax, kRankMax - 1),
                                                 Integer("exclusive").Default(0).Within(0, 1),
                                                 Integer("reverse").Default(0).Within(0, 1)};
  const auto check_axis = [](const v1::Node& node, Dimensions& dimensions) {
    return CheckAxis(node, dimensions.Run("...").size());
  };
  return {
      {.name = "CumSum",
       .inputs = {"x E[...]"},
       .outputs = {"y E[...]"},
       .attributes = cumulative,
       .relate = check_axis,
       .gradients = {{"CumSumGrad", {"dy"}, {"x"}}}},
      {.name = "CumSumGrad",
       .inputs = {"dy T[...]"},
       .outputs = {"dx T[...]"},
       .attributes = cumulative,
       .relate = check_axis},
      reduction("ReduceSum", {"ReduceSumGrad", {"dy", "x"}, {"x"}}),
      reduction("ReduceMean", {"ReduceMeanGrad", {"dy", "x"}, {"x"}}),
      reduction("ReduceMax", {"ReduceMaxGrad", {"dy", "x", "y"}, {"x"}}),
      gradient("ReduceSumGrad", {"dy T[...y]", "x(shape) T[...x]"}),
      gradient("ReduceMeanGrad", {"dy T[...y]", "x(shape) T[...x]"}),
      gradient("ReduceMaxGrad", {"dy T[...y]", "x T[...x]", "y T[...y]"}),
      softmax("Softmax", "SoftmaxGrad"),
      softmax("LogSoftmax", "LogSoftmaxGrad"),
      softmax_gradient("SoftmaxGrad"),
      softmax_gradient("LogSoftmaxGrad"),
  };
}

}  // namespace muster
