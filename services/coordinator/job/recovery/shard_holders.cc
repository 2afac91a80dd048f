#include "services/coordinator/job/recovery/shard_holders.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"

namespace muster {
namespace {

bool Holds(const std::optional<HeldVersions>& held) {
  return held.has_value() && held->oldest <= held->newest;
}

// Returns the versions that both hold.
HeldVersions Both(const HeldVersions& a, const HeldVersions& b) {
  return {.oldest = std::max(a.oldest, b.oldest), .newest = std::min(a.newest, b.newest)};
}

bool MayHold(const JobMembers& members, const std::string& name) {
  return members.contains(name) && !members.at(name).lost;
}

bool Stays(const JobMembers& members, const std::string& name) {
  return MayHold(members, name) && !members.at(name).leaving;
}

// The number of elements of a job on a ps or on one of its threads.
struct Load {
  int64_t of_replicas = 0;
  int64_t of_all = 0;

  friend bool operator<(const Load& a, const Load& b) {
    return std::tie(a.of_replicas, a.of_all) < std::tie(b.of_replicas, b.of_all);
  }
};

class ReplicaLoads {
 public:
  explicit ReplicaLoads(const v1::JobPlan& plan) : elements_(plan.shards_size()) {
    for (const v1::PlanChunk& chunk : plan.chunks()) elements_[chunk.shard()] += chunk.elements();
    for (int shard = 0; shard < plan.shards_size(); ++shard) {
      const v1::PlanShard& own = plan.shards(shard);
      of_ps_[own.member()].of_all += elements_[shard];
      of_thread_[{own.member(), own.thread()}].of_all += elements_[shard];
      if (own.has_backup()) Add(shard, own.backup().member(), own.backup().thread());
    }
  }

  int64_t elements(int shard) const { return elements_[shard]; }
  Load Of(const std::string& ps) { return of_ps_[ps]; }
  int LightestThread(const v1::Hello& ps) {
    int lightest = 0;
    for (int thread = 1; thread < ps.addresses_size(); ++thread) {
      if (of_thread_[{ps.member(), thread}] < of_thread_[{ps.member(), lightest}]) {
        lightest = thread;
      }
    }
    return lightest;
  }
  void Add(int shard, const std::string& ps, int thread) {
    for (Load* load : {&of_ps_[ps], &of_thread_[{ps, thread}]}) {
      load->of_replicas += elements_[shard];
      load->of_all += elements_[shard];
    }
  }

