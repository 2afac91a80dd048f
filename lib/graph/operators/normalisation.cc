#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/graph/attributes.h"
#include "lib/graph/operators/families.h"

namespace muster {
namespace {

absl::Status RelateGroups(const v1::Node& node, Dimensions& dimensions) {
  const int64_t groups = IntegerAttribute(node, "groups");
  if (dimensions["channel"] % groups != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(groups, " groups do not divide ", dimensions["channel"], " channels"));
  }
  return dimensions.Bind("group", groups);
}

}  // namespace

std::vector<Operator> NormalisationOperators() {
  const AttributeRule epsilon = Number("epsilon").Default(1e-5).Within(0, 1);
  const std::vector<AttributeRule> batch_norm = {epsilon,
                                                 Integer("synchronised").Default(0).Within(0, 1)};
  const std::vector<AttributeRule> group_norm = {Integer("groups").Within(1, 1 << 20), epsilon};
  return {
      {.name = "BatchNorm",
       .inputs = {"x T[batch, channel, ...]", "running_mean(shape) f32[channel]",
                  "running_variance(shape) f32[channel]", "bias T[channel]", "gain? T[channel]"},
       .outputs = {"y T[batch, channel, ...]", "mean f32[channel]", "rstd f32[channel]",
                   "variance f32[channel]", "state state"},
       .attributes = batch_norm,
       .gradients = {{"BatchNormGrad",
                      {"dy", "x", "mean", "rstd", "state", "bias", "gain"},
                      {"x", "bias", "gain"}}}},
      {.name = "BatchNormGrad",
       .inputs = {"dy T[batch, channel, ...]", "x T[batch, channel, ...]", "mean f32[channel]",
                  "rstd f32[channel]", "state state", "bias(shape) T[channel]", "gain? T[channel]"},
       .outputs = {"dx T[batch, channel, ...]", "dbias T[channel]", "dgain? T[channel]"},
       .attributes = batch_norm},
      {.name = "BatchNormInference",
       .inputs = {"x T[batch, channel, ...]", "running_mean f32[channel]",
                  "running_variance f32[channel]", "bias T[channel]", "gain? T[channel]"},
       .outputs = {"y T[batch, channel, ...]"},
       .attributes = {epsilon}},
      {.name = "StatisticGrad",
       .inputs = {"statistic f32[channel]"},
       .outputs = {"contribution f32[channel]"}},

      {.name = "LayerNorm",
       .inputs = {"x T[..., channel]", "gain T[channel]", "bias? T[channel]"},
       .outputs = {"y T[..., channel]", "mean f32[...]", "rstd f32[...]"},
       .attributes = {epsilon},
       .gradients = {{"LayerNormGradParameters",
                      {"dy", "x", "mean", "rstd", "gain", "bias"},
                      {"gain", "bias"}},
                     {"LayerNormGradInput", {"dy", "x", "gain", "mean", "rstd"}, {"x"}}}},
      {.name = "LayerNormGradInput",
       .inputs = {"dy T[..., channel]", "x T[..., channel]", "gain T[channel]", "mean f32[...]",
                  "rstd f32[...]"},
       .outputs = {"dx T[..., channel]"},
       .attributes = {epsilon}},
      {.name = "LayerNormGradParameters",
       .inputs = {"dy T[..., channel]", "x T[..., channel]", "mean f32[...]", "rstd f32[...]",
                  "gain(shape) T[channel]", "bias?(shape) T[channel]"},
       .outputs = {"dgain T[channel]", "dbias? T[channel]"},
       .attributes = {epsilon}},

      {.name = "RmsNorm",
       .inputs = {"x T[..., channel]", "gain T[channel]"},
       .outputs = {"y T[..., channel]", "rstd f32[...]"},
       .attributes = {epsilon},
       .gradients = {{"RmsNormGradGain", {"dy", "x", "rstd"}, {"gain"}},
                     {"RmsNormGradInput", {"dy", "x", "gain", "rstd"}, {"x"}}}},
      {.name = "RmsNormGradInput",
       .inputs = {"dy T[..., channel]", "x T[..., channel]", "gain T[channel]", "rstd f32[...]"},
       .outputs = {"dx T[..., channel]"},
       .attributes = {epsilon}},
      {.name = "RmsNormGradGain",
       .inputs = {"dy T[..., channel]", "x T[..., channel]", "rstd f32[...]"},
       .outputs = {"dgain T[channel]"},
       .attributes = {epsilon}},

      {.name = "GroupNorm",
       .inputs = {"x T[batch, channel, ...]", "gain T[channel]", "bias T[channel]"},
       .outputs = {"y T[batch, channel, ...]", "mean f32[batch, group]", "rstd f32[batch, group]"},
       .attributes = group_norm,
       .relate = RelateGroups,
       .gradients = {{"GroupNormGradParameters", {"dy", "x", "mean", "rstd"}, {"gain", "bias"}},
                     {"GroupNormGradInput", {"dy", "x", "gain", "mean", "rstd"}, {"x"}}}},
      {.name = "GroupNormGradInput",
       .inputs = {"dy T[batch, channel, ...]", "x T[batch, channel, ...]", "gain T[channel]",
                  "mean f32[batch, group]", "rstd f32[batch, group]"},
       .outputs = {"dx T[batch, channel, ...]"},
       .attributes = group_norm,
       .relate = RelateGroups},
      {.name = "GroupNormGradParameters",
       .inputs = {"dy T[batch, channel, ...]", "x T[batch, channel, ...]", "mean f32[batch, group]",
                  "rstd f32[batch, group]"},
       .outputs = {"dgain T[channel]", "dbias T[channel]"},
       .attributes = group_norm,
       .relate = RelateGroups},
  };
}

}  // namespace muster
