#include "lib/job/yaml/located_fault.h"

#include <cstddef>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace muster {
namespace {

constexpr size_t kFaultsMax = 50;  // more lines would not help

}  // namespace

absl::Status LocatedFaultsToStatus(const std::vector<LocatedFault>& faults) {
  std::vector<FieldFault> fields;
  std::vector<std::string> lines;
  for (const LocatedFault& located : faults) {
    if (lines.size() == kFaultsMax) {
      lines.push_back(absl::StrCat("... and ", faults.size() - kFaultsMax, " more"));
      break;
    }
    fields.push_back(located.fault);
    lines.push_back(absl::StrCat(located.place, ": ", located.fault.field,
                                 located.fault.field.empty() ? "" : ": ",
                                 located.fault.description));
  }
  const absl::Status unplaced = FaultsToStatus(fields);
  absl::Status status(unplaced.code(), absl::StrJoin(lines, "\n"));
  unplaced.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { status.SetPayload(url, payload); });
  return status;
}

}  // namespace muster
