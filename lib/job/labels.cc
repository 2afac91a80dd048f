#include "lib/job/labels.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr size_t kPartBytesMax = 63;     // of a key's name, and of a value
constexpr size_t kPrefixBytesMax = 253;  // of a key's prefix: a DNS name
constexpr size_t kShownBytesMax = 80;    // of the faulty text, in a message

bool IsLowerAlnum(char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c); }

bool IsPart(absl::string_view text) {
  return !text.empty() && text.size() <= kPartBytesMax && absl::ascii_isalnum(text.front()) &&
         absl::ascii_isalnum(text.back()) && std::ranges::all_of(text, [](char c) {
           return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
         });
}

bool IsDnsName(absl::string_view text) {
  if (text.empty() || text.size() > kPrefixBytesMax) return false;
  for (const absl::string_view word : absl::StrSplit(text, '.')) {
    if (word.empty() || !IsLowerAlnum(word.front()) || !IsLowerAlnum(word.back())) return false;
    if (!std::ranges::all_of(word, [](char c) { return IsLowerAlnum(c) || c == '-'; })) {
      return false;
    }
  }
  return true;
}

bool IsKey(absl::string_view key) {
  const size_t slash = key.find('/');
  if (slash == absl::string_view::npos) return IsPart(key);
  return IsDnsName(key.substr(0, slash)) && IsPart(key.substr(slash + 1));
}

bool IsValue(absl::string_view value) { return value.empty() || IsPart(value); }

constexpr char kKeyRule[] =
    "must be [PREFIX/]NAME: a name of at most 63 letters, digits, '-', '_' and '.' that begins and "
    "ends with a letter or digit, a prefix like example.com";
constexpr char kValueRule[] =
    "must be at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or "
    "digit";

std::string Shown(absl::string_view text) {
  return absl::StrCat("(is \"", text.substr(0, kShownBytesMax),
                      text.size() > kShownBytesMax ? "..." : "", "\")");
}

// Returns the labels by key. The order of a proto map differs between runs; faults should not.
std::map<std::string, std::string> Sorted(const LabelMap& labels) {
  return {labels.begin(), labels.end()};
}

// Returns false, and adds one fault with their number, if there are too many labels. The labels
// themselves are not checked then.
bool CheckCount(const std::string& field, const LabelMap& labels, FieldChecks& faults) {
  const auto count = static_cast<int64_t>(labels.size());
  if (count <= limits::kLabelsMax) return true;
  faults.Add(field, absl::StrCat("must be at most ", limits::kLabelsMax, " (are ", count, ")"));
  return false;
}

absl::Status NotUnderstood(absl::string_view text, absl::string_view why) {
  return WithReason(
      absl::InvalidArgumentError(absl::StrCat(
          "selector: '", text.substr(0, kShownBytesMax), "' ", why,
          "; write KEY=VALUE, KEY!=VALUE, KEY, !KEY, 'KEY in (A, B)' and 'KEY notin (A)', "
          "with commas between them")),
      "INVALID_REQUEST");
}

// Splits the text at commas outside of parentheses.
std::vector<absl::string_view> SplitRequirements(absl::string_view text) {
  std::vector<absl::string_view> parts;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '(') ++depth;
    if (text[i] == ')') --depth;
    if (text[i] != ',' || depth > 0) continue;
    parts.push_back(text.substr(begin, i - begin));
    begin = i + 1;
  }
  parts.push_back(text.substr(begin));
  return parts;
}

}  // namespace

void CheckLabels(const std::string& field, const LabelMap& labels, FieldChecks& faults) {
  if (!CheckCount(field, labels, faults)) return;
  for (const auto& [key, value] : Sorted(labels)) {
    if (!IsKey(key)) faults.Add(field, absl::StrCat("a key ", kKeyRule, " ", Shown(key)));
    if (!IsValue(value)) {
      faults.Add(absl::StrCat(field, ".", key.substr(0, kShownBytesMax)),
                 absl::StrCat(kValueRule, " ", Shown(value)));
    }
  }
}

void CheckAnnotations(const std::string& field, const LabelMap& annotations, FieldChecks& faults) {
  int64_t bytes = 0;
  for (const auto& [key, value] : annotations) {
    bytes += static_cast<int64_t>(key.size() + value.size());
  }
  if (bytes > limits::kAnnotationBytesMax) {
    return faults.Add(field, absl::StrCat("must be at most ", limits::kAnnotationBytesMax,
                                          " bytes together (are ", bytes, ")"));
  }
  for (const auto& [key, value] : Sorted(annotations)) {
    if (!IsKey(key)) faults.Add(field, absl::StrCat("a key ", kKeyRule, " ", Shown(key)));
  }
}

absl::StatusOr<LabelSelector> LabelSelector::Parse(absl::string_view text) {
  LabelSelector selector;
  if (static_cast<int64_t>(text.size()) > limits::kSelectorBytesMax) {
    return NotUnderstood(text,
                         absl::StrCat("... is longer than ", limits::kSelectorBytesMax, " bytes"));
  }
  if (absl::StripAsciiWhitespace(text).empty()) return selector;
  for (const absl::string_view part : SplitRequirements(text)) {
    const absl::string_view whole = absl::StripAsciiWhitespace(part);
    absl::string_view rest = whole;
    Requirement requirement;
    if (absl::ConsumePrefix(&rest, "!")) requirement.wanted = false;
    const size_t end = std::min(rest.find_first_of("=!( \t"), rest.size());
    const absl::string_view key = rest.substr(0, end);
    rest = absl::StripAsciiWhitespace(rest.substr(end));
    if (!IsKey(key)) return NotUnderstood(whole, "does not begin with the key of a label");
    requirement.key = std::string(key);
    std::vector<absl::string_view> values;
    if (requirement.wanted && !rest.empty()) {
      if (absl::ConsumePrefix(&rest, "!=")) {
        requirement.wanted = false;
        values = {rest};
      } else if (absl::ConsumePrefix(&rest, "==") || absl::ConsumePrefix(&rest, "=")) {
        values = {rest};
      } else {
        if (absl::ConsumePrefix(&rest, "notin")) {
          requirement.wanted = false;
        } else if (!absl::ConsumePrefix(&rest, "in")) {
          return NotUnderstood(whole, "has no operator after the key");
        }
        rest = absl::StripAsciiWhitespace(rest);
        if (!absl::ConsumePrefix(&rest, "(") || !absl::ConsumeSuffix(&rest, ")")) {
          return NotUnderstood(whole, "has no list in parentheses");
        }
        values = absl::StrSplit(rest, ',');
      }
      rest = "";
    }
    if (!rest.empty()) return NotUnderstood(whole, "has more text after the key");
    for (const absl::string_view value : values) {
      const absl::string_view trimmed = absl::StripAsciiWhitespace(value);
      if (!IsValue(trimmed)) return NotUnderstood(whole, "has a value that no label can have");
      requirement.values.emplace_back(trimmed);
    }
    selector.requirements_.push_back(std::move(requirement));
    // Every requirement is compared with every job, while other calls wait.
    if (std::ssize(selector.requirements_) > kRequirementsMax) {
      return NotUnderstood(whole, absl::StrCat("is one requirement more than ", kRequirementsMax));
    }
  }
  return selector;
}

bool LabelSelector::Matches(const LabelMap& labels) const {
  return std::ranges::all_of(requirements_, [&labels](const Requirement& requirement) {
    const auto label = labels.find(requirement.key);
    const bool holds =
        label != labels.end() &&
        (requirement.values.empty() || std::ranges::count(requirement.values, label->second) > 0);
    return holds == requirement.wanted;
  });
}

}  // namespace muster
