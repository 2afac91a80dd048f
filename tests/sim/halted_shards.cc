#include "tests/sim/halted_shards.h"

#include <algorithm>
#include <limits>

namespace muster {

void HaltedShards::Note(const std::string& ps, const v1::JobPlan& plan,
                        const v1::JobReport& report) {
  if (plan.generation() < plan_.generation()) return;
  if (plan.generation() > plan_.generation()) {
    plan_ = plan;
    reports_.clear();
  }
  reports_[ps] = report;
}

std::optional<int64_t> HaltedShards::OldestVersion(uint32_t generation) const {
  if (generation != plan_.generation()) return std::nullopt;
  int64_t oldest = 0, newest = std::numeric_limits<int64_t>::max();
  for (int shard = 0; shard < plan_.shards_size(); ++shard) {
    const v1::PlanShard& place = plan_.shards(shard);
    const auto own = reports_.find(place.member());
    if (own != reports_.end() && own->second.oldest_version() <= own->second.next_step()) {
      oldest = std::max(oldest, own->second.oldest_version());
      newest = std::min(newest, own->second.next_step());
      continue;
    }
    const auto other = reports_.find(place.backup().member());
    if (other == reports_.end()) return std::nullopt;
    const auto& replicas = other->second.backups();
    const auto replica = std::ranges::find(replicas, shard, &v1::HeldBackup::shard);
    if (replica == replicas.end()) return std::nullopt;
    oldest = std::max(oldest, replica->oldest_version());
    newest = std::min(newest, replica->newest_version());
  }
  return oldest <= newest ? std::optional(oldest) : std::nullopt;
}

}  // namespace muster
