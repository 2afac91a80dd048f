// The rows of ops.md, one function per family. A new operator is a new row here (and a kernel in
// the engine).
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "lib/graph/operator.h"
#include "lib/status/status.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {
namespace {

constexpr double kWindowMax =
    1 << 20;  // beyond every image; keeps window arithmetic far from overflow
constexpr double kHeadsMax = 1 << 20;

int64_t Integer(const v1::Node& node, const std::string& attribute, int64_t value_if_absent) {
  auto found = node.attributes().find(attribute);
  return found == node.attributes().end() ? value_if_absent : found->second.i();
}

// ---------------------------------------------------------------- linear

std::vector<Operator> LinearFamily() {
  return {
      {.name = "Linear",
       .inputs = {"x f32[..., inner]", "w f32[outer, inner]", "bias? f32[outer]"},
       .outputs = {"y f32[..., outer]"},
       .gradients = {{"LinearGradBias", {"dy"}, {"bias"}},
                     {"LinearGradWeight", {"dy", "x"}, {"w"}},
                     {"LinearGradInput", {"dy", "w"}, {"x"}}}},
      {.name = "LinearGradInput",
       .inputs = {"dy f32[..., outer]", "w f32[outer, inner]"},
       .outputs = {"dx f32[..., inner]"}},
      {.name = "LinearGradWeight",
       .inputs = {"dy f32[..., outer]", "x f32[..., inner]"},
       .outputs = {"dw f32[outer, inner]"}},
      {.name = "LinearGradBias", .inputs = {"dy f32[..., outer]"}, .outputs = {"db f32[outer]"}},
  };
}

// ---------------------------------------------------------------- windows over images

absl::Status RelateWindow(Dimensions& dimensions, int64_t kernel, int64_t stride, int64_t padding) {
  for (absl::string_view side : {"height", "width"}) {
    const int64_t padded = dimensions[side] + 2 * padding;
    if (kernel > padded) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a kernel of ", kernel, " does not fit into the padded ", side, " of ", padded));
    }
    RETURN_IF_ERROR(dimensions.Bind(absl::StrCat("output ", side), (padded - kernel) / stride + 1));
  }
  return absl::OkStatus();
}

absl::Status RelateConv2d(const v1::Node& node, Dimensions& dimensions) {
  return RelateWindow(dimensions, dimensions["kernel"], Integer(node, "stride", 1),
                      Integer(node, "padding", 0));
}

absl::Status RelateMaxPool2d(const v1::Node& node, Dimensions& dimensions) {
  const int64_t kernel = Integer(node, "kernel", 0);
  return RelateWindow(dimensions, kernel, Integer(node, "stride", kernel), /*padding=*/0);
}

constexpr const char* kImage = "x f32[batch, channel, height, width]";
constexpr const char* kConvWeight = "w f32[output channel, channel, kernel, kernel]";
constexpr const char* kConvGradient = "dy f32[batch, output channel, output height, output width]";

std::vector<Operator> Conv2dFamily() {
  const std::vector<AttributeRule> attributes = {
      {"stride", v1::Attribute::kI, /*required=*/false, 1, kWindowMax},
      {"padding", v1::Attribute::kI, /*required=*/false, 0, kWindowMax}};
  return {
      {.name = "Conv2d",
       .inputs = {kImage, kConvWeight, "bias? f32[output channel]"},
       .outputs = {"y f32[batch, output channel, output height, output width]"},
       .attributes = attributes,
       .relate = RelateConv2d,
       .gradients = {{"Conv2dGradBias", {"dy"}, {"bias"}},
                     {"Conv2dGradWeight", {"dy", "x", "w"}, {"w"}},
                     {"Conv2dGradInput", {"dy", "w", "x"}, {"x"}}}},
      {.name = "Conv2dGradInput",
       .inputs = {kConvGradient, kConvWeight, kImage},
       .outputs = {"dx f32[batch, channel, height, width]"},
       .attributes = attributes,
       .relate = RelateConv2d},
      {.name = "Conv2dGradWeight",
       .inputs = {kConvGradient, kImage, kConvWeight},
       .outputs = {"dw f32[output channel, channel, kernel, kernel]"},
       .attributes = attributes,
       .relate = RelateConv2d},
      {.name = "Conv2dGradBias", .inputs = {kConvGradient}, .outputs = {"db f32[output channel]"}},
  };
}

