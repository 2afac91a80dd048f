#include "services/coordinator/job/job_update.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/job/labels.h"

namespace muster {
namespace {

bool SameEntries(const LabelMap& a, const LabelMap& b) {
  return a.size() == b.size() && std::ranges::all_of(a, [&b](const auto& entry) {
           const auto other = b.find(entry.first);
           return other != b.end() && other->second == entry.second;
         });
}

}  // namespace

void TakeOver(absl::string_view path, const v1::JobSpec& from, v1::JobSpec& to) {
  if (path == "priority") to.set_priority(from.priority());
  if (path == "labels") *to.mutable_labels() = from.labels();
  if (path == "annotations") *to.mutable_annotations() = from.annotations();
  if (path == "checkpoint.keep_last") {
    v1::CheckpointSpec& checkpoint = *to.mutable_checkpoint();
    checkpoint.clear_keep_last();
    if (from.checkpoint().has_keep_last()) {
      checkpoint.set_keep_last(from.checkpoint().keep_last());
    }
  }
}

std::string DescribeUpdate(const v1::JobSpec& before, const v1::JobSpec& after) {
  std::vector<std::string> changes;
  if (before.priority() != after.priority()) {
    changes.push_back(absl::StrCat("priority ", before.priority(), " -> ", after.priority()));
  }
  if (!SameEntries(before.labels(), after.labels())) changes.push_back("labels");
  if (!SameEntries(before.annotations(), after.annotations())) changes.push_back("annotations");
  const int keeps = before.checkpoint().keep_last(), will_keep = after.checkpoint().keep_last();
  if (keeps != will_keep) {
    changes.push_back(absl::StrCat("checkpoint.keep_last ", keeps, " -> ", will_keep));
  }
  return absl::StrJoin(changes, ", ");
}

}  // namespace muster
