#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "lib/graph/attributes.h"
#include "lib/graph/operators/families.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr double kHeadsMax = 1 << 20;

template <typename... Parts>
absl::Status InvalidAttention(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

absl::Status RelateHeads(int64_t heads, absl::string_view word, Dimensions& dimensions) {
  if (dimensions[word] % heads == 0) return absl::OkStatus();
  return InvalidAttention(heads, " heads do not divide ", dimensions[word], " ", word, "s");
}

// Checks the optional mask: it is [B or 1, H or 1, T or 1, S].
absl::Status RelateMask(Dimensions& dimensions) {
  for (absl::string_view word : {"batch", "head", "time"}) {
    const std::string own = absl::StrCat("mask ", word);
    if (!dimensions.contains(own) || dimensions[own] == 1) continue;
    if (dimensions[own] != dimensions[word]) {
      return InvalidAttention(own, " dimension ", dimensions[own], " is neither 1 nor ",
                              dimensions[word]);
    }
  }
  return absl::OkStatus();
}

absl::Status RelateSelfAttention(const v1::Node& node, Dimensions& dimensions) {
  const int64_t triple = dimensions["triple"];
  if (triple % 3 != 0)
    return InvalidAttention("the last dimension ", triple, " is not 3 x channels");
  const int64_t heads = IntegerAttribute(node, "heads");
  RETURN_IF_ERROR(dimensions.Bind("channel", triple / 3));
  RETURN_IF_ERROR(RelateHeads(heads, "channel", dimensions));
  RETURN_IF_ERROR(dimensions.Bind("head", heads));
  return RelateMask(dimensions);
}

absl::Status RelateAttention(const v1::Node& node, Dimensions& dimensions) {
  const int64_t heads = IntegerAttribute(node, "heads");
  RETURN_IF_ERROR(RelateHeads(heads, "channel", dimensions));
  RETURN_IF_ERROR(RelateHeads(heads, "value channel", dimensions));
  RETURN_IF_ERROR(dimensions.Bind("head", heads));
  if (IntegerAttribute(node, "causal") != 0 && dimensions["source"] < dimensions["time"]) {
    return InvalidAttention("causal: the first of ", dimensions["time"], " queries see none of ",
                            dimensions["source"], " keys");
  }
  return RelateMask(dimensions);
}

}  // namespace

std::vector<Operator> AttentionOperators() {
  const AttributeRule heads = Integer("heads").Within(1, kHeadsMax);
  const AttributeRule causal = Integer("causal").Default(0).Within(0, 1);
  const std::vector<AttributeRule> self = {heads, causal};
  const std::vector<AttributeRule> cross = {heads, causal, Number("scale").Optional()};
  constexpr const char* kQkv = "qkv T[batch, time, triple]";
  constexpr const char* kSelfMask = "mask? f32[mask batch, mask head, mask time, time]";
  constexpr const char* kQ = "q T[batch, time, channel]";
  constexpr const char* kK = "k T[batch, source, channel]";
  constexpr const char* kV = "v T[batch, source, value channel]";
  constexpr const char* kMask = "mask? f32[mask batch, mask head, mask time, source]";
  constexpr const char* kLse = "lse f32[batch, head, time]";
  return {
      {.name = "SelfAttention",
       .inputs = {kQkv, kSelfMask},
       .outputs = {"y T[batch, time, channel]", kLse},
       .attributes = self,
       .relate = RelateSelfAttention,
       .gradients = {{"SelfAttentionGrad", {"dy", "qkv", "y", "lse", "mask"}, {"qkv"}}}},
      {.name = "SelfAttentionGrad",
       .inputs = {"dy T[batch, time, channel]", kQkv, "y T[batch, time, channel]", kLse, kSelfMask},
       .outputs = {"dqkv T[batch, time, triple]"},
       .attributes = self,
       .relate = RelateSelfAttention},
      {.name = "Attention",
       .inputs = {kQ, kK, kV, kMask},
       .outputs = {"y T[batch, time, value channel]", kLse},
       .attributes = cross,
       .relate = RelateAttention,
       .gradients = {{"AttentionGrad",
                      {"dy", "q", "k", "v", "y", "lse", "mask"},
                      {"q", "k", "v"}}}},
      {.name = "AttentionGrad",
       .inputs = {"dy T[batch, time, value channel]", kQ, kK, kV, "y T[batch, time, value channel]",
                  kLse, kMask},
       .outputs = {"dq T[batch, time, channel]", "dk T[batch, source, channel]",
                   "dv T[batch, source, value channel]"},
       .attributes = cross,
       .relate = RelateAttention},
  };
}

}  // namespace muster
