#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/graph/attributes.h"
#include "lib/graph/operators/families.h"
#include "lib/status/status.h"

namespace muster {
namespace {

absl::Status RelateRecurrence(const v1::Node& node, int64_t gates, Dimensions& dimensions) {
  const int64_t directions = dimensions["direction"];
  const int64_t hidden = dimensions["hidden"];
  if (directions > 2) {
    return absl::InvalidArgumentError(absl::StrCat(directions, " directions, must be 1 or 2"));
  }
  if (directions == 2 && IntegerAttribute(node, "reverse") != 0) {
    return absl::InvalidArgumentError("two directions cannot be reversed");
  }
  for (const char* word : {"gate", "bias"}) {
    const int64_t want = gates * hidden * (word[0] == 'b' ? 2 : 1);
    if (dimensions[word] != want) {
      return absl::InvalidArgumentError(absl::StrCat(word, " dimension ", dimensions[word],
                                                     " is not ", want, " for ", hidden, " hidden"));
    }
  }
  return dimensions.Bind("output", directions * hidden);
}

absl::Status RelateLstm(const v1::Node& node, Dimensions& dimensions) {
  return RelateRecurrence(node, 4, dimensions);
}

absl::Status RelateGru(const v1::Node& node, Dimensions& dimensions) {
  return RelateRecurrence(node, 3, dimensions);
}

constexpr const char* kX = "x T[batch, time, inner]";
constexpr const char* kW = "w T[direction, gate, inner]";
constexpr const char* kR = "r T[direction, gate, hidden]";
constexpr const char* kBias = "bias T[direction, bias]";
constexpr const char* kH0 = "h0? T[direction, batch, hidden]";
constexpr const char* kC0 = "c0? T[direction, batch, hidden]";
constexpr const char* kY = "y T[batch, time, output]";

}  // namespace

std::vector<Operator> RecurrenceOperators() {
  const std::vector<AttributeRule> attributes = {Integer("reverse").Default(0).Within(0, 1)};
  return {
      {.name = "Lstm",
       .inputs = {kX, kW, kR, kBias, kH0, kC0},
       .outputs = {kY, "h T[direction, batch, hidden]", "c T[direction, batch, hidden]",
                   "state state"},
       .attributes = attributes,
       .relate = RelateLstm,
       .gradients = {{"LstmGrad",
                      {"dy", "dh", "dc", "x", "w", "r", "bias", "y", "state", "h0", "c0"},
                      {"x", "w", "r", "bias", "h0", "c0"}}}},
      {.name = "LstmGrad",
       .inputs = {"dy T[batch, time, output]", "dh T[direction, batch, hidden]",
                  "dc T[direction, batch, hidden]", kX, kW, kR, kBias, kY, "state state", kH0, kC0},
       .outputs = {"dx T[batch, time, inner]", "dw T[direction, gate, inner]",
                   "dr T[direction, gate, hidden]", "dbias T[direction, bias]",
                   "dh0? T[direction, batch, hidden]", "dc0? T[direction, batch, hidden]"},
       .attributes = attributes,
       .relate = RelateLstm},
      {.name = "Gru",
       .inputs = {kX, kW, kR, kBias, kH0},
       .outputs = {kY, "h T[direction, batch, hidden]", "state state"},
       .attributes = attributes,
       .relate = RelateGru,
       .gradients = {{"GruGrad",
                      {"dy", "dh", "x", "w", "r", "bias", "y", "state", "h0"},
                      {"x", "w", "r", "bias", "h0"}}}},
      {.name = "GruGrad",
       .inputs = {"dy T[batch, time, output]", "dh T[direction, batch, hidden]", kX, kW, kR, kBias,
                  kY, "state state", kH0},
       .outputs = {"dx T[batch, time, inner]", "dw T[direction, gate, inner]",
                   "dr T[direction, gate, hidden]", "dbias T[direction, bias]",
                   "dh0? T[direction, batch, hidden]"},
       .attributes = attributes,
       .relate = RelateGru},
  };
}

}  // namespace muster
