#include "services/coordinator/job/recovery/replica_placement.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "absl/container/btree_map.h"

namespace muster {
namespace {

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

}  // namespace

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
