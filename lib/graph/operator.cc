#include "lib/graph/operator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "glog/logging.h"

namespace muster {

Operand::Operand(const char* signature) {
  const std::pair<absl::string_view, absl::string_view> halves =
      absl::StrSplit(signature, absl::MaxSplits(' ', 1));
  absl::string_view label = halves.first;
  if (absl::ConsumeSuffix(&label, "?")) arity = Arity::kOptional;
  if (absl::ConsumeSuffix(&label, "*")) arity = Arity::kMany;
  name = std::string(label);
  type = std::string(halves.second);

  absl::string_view rest = type;
  dtype = absl::StartsWith(rest, "i32") ? v1::DTYPE_I32 : v1::DTYPE_F32;
  CHECK(absl::ConsumePrefix(&rest, "f32[") || absl::ConsumePrefix(&rest, "i32[")) << signature;
  CHECK(absl::ConsumeSuffix(&rest, "]")) << signature;
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

bool Operator::is_loss() const {
  return !gradients.empty() && std::ranges::none_of(gradients, [](const GradientRule& rule) {
    return std::ranges::count(rule.inputs, "dy") > 0;
  });
}

}  // namespace muster
