#include "lib/graph/operator.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "glog/logging.h"
#include "lib/graph/operators/families.h"

namespace muster {
namespace {

AttributeRule Rule(absl::string_view name, v1::Attribute::ValueCase kind) {
  return {.name = name, .kind = kind};
}

std::vector<Operator> AllFamilies() {
  std::vector<Operator> all;
  for (auto family : {MatrixOperators, ImageOperators, NormalisationOperators, ElementwiseOperators,
                      ReductionOperators, ShapeOperators, AttentionOperators, RecurrenceOperators,
                      LossOperators, CollectiveOperators, FusedOperators}) {
    std::ranges::move(family(), std::back_inserter(all));
  }
  return all;
}

}  // namespace

Operand::Operand(const char* signature) {
  const std::pair<absl::string_view, absl::string_view> halves =
      absl::StrSplit(signature, absl::MaxSplits(' ', 1));
  absl::string_view label = halves.first;
  shape_only = absl::ConsumeSuffix(&label, "(shape)");
  if (absl::ConsumeSuffix(&label, "?")) arity = Arity::kOptional;
  if (absl::ConsumeSuffix(&label, "*")) arity = Arity::kMany;
  name = std::string(label);
  type = std::string(halves.second);

  absl::string_view rest = type;
  dtype = std::string(rest.substr(0, rest.find('[')));
  rest.remove_prefix(dtype.size());
  if (dtype == "state") return;
  CHECK(absl::ConsumePrefix(&rest, "[") && absl::ConsumeSuffix(&rest, "]")) << signature;
  if (!rest.empty()) words = absl::StrSplit(rest, ", ");
}

absl::Status Dimensions::Bind(absl::string_view word, absl::Span<const int64_t> sizes) {
  auto [known, added] = sizes_.try_emplace(word, sizes.begin(), sizes.end());
  if (added || sizes == known->second) return absl::OkStatus();
  if (!absl::StartsWith(word, "...")) {
    return absl::InvalidArgumentError(absl::StrCat(word, " dimensions ", known->second.front(),
                                                   " and ", sizes.front(), " differ"));
  }
  return absl::InvalidArgumentError(absl::StrCat("dimensions [", absl::StrJoin(known->second, ", "),
                                                 "] and [", absl::StrJoin(sizes, ", "),
                                                 "] differ"));
}

int64_t Dimensions::operator[](absl::string_view word) const { return Run(word).front(); }

const std::vector<int64_t>& Dimensions::Run(absl::string_view word) const {
  auto known = sizes_.find(word);
  CHECK(known != sizes_.end()) << "signature without '" << word << "'";
  return known->second;
}

AttributeRule Integer(absl::string_view name) { return Rule(name, v1::Attribute::kI); }
AttributeRule Number(absl::string_view name) { return Rule(name, v1::Attribute::kF); }
AttributeRule Word(absl::string_view name) { return Rule(name, v1::Attribute::kS); }
AttributeRule Integers(absl::string_view name) { return Rule(name, v1::Attribute::kIntegers); }
AttributeRule Numbers(absl::string_view name) { return Rule(name, v1::Attribute::kNumbers); }

AttributeRule AttributeRule::Default(std::vector<double> values) const {
  AttributeRule rule = *this;
  rule.absence = Absence::kDefault;
  rule.values = std::move(values);
  return rule;
}

AttributeRule AttributeRule::DefaultOf(absl::string_view attribute) const {
  AttributeRule rule = *this;
  rule.absence = Absence::kDefault;
  rule.same_as = attribute;
  return rule;
}

AttributeRule AttributeRule::Optional() const {
  AttributeRule rule = *this;
  rule.absence = Absence::kMeaning;
  return rule;
}

AttributeRule AttributeRule::Within(double min, double max) const {
  AttributeRule rule = *this;
  rule.min = min;
  rule.max = max;
  return rule;
}

AttributeRule AttributeRule::Length(int64_t length) const {
  AttributeRule rule = *this;
  rule.length = length;
  return rule;
}

AttributeRule AttributeRule::OneOf(std::vector<absl::string_view> words) const {
  AttributeRule rule = *this;
  rule.words = std::move(words);
  return rule;
}

AttributeRule AttributeRule::DefaultFirst() const {
  AttributeRule rule = *this;
  rule.absence = Absence::kDefault;
  return rule;
}

bool Operator::is_loss() const {
  return !gradients.empty() && std::ranges::none_of(gradients, [](const GradientRule& rule) {
    return std::ranges::count(rule.inputs, "dy") > 0;
  });
}

const Operand& Operator::input(int i) const {
  return inputs[std::min<size_t>(i, inputs.size() - 1)];
}

const Operand& Operator::output(int i) const {
  return outputs[std::min<size_t>(i, outputs.size() - 1)];
}

const std::vector<Operator>& Operators() {
  static const auto& operators = *new std::vector<Operator>(AllFamilies());
  return operators;
}

const Operator* FindOperator(absl::string_view name) {
  static const auto& by_name = *[] {
    auto* index = new absl::flat_hash_map<absl::string_view, const Operator*>;
    for (const Operator& op : Operators()) {
      CHECK(index->emplace(op.name, &op).second) << op.name << " is in the table twice";
    }
    return index;
  }();
  auto found = by_name.find(name);
  return found == by_name.end() ? nullptr : found->second;
}

}  // namespace muster