 private:
  std::vector<int64_t> elements_;  // by shard
  absl::btree_map<std::string, Load> of_ps_;
  absl::btree_map<std::pair<std::string, int>, Load> of_thread_;
};

// Returns the index of the ps for a replica of `shard`, or -1. Among equals it is the next one
// after the shard's own ps. Otherwise two ps could take each other's replicas and leave a third
// without.
int ChoosePs(const std::vector<v1::Hello>& ps, const v1::PlanShard& shard, ReplicaLoads& loads) {
  const int count = static_cast<int>(ps.size());
  const auto own = std::ranges::find(ps, shard.member(), &v1::Hello::member);
  const int after = own == ps.end() ? 0 : static_cast<int>(own - ps.begin()) + 1;
  int chosen = -1;
  const auto rank = [&](int i) {
    return std::tuple(ps[i].host() == shard.host(), loads.Of(ps[i].member()));
  };
  for (int offset = 0; offset < count; ++offset) {
    const int i = (after + offset) % count;
    if (ps[i].member() == shard.member() || ps[i].addresses_size() == 0) continue;
    if (chosen < 0 || rank(i) < rank(chosen)) chosen = i;
  }
  return chosen;
}

// Returns each leaving ps for which ps that stay hold replicas of all of its shards.
absl::btree_set<std::string> HandingOver(const v1::JobPlan& plan, const JobMembers& members) {
  absl::btree_set<std::string> names;
  for (const v1::PlanShard& shard : plan.shards()) {
    const std::string& owner = shard.member();
    if (!members.contains(owner) || !members.at(owner).leaving) continue;
    if (CanHandOver(plan, members, owner, /*filled_only=*/false)) names.insert(owner);
  }
  for (int shard = 0; shard < plan.shards_size(); ++shard) {
    const v1::PlanShard& own = plan.shards(shard);
    if (!names.contains(own.member())) continue;
    if (!Holds(members.HeldInReplica(own.backup().member(), shard))) names.erase(own.member());
  }
  return names;
}

// Like ShardsHeld(), but exactly the ps in `without` hand their shards over to the replicas.
std::optional<CarriedShards> HeldWithout(const absl::btree_set<std::string>& without,
                                         const v1::JobPlan& plan, const JobMembers& members) {
  CarriedShards carried{.shards = {plan.shards().begin(), plan.shards().end()}};
  HeldVersions needed{.newest = std::numeric_limits<int64_t>::max()};
  std::vector<std::optional<HeldVersions>> replicas;  // of replicas that stay replicas
  absl::btree_set<std::string> owners;
  for (int shard = 0; shard < plan.shards_size(); ++shard) {
    v1::PlanShard& next = carried.shards[shard];
    std::optional<HeldVersions> own, replica;
    if (!without.contains(next.member())) own = members.HeldBy(next.member());
    if (next.has_backup()) replica = members.HeldInReplica(next.backup().member(), shard);
    if (Holds(own)) {
      needed = Both(needed, *own);
      replicas.push_back(replica);
    } else {
      if (!Holds(replica)) return std::nullopt;
      needed = Both(needed, *replica);
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
  for (int shard = 0; shard < plan.shards_size(); ++shard) {
    v1::PlanShard& next = carried.shards[shard];
    if (!next.has_backup()) continue;
    const std::string& name = next.backup().member();
    // A leaving ps that must stay for its own shards keeps its replicas too.
    const bool stays = Stays(members, name) || (MayHold(members, name) && owners.contains(name));
    if (stays) continue;
    next.clear_backup();
    replicas[shard].reset();
  }
  // A version that the replicas hold too saves filling them again.
  HeldVersions all = needed;
  for (const auto& replica : replicas) {
    if (Holds(replica)) all = Both(all, *replica);
  }
  carried.first_step = Holds(all) ? all.newest : needed.newest;
  for (int shard = 0; shard < plan.shards_size(); ++shard) {
    if (!carried.shards[shard].has_backup()) continue;
    const std::optional<HeldVersions>& held = replicas[shard];
    carried.shards[shard].mutable_backup()->set_carries(
        Holds(held) && held->oldest <= carried.first_step && carried.first_step <= held->newest);
  }
  return carried;
}

}  // namespace

std::optional<CarriedShards> ShardsHeld(const v1::JobPlan& plan, const JobMembers& members) {
  const absl::btree_set<std::string> handing_over = HandingOver(plan, members);
  auto carried = HeldWithout(handing_over, plan, members);
  // The replicas may be too far from the other shards. The leaving ps must stay then.
  if (!carried && !handing_over.empty()) carried = HeldWithout({}, plan, members);
  return carried;
}

std::optional<CarriedShards> ShardsInPlace(const v1::JobPlan& plan, const JobMembers& members) {
  return HeldWithout({}, plan, members);
}

Departures DeparturesOf(const v1::JobPlan& plan, const JobMembers& members) {
  std::vector<std::string> leaving = members.Leaving();
  std::erase_if(leaving, [&](const std::string& name) { return !members.at(name).holds(); });
  const auto carried = ShardsHeld(plan, members);
  if (leaving.empty() || !carried) return {};
  const auto is_needed = [&](const std::string& name) {
    return std::ranges::any_of(carried->shards, [&](const v1::PlanShard& shard) {
      return shard.member() == name || shard.backup().member() == name;
    });
  };
  if (std::ranges::any_of(leaving, is_needed)) {
    if (const auto held = ShardsInPlace(plan, members)) return {.checkpoint_at = held->first_step};
    std::erase_if(leaving, is_needed);
  }
  return {.at_once = std::move(leaving)};
}

bool ShardsMayBeHeld(const v1::JobPlan& plan, const JobMembers& members, bool filled_only) {
  return std::ranges::all_of(plan.shards(), [&](const v1::PlanShard& shard) {
    if (MayHold(members, shard.member())) return true;
    return shard.has_backup() && MayHold(members, shard.backup().member()) &&
           (shard.backup().carries() || !filled_only);
  });
}

bool CanHandOver(const v1::JobPlan& plan, const JobMembers& members, const std::string& ps,
                 bool filled_only) {
  return std::ranges::all_of(plan.shards(), [&](const v1::PlanShard& shard) {
    if (shard.member() != ps) return true;
    return shard.has_backup() && Stays(members, shard.backup().member()) &&
           (shard.backup().carries() || !filled_only);
  });
}

void PlaceReplicas(const std::vector<v1::Hello>& ps, v1::JobPlan& plan) {
  ReplicaLoads loads(plan);
  // First one shard of every ps, then the next of each, and large shards before small ones. So each
  // choice sees the load of the larger ones before it.
  std::vector<int> order(plan.shards_size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(
      order, {}, [&](int i) { return std::pair(plan.shards(i).thread(), -loads.elements(i)); });
  for (const int shard : order) {
    v1::PlanShard& own = *plan.mutable_shards(shard);
    if (own.has_backup()) continue;
    const int chosen = ChoosePs(ps, own, loads);
    if (chosen < 0) continue;
    const int thread = loads.LightestThread(ps[chosen]);
    v1::PlanBackup& replica = *own.mutable_backup();
    replica.set_member(ps[chosen].member());
    replica.set_thread(thread);
    replica.set_address(ps[chosen].addresses(thread));
    replica.set_host(ps[chosen].host());
    loads.Add(shard, replica.member(), thread);
  }
}

int ShardsWithoutReplica(const v1::JobPlan& plan) {
  if (plan.spec().resources().ps_replication() < 2) return 0;
  return static_cast<int>(std::ranges::count_if(
      plan.shards(), [](const v1::PlanShard& shard) { return !shard.has_backup(); }));
}

}  // namespace muster
