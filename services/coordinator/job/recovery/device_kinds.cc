#include "services/coordinator/job/recovery/device_kinds.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "lib/status/utf8.h"

namespace muster {
namespace {

constexpr size_t kKindBytesMax = 1024;  // more than a kind has

}  // namespace

std::string PrintableKind(absl::string_view reported) {
  return Printable(reported.substr(0, kKindBytesMax));
}

std::string WordsNotIn(absl::string_view kind, absl::string_view other) {
  std::vector<absl::string_view> words = absl::StrSplit(kind, ", ");
  const std::vector<absl::string_view> others = absl::StrSplit(other, ", ");
  std::erase_if(words,
                [&](absl::string_view word) { return std::ranges::count(others, word) > 0; });
  return words.empty() ? std::string(kind) : absl::StrJoin(words, ", ");
}

std::string DifferenceOfKinds(absl::string_view first, absl::string_view kind,
                              absl::string_view second, absl::string_view other) {
  if (kind.empty() || other.empty() || kind == other) return "";
  return absl::StrCat(first, " computes with ", WordsNotIn(kind, other), ", ", second, " with ",
                      WordsNotIn(other, kind), ": bits would differ");
}

KindsOfWorkers CompareKinds(const JobMembers& members, absl::string_view trained) {
  KindsOfWorkers kinds;
  for (const std::string& name : members.workers()) {
    const std::string& kind = members.at(name).device_kind;
    if (kind.empty() || (!kinds.kind.empty() && kind != trained)) continue;
    kinds.kind = kind;
    kinds.first = name;
    if (kind == trained) break;
  }
  for (const std::string& name : members.workers()) {
    const std::string& kind = members.at(name).device_kind;
    if (!kind.empty() && kind != kinds.kind) kinds.others.push_back(name);
  }
  return kinds;
}

}  // namespace muster
