#include "services/coordinator/job/recovery/exclusion_list.h"

namespace muster {

void ExclusionList::Exclude(const std::string& member, const std::string& why, absl::Time until) {
  exclusions_[member] = {.why = why, .until = until};
}

void ExclusionList::ExcludeForKind(const std::string& member, const std::string& why) {
  exclusions_[member] = {.why = why, .until = absl::InfiniteFuture(), .is_of_other_kind = true};
}

void ExclusionList::ReadmitOtherKinds() {
  absl::erase_if(exclusions_, [](const auto& entry) { return entry.second.is_of_other_kind; });
}

void ExclusionList::ReadmitInTime(absl::Time now) {
  absl::erase_if(exclusions_, [now](const auto& entry) { return entry.second.until <= now; });
}

void ExclusionList::BeginGeneration() {
  for (auto& [name, exclusion] : exclusions_) exclusion.in_this_generation = false;
}

bool ExclusionList::ExcludesNow(const std::string& member) const {
  const auto exclusion = exclusions_.find(member);
  return exclusion != exclusions_.end() && exclusion->second.in_this_generation;
}

const std::string* ExclusionList::Why(const std::string& member) const {
  const auto exclusion = exclusions_.find(member);
  return exclusion == exclusions_.end() ? nullptr : &exclusion->second.why;
}

bool ExclusionList::IsOfOtherKind(const std::string& member) const {
  const auto exclusion = exclusions_.find(member);
  return exclusion != exclusions_.end() && exclusion->second.is_of_other_kind;
}

}  // namespace muster