std::vector<Operator> MaxPool2dFamily() {
  const std::vector<AttributeRule> attributes = {
      {"kernel", v1::Attribute::kI, /*required=*/true, 1, kWindowMax},
      {"stride", v1::Attribute::kI, /*required=*/false, 1, kWindowMax}};
  return {
      {.name = "MaxPool2d",
       .inputs = {kImage},
       .outputs = {"y f32[batch, channel, output height, output width]"},
       .attributes = attributes,
       .relate = RelateMaxPool2d,
       .gradients = {{"MaxPool2dGrad", {"dy", "x", "y"}, {"x"}}}},
      {.name = "MaxPool2dGrad",
       .inputs = {"dy f32[batch, channel, output height, output width]", kImage,
                  "y f32[batch, channel, output height, output width]"},
       .outputs = {"dx f32[batch, channel, height, width]"},
       .attributes = attributes,
       .relate = RelateMaxPool2d},
  };
}

// ---------------------------------------------------------------- elementwise

std::vector<Operator> ActivationFamily() {
  return {
      {.name = "Relu",
       .inputs = {"x f32[...]"},
       .outputs = {"y f32[...]"},
       .gradients = {{"ReluGrad", {"dy", "y"}, {"x"}}}},
      {.name = "ReluGrad", .inputs = {"dy f32[...]", "y f32[...]"}, .outputs = {"dx f32[...]"}},
      {.name = "Gelu",
       .inputs = {"x f32[...]"},
       .outputs = {"y f32[...]"},
       .gradients = {{"GeluGrad", {"dy", "x"}, {"x"}}}},
      {.name = "GeluGrad", .inputs = {"dy f32[...]", "x f32[...]"}, .outputs = {"dx f32[...]"}},
  };
}

absl::Status RelateAdd(const v1::Node&, Dimensions& dimensions) {
  const std::vector<int64_t>& all = dimensions.Run("...");
  const std::vector<int64_t>& suffix = dimensions.Run("...suffix");
  if (suffix.size() > all.size() || !std::equal(suffix.rbegin(), suffix.rend(), all.rbegin())) {
    return absl::InvalidArgumentError("the second shape is not a suffix of the first");
  }
  return absl::OkStatus();
}

std::vector<Operator> AddFamily() {
  return {
      {.name = "Add",
       .inputs = {"a f32[...]", "b f32[...suffix]"},
       .outputs = {"y f32[...]"},
       .relate = RelateAdd,
       .gradients = {{"AddGrad", {"dy", "a"}, {"a"}, /*identity_if_same_shape=*/true},
                     {"AddGrad", {"dy", "b"}, {"b"}, /*identity_if_same_shape=*/true}}},
      {.name = "AddGrad",
       .inputs = {"dy f32[...]", "b f32[...suffix]"},
       .outputs = {"db f32[...suffix]"},
       .relate = RelateAdd},
      {.name = "Accumulate", .inputs = {"x* f32[...]"}, .outputs = {"y f32[...]"}},
  };
}

// ---------------------------------------------------------------- shape

absl::Status RelateFlatten(const v1::Node&, Dimensions& dimensions) {
  int64_t product = 1;
  for (int64_t size : dimensions.Run("...")) product *= size;
  return dimensions.Bind("product", product);
}

std::vector<Operator> FlattenFamily() {
  return {
      {.name = "Flatten",
       .inputs = {"x f32[batch, ...]"},
       .outputs = {"y f32[batch, product]"},
       .relate = RelateFlatten,
       .gradients = {{"FlattenGrad", {"dy", "x"}, {"x"}}}},
      {.name = "FlattenGrad",
       .inputs = {"dy f32[batch, product]", "x f32[batch, ...]"},
       .outputs = {"dx f32[batch, ...]"},
       .relate = RelateFlatten},
  };
}

// ---------------------------------------------------------------- transformer

std::vector<Operator> EmbeddingFamily() {
  return {
      {.name = "Embedding",
       .inputs = {"ids i32[...]", "table f32[vocabulary, channel]"},
       .outputs = {"y f32[..., channel]"},
       .gradients = {{"EmbeddingGrad", {"dy", "ids", "table"}, {"table"}}}},
      {.name = "EmbeddingGrad",
       .inputs = {"dy f32[..., channel]", "ids i32[...]", "table f32[vocabulary, channel]"},
       .outputs = {"dtable f32[vocabulary, channel]"}},
  };
}

