#include "services/coordinator/job/recovery/warm_up.h"

#include <algorithm>

#include "absl/container/btree_map.h"
#include "absl/strings/str_cat.h"

namespace muster {

void WarmUp::Begin(v1::JobPlan plan, const std::vector<std::string>& newcomers, absl::Time now) {
  number_ = next_number_++;
  plan.set_rehearsal(number_);
  plan_ = std::make_shared<const std::string>(plan.SerializeAsString());
  members_.clear();
  for (const std::string& name : newcomers) members_[name] = {.advanced = now};
}

void WarmUp::End() {
  members_.clear();
  plan_.reset();
}

WarmUp::State WarmUp::Of(const std::vector<std::string>& newcomers) const {
  const bool same = newcomers.size() == members_.size() &&
                    std::ranges::all_of(newcomers, [this](const auto& name) { return Has(name); });
  if (!same || members_.empty()) return State::kNone;
  const bool all_prepared =
      std::ranges::all_of(members_, [](const auto& member) { return member.second.prepared; });
  return all_prepared ? State::kDone : State::kUnderWay;
}

std::vector<std::string> WarmUp::members() const {
  std::vector<std::string> names;
  for (const auto& [name, member] : members_) names.push_back(name);
  return names;
}

WarmUp::Heard WarmUp::Take(const std::string& name, const v1::JobReport* report, absl::Time now) {
  const auto found = members_.find(name);
  if (found == members_.end()) return report == nullptr ? Heard::kNothing : Heard::kOutsider;
  Member& member = found->second;
  // A report of the previous warm-up does not count. The member leaves it when it gets the
  // directive for this one.
  if (report == nullptr || report->rehearsal() != number_) return Heard::kSilence;
  if (report->state() == v1::MEMBER_FAILED) {
    members_.erase(found);
    return Heard::kFailed;
  }
  member.prepared = report->state() == v1::MEMBER_PREPARED;
  if (report->prepare_progress() > member.progress) member.advanced = now;
  member.progress = std::max(member.progress, report->prepare_progress());
  return member.prepared ? Heard::kPrepared : Heard::kNothing;
}

std::string WarmUp::TakeStalled(absl::Time now) {
  for (const auto& [name, member] : members_) {
    if (member.prepared || now - member.advanced < kStallMax) continue;
    std::string stalled = name;
    members_.erase(stalled);
    return stalled;
  }
  return "";
}

void WarmUp::WentOn(absl::Time now) {
  for (auto& [name, member] : members_) member.advanced = now;
}

}  // namespace muster
