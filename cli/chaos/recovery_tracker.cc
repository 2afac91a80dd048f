#include "cli/chaos/recovery_tracker.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace muster::cli {
namespace {

constexpr std::pair<ChaosRole, absl::string_view> kRoleNames[] = {
    {ChaosRole::kPs, "ps"},
    {ChaosRole::kWorker, "worker"},
    {ChaosRole::kCoordinator, "coordinator"},
    {ChaosRole::kScale, "scale"}};

double WeightOf(ChaosRole role) {
  switch (role) {
    case ChaosRole::kPs:
      return 5;
    case ChaosRole::kWorker:
      return 3;
    case ChaosRole::kCoordinator:
    case ChaosRole::kScale:
      return 2;
  }
  return 0;
}

absl::Duration NearestRank(const std::vector<absl::Duration>& sorted, double quantile) {
  if (sorted.empty()) return absl::ZeroDuration();
  const auto rank = static_cast<size_t>(std::ceil(quantile * static_cast<double>(sorted.size())));
  return sorted[std::max<size_t>(rank, 1) - 1];
}

}  // namespace

absl::string_view NameOf(ChaosRole role) {
  return std::ranges::find(kRoleNames, role, [](const auto& entry) { return entry.first; })->second;
}

absl::StatusOr<std::vector<ChaosRole>> ParseChaosRoles(const std::string& text) {
  std::vector<ChaosRole> roles;
  for (const absl::string_view name : absl::StrSplit(text, ',')) {
    const auto* known =
        std::ranges::find(kRoleNames, name, [](const auto& entry) { return entry.second; });
    if (known == std::end(kRoleNames)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--roles: unknown '", name, "'; the roles are ps, worker, coordinator and scale"));
    }
    if (std::ranges::find(roles, known->first) == roles.end()) roles.push_back(known->first);
  }
  return roles;
}

ChaosDice::ChaosDice(uint64_t seed, std::vector<ChaosRole> roles)
    : random_(seed), roles_(std::move(roles)) {
  for (const ChaosRole role : roles_) weights_.push_back(WeightOf(role));
}

ChaosDice::Throw ChaosDice::Next() {
  // Every throw draws all three values, so that the sequence depends only on the seed and the
  // roles.
  Throw next;
  next.gap = std::uniform_real_distribution<double>(0.5, 1.5)(random_);
  next.role = roles_[std::discrete_distribution<size_t>(weights_.begin(), weights_.end())(random_)];
  next.pick = random_();
  return next;
}

void RecoveryTracker::Struck(ChaosRole role, const std::string& member, Until until,
                             absl::Duration now) {
  open_.push_back({.strike = strikes_.size(), .until = until, .generation = job_.generation()});
  strikes_.push_back({.role = role, .member = member, .at = now, .step = job_.progress().step()});
}

void RecoveryTracker::Returned(const std::string& member) {
  for (Open& open : open_) {
    if (strikes_[open.strike].member == member) open.step_at_return = job_.progress().step();
  }
}

void RecoveryTracker::Take(const v1::WatchJobResponse& update, absl::Duration now) {
  const uint32_t generation_before = job_.generation();
  job_ = update.job();
  // The count covers the whole life of the job: what was there before the watch is subtracted.
  if (!steps_again_before_) steps_again_before_ = job_.recovery().steps_again();
  for (const v1::JobEvent& event : update.events()) TakeEvent(event);
  // A generation may start below the last step and repeat some. The first step that it reports
  // while it runs is the baseline for new steps.
  if (job_.generation() != generation_before) first_step_.reset();
  if (!first_step_ && job_.state() == v1::RUNNING) first_step_ = job_.progress().step();
  std::erase_if(open_, [&](const Open& open) {
    if (!IsOver(open)) return false;
    strikes_[open.strike].recovery = now - strikes_[open.strike].at;
    return true;
  });
}

void RecoveryTracker::TakeEvent(const v1::JobEvent& event) {
  // A recovery has several events in the state RECOVERING. Only the one that enters it counts.
  const v1::JobState before = std::exchange(last_event_state_, event.state());
  if (event.state() == v1::RECOVERING && before != v1::RECOVERING) ++recoveries_[event.reason()];
}

bool RecoveryTracker::IsOver(const Open& open) const {
  if (job_.state() == v1::SUCCEEDED) return true;
  const int64_t step = job_.progress().step();
  if (job_.generation() > open.generation && first_step_ && step > *first_step_) return true;
  return open.until == Until::kNextStep && open.step_at_return && step > *open.step_at_return;
}

const Strike* RecoveryTracker::pending() const {
  return open_.empty() ? nullptr : &strikes_[open_.front().strike];
}

RecoveryFigures FiguresOf(absl::Span<const Strike> strikes, std::optional<ChaosRole> role) {
  RecoveryFigures figures;
  std::vector<absl::Duration> recoveries;
  for (const Strike& strike : strikes) {
    if (role && strike.role != *role) continue;
    ++figures.strikes;
    if (strike.recovered()) recoveries.push_back(strike.recovery);
  }
  std::ranges::sort(recoveries);
  figures.recovered = static_cast<int>(recoveries.size());
  figures.median = NearestRank(recoveries, 0.5);
  figures.p99 = NearestRank(recoveries, 0.99);
  figures.longest = NearestRank(recoveries, 1);
  return figures;
}

}  // namespace muster::cli
