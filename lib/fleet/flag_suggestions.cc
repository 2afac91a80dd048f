#include "lib/fleet/flag_suggestions.h"

#include <algorithm>
#include <fstream>

#include "absl/flags/reflection.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "lib/suggestion/suggestion.h"

namespace muster {
namespace {

constexpr int kFileDepthMax = 8;  // nesting of flag files that name flag files

std::vector<std::string> FlagNames() {
  std::vector<std::string> names;
  for (const auto& [name, flag] : absl::GetAllFlags()) names.emplace_back(name);
  std::ranges::sort(names);
  return names;
}

// The lines of a flag file, without surrounding blanks.
std::vector<std::string> ReadFlagFile(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    lines.emplace_back(absl::StripAsciiWhitespace(line));
  }
  return lines;
}

void Suggest(absl::Span<const std::string> arguments, const std::vector<std::string>& known,
             int depth, std::vector<std::string>& lines) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    absl::string_view name = arguments[i];
    if (name == "--") return;  // flags end here
    if (!absl::ConsumePrefix(&name, "-")) continue;
    absl::ConsumePrefix(&name, "-");
    const size_t equals = name.find('=');
    const bool has_value = equals != absl::string_view::npos;
    const std::string value = has_value                  ? std::string(name.substr(equals + 1))
                              : i + 1 < arguments.size() ? arguments[i + 1]
                                                         : "";
    name = name.substr(0, equals);
    if (name == "flagfile") {
      if (depth == kFileDepthMax) continue;
      for (const absl::string_view path : absl::StrSplit(value, ',', absl::SkipEmpty())) {
        Suggest(ReadFlagFile(std::string(path)), known, depth + 1, lines);
      }
      continue;
    }
    absl::string_view positive = name;
    const bool is_known =
        absl::FindCommandLineFlag(name) != nullptr ||
        (absl::ConsumePrefix(&positive, "no") && absl::FindCommandLineFlag(positive) != nullptr);
    if (is_known) continue;
    if (const std::string nearest = NearestName(name, known); !nearest.empty()) {
      lines.push_back(absl::StrCat("--", name, ": did you mean --", nearest, "?"));
    }
  }
}

}  // namespace

std::vector<std::string> SuggestFlags(absl::Span<const std::string> arguments) {
  std::vector<std::string> lines;
  Suggest(arguments, FlagNames(), 0, lines);
  return lines;
}

}  // namespace muster