std::vector<Operator> LayerNormFamily() {
  return {
      {.name = "LayerNorm",
       .inputs = {"x f32[..., channel]", "gain f32[channel]", "bias f32[channel]"},
       .outputs = {"y f32[..., channel]", "mean f32[...]", "rstd f32[...]"},
       .attributes = {{"epsilon", v1::Attribute::kF, /*required=*/false, 0, 1}},
       .gradients = {{"LayerNormGradParameters", {"dy", "x", "mean", "rstd"}, {"gain", "bias"}},
                     {"LayerNormGradInput", {"dy", "x", "gain", "mean", "rstd"}, {"x"}}}},
      {.name = "LayerNormGradInput",
       .inputs = {"dy f32[..., channel]", "x f32[..., channel]", "gain f32[channel]",
                  "mean f32[...]", "rstd f32[...]"},
       .outputs = {"dx f32[..., channel]"}},
      {.name = "LayerNormGradParameters",
       .inputs = {"dy f32[..., channel]", "x f32[..., channel]", "mean f32[...]", "rstd f32[...]"},
       .outputs = {"dgain f32[channel]", "dbias f32[channel]"}},
  };
}

absl::Status RelateAttention(const v1::Node& node, Dimensions& dimensions) {
  const int64_t triple = dimensions["triple"];
  const int64_t heads = Integer(node, "heads", 0);
  if (triple % 3 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the last dimension ", triple, " is not 3 x channels"));
  }
  if (triple / 3 % heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(heads, " heads do not divide ", triple / 3, " channels"));
  }
  RETURN_IF_ERROR(dimensions.Bind("channel", triple / 3));
  return dimensions.Bind("head", heads);
}

std::vector<Operator> CausalAttentionFamily() {
  const std::vector<AttributeRule> attributes = {
      {"heads", v1::Attribute::kI, /*required=*/true, 1, kHeadsMax}};
  return {
      {.name = "CausalAttention",
       .inputs = {"qkv f32[batch, time, triple]"},
       .outputs = {"y f32[batch, time, channel]", "probabilities f32[batch, head, time, time]"},
       .attributes = attributes,
       .relate = RelateAttention,
       .gradients = {{"CausalAttentionGrad", {"dy", "qkv", "probabilities"}, {"qkv"}}}},
      {.name = "CausalAttentionGrad",
       .inputs = {"dy f32[batch, time, channel]", "qkv f32[batch, time, triple]",
                  "probabilities f32[batch, head, time, time]"},
       .outputs = {"dqkv f32[batch, time, triple]"},
       .attributes = attributes,
       .relate = RelateAttention},
  };
}

// ---------------------------------------------------------------- losses and counts

std::vector<Operator> LossFamily() {
  return {
      {.name = "SoftmaxCrossEntropy",
       .inputs = {"logits f32[..., class]", "target i32[...]"},
       .outputs = {"loss f32[]", "probabilities f32[..., class]"},
       .gradients = {{"SoftmaxCrossEntropyGrad", {"probabilities", "target"}, {"logits"}}}},
      {.name = "SoftmaxCrossEntropyGrad",
       .inputs = {"probabilities f32[..., class]", "target i32[...]"},
       .outputs = {"dlogits f32[..., class]"}},
      {.name = "MeanSquaredError",
       .inputs = {"prediction f32[...]", "target f32[...]"},
       .outputs = {"loss f32[]"},
       .gradients = {{"MeanSquaredErrorGrad", {"prediction", "target"}, {"prediction"}}}},
      {.name = "MeanSquaredErrorGrad",
       .inputs = {"prediction f32[...]", "target f32[...]"},
       .outputs = {"dprediction f32[...]"}},
      {.name = "CorrectCount",
       .inputs = {"logits f32[..., class]", "target i32[...]"},
       .outputs = {"count f32[]"}},
  };
}

std::vector<Operator> AllFamilies() {
  std::vector<Operator> all;
  for (auto family :
       {LinearFamily, Conv2dFamily, MaxPool2dFamily, ActivationFamily, AddFamily, FlattenFamily,
        EmbeddingFamily, LayerNormFamily, CausalAttentionFamily, LossFamily}) {
    std::ranges::move(family(), std::back_inserter(all));
  }
  return all;
}

}  // namespace

const std::vector<Operator>& Operators() {
  static const auto& operators = *new std::vector<Operator>(AllFamilies());
  return operators;
}

const Operator* FindOperator(absl::string_view name) {
  static const auto& by_name = *[] {
    auto* index = new absl::flat_hash_map<absl::string_view, const Operator*>;
    for (const Operator& op : Operators()) index->emplace(op.name, &op);
    return index;
  }();
  auto found = by_name.find(name);
  return found == by_name.end() ? nullptr : found->second;
}

}  // namespace muster
