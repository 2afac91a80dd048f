#include "services/coordinator/job/recovery/shard_inventory.h"

#include <algorithm>
#include <limits>

namespace muster {
namespace {

bool Holds(const std::optional<HeldVersions>& held) {
  return held.has_value() && held->oldest <= held->newest;
}

// Returns the versions that both hold.
HeldVersions Both(const HeldVersions& a, const HeldVersions& b) {
  return {.oldest = std::max(a.oldest, b.oldest), .newest = std::min(a.newest, b.newest)};
}

}  // namespace

ShardInventory::Copy ShardInventory::CopyOn(const std::string& ps, const JobMembers& members) {
  if (!members.contains(ps)) return {.ps = ps};
  return {.ps = ps, .is_lost = members.at(ps).lost, .leaves = members.at(ps).leaving};
}

ShardInventory::ShardInventory(const v1::JobPlan& plan, const JobMembers& members)
    : plan_(&plan), leaving_(members.Leaving()) {
  std::erase_if(leaving_, [&](const std::string& name) { return !members.at(name).holds(); });
  shards_.reserve(plan.shards_size());
  for (const v1::PlanShard& shard : plan.shards()) {
    Shard& taken = shards_.emplace_back();
    taken.own = CopyOn(shard.member(), members);
    taken.own.held = members.HeldBy(shard.member());
    if (!shard.has_backup()) continue;
    taken.replica = CopyOn(shard.backup().member(), members);
    taken.replica.is_filled = shard.backup().carries();
    taken.replica.held =
        members.HeldInReplica(shard.backup().member(), static_cast<int>(shards_.size()) - 1);
  }
}

bool ShardInventory::MayBeComplete(bool filled_only) const {
  return std::ranges::all_of(shards_, [&](const Shard& shard) {
    return !shard.own.is_lost ||
           (!shard.replica.is_lost && (shard.replica.is_filled || !filled_only));
  });
}

bool ShardInventory::CanHandOver(const std::string& ps, bool filled_only) const {
  return std::ranges::all_of(shards_, [&](const Shard& shard) {
    return shard.own.ps != ps ||
           (shard.replica.stays() && (shard.replica.is_filled || !filled_only));
  });
}

// Returns each leaving ps for which ps that stay hold replicas of all of its shards.
std::vector<std::string> ShardInventory::HandingOver() const {
  std::vector<std::string> names;
  for (const Shard& shard : shards_) {
    if (shard.own.leaves && !std::ranges::count(names, shard.own.ps)) names.push_back(shard.own.ps);
  }
  std::erase_if(names, [&](const std::string& name) {
    return !CanHandOver(name, /*filled_only=*/false) ||
           std::ranges::any_of(shards_, [&](const Shard& shard) {
             return shard.own.ps == name && !Holds(shard.replica.held);
           });
  });
  return names;
}

// Like Carried(), but exactly these ps hand their shards over to the replicas.
std::optional<CarriedShards> ShardInventory::Without(
    const std::vector<std::string>& handing_over) const {
  CarriedShards carried{.shards = {plan_->shards().begin(), plan_->shards().end()}};
  HeldVersions needed{.newest = std::numeric_limits<int64_t>::max()};
  std::vector<std::optional<HeldVersions>> replicas;  // of replicas that stay replicas
  absl::btree_set<std::string> owners;
  for (size_t i = 0; i < shards_.size(); ++i) {
    const Shard& shard = shards_[i];
    v1::PlanShard& next = carried.shards[i];
    if (Holds(shard.own.held) && !std::ranges::count(handing_over, shard.own.ps)) {
      needed = Both(needed, *shard.own.held);
      replicas.push_back(shard.replica.held);
    } else {
      if (!Holds(shard.replica.held)) return std::nullopt;
      needed = Both(needed, *shard.replica.held);
      const v1::PlanBackup place = next.backup();
      next.Clear();
      next.set_member(place.member());
      next.set_thread(place.thread());
      next.set_address(place.address());
      next.set_host(place.host());
      replicas.push_back(std::nullopt);
    }
    owners.insert(next.member());
  }
  if (!Holds(needed) || needed.newest == std::numeric_limits<int64_t>::max()) return std::nullopt;
  // A version that the replicas hold too saves filling them again.
  HeldVersions all = needed;
  for (size_t i = 0; i < shards_.size(); ++i) {
    const Copy& replica = shards_[i].replica;
    // A leaving ps that must stay for its own shards keeps its replicas too.
    const bool stays = replica.stays() || (!replica.is_lost && owners.contains(replica.ps));
    if (carried.shards[i].has_backup() && !stays) {
      carried.shards[i].clear_backup();
      replicas[i].reset();
    }
    if (Holds(replicas[i])) all = Both(all, *replicas[i]);
  }
  carried.first_step = Holds(all) ? all.newest : needed.newest;
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (!carried.shards[i].has_backup()) continue;
    const std::optional<HeldVersions>& held = replicas[i];
    carried.shards[i].mutable_backup()->set_carries(
        Holds(held) && held->oldest <= carried.first_step && carried.first_step <= held->newest);
  }
  return carried;
}

std::optional<CarriedShards> ShardInventory::Carried() const {
  const std::vector<std::string> handing_over = HandingOver();
  auto carried = Without(handing_over);
  // The replicas may be too far from the other shards. The leaving ps must stay then.
  if (!carried && !handing_over.empty()) carried = Without({});
  return carried;
}

std::optional<CarriedShards> ShardInventory::InPlace() const { return Without({}); }

PsDepartures ShardInventory::Departures() const {
  const auto carried = Carried();
  if (leaving_.empty() || !carried) return {};
  const auto is_needed = [&](const std::string& name) {
    return std::ranges::any_of(carried->shards, [&](const v1::PlanShard& shard) {
      return shard.member() == name || shard.backup().member() == name;
    });
  };
  std::vector<std::string> at_once = leaving_;
  if (std::erase_if(at_once, is_needed) == 0) return {.at_once = std::move(at_once)};
  if (const auto held = InPlace()) return {.checkpoint_at = held->first_step};
  return {.at_once = std::move(at_once)};
}

}  // namespace muster
