#include "lib/job/resource_name.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "lib/limits/limits.h"

namespace muster {
namespace {

// A job id is a name, "-" and a number, so it may be longer than a name.
constexpr size_t kJobIdBytesMax = limits::kNameBytesMax + 1 + 20;

bool IsLabel(absl::string_view text, size_t bytes_max) {
  auto inner = [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-'; };
  return !text.empty() && text.size() <= bytes_max && text.front() != '-' && text.back() != '-' &&
         std::all_of(text.begin(), text.end(), inner);
}

}  // namespace

std::string JobName(absl::string_view job) { return absl::StrCat("jobs/", job); }

std::string JobIdOf(absl::string_view name) {
  return std::string(absl::StripPrefix(name, "jobs/"));
}

std::string CheckpointName(absl::string_view job, int64_t step) {
  return absl::StrCat("jobs/", job, "/checkpoints/", step);
}

std::string CheckpointId(absl::string_view job, int64_t step) {
  return absl::StrCat(job, "@", step);
}

std::string CheckpointIdOf(absl::string_view name) {
  const auto reference = ParseCheckpointRef(name);
  return reference && reference->step ? CheckpointId(reference->job, *reference->step)
                                      : std::string(name);
}

std::optional<CheckpointRef> ParseCheckpointRef(absl::string_view text) {
  std::vector<absl::string_view> parts;
  if (absl::StartsWith(text, "jobs/")) {
    parts = absl::StrSplit(absl::StripPrefix(text, "jobs/"), "/checkpoints/");
  } else {
    parts = absl::StrSplit(text, '@');
  }
  if (parts.size() > 2 || !IsLabel(parts[0], kJobIdBytesMax)) return std::nullopt;
  CheckpointRef reference{.job = std::string(parts[0])};
  if (parts.size() == 2) {
    int64_t step = 0;
    if (!absl::SimpleAtoi(parts[1], &step) || step < 0) return std::nullopt;
    reference.step = step;
  }
  return reference;
}

bool IsValidName(absl::string_view name) { return IsLabel(name, limits::kNameBytesMax); }

}  // namespace muster
