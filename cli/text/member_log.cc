#include "cli/text/member_log.h"

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace muster::cli {
namespace {

// Returns the text after "I20261129 02:11:46.746656  2376 parameter_server.cc:99] ", or nullopt if
// the line has no such prefix.
std::optional<absl::string_view> MessageOf(absl::string_view line) {
  constexpr size_t kDateBytes = 8;
  constexpr absl::string_view kSeverities = "IWEF";
  const size_t end = line.find("] ");
  if (end == absl::string_view::npos || line.size() < 1 + kDateBytes) return std::nullopt;
  const absl::string_view date = line.substr(1, kDateBytes);
  if (kSeverities.find(line[0]) == absl::string_view::npos ||
      !std::ranges::all_of(date, absl::ascii_isdigit)) {
    return std::nullopt;
  }
  return line.substr(end + 2);
}

// Returns the id at the start of the message: a name, a minus and a number. Returns "" if the
// message begins otherwise.
absl::string_view LeadingId(absl::string_view message) {
  const size_t size =
      std::ranges::find_if_not(
          message,
          [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-'; }) -
      message.begin();
  const absl::string_view id = message.substr(0, size), rest = message.substr(size);
  const size_t minus = id.rfind('-');
  const bool is_id = minus != absl::string_view::npos && minus > 0 && minus + 1 < id.size() &&
                     std::ranges::all_of(id.substr(minus + 1), absl::ascii_isdigit);
  const bool ends = absl::StartsWith(rest, ":") || absl::StartsWith(rest, ",") ||
                    absl::StartsWith(rest, " generation ") || absl::StartsWith(rest, " cannot ");
  return is_id && ends ? id : absl::string_view();
}

}  // namespace

std::string WithoutOtherJobs(absl::string_view text, absl::string_view job,
                             absl::string_view member) {
  std::string kept;
  bool keeps = true;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (const auto message = MessageOf(line)) {
      const absl::string_view id = LeadingId(*message);
      keeps = id.empty() || id == job || id == member;
    }
    if (keeps) absl::StrAppend(&kept, line, "\n");
  }
  return kept;
}

}  // namespace muster::cli
