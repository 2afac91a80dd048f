#include "services/coordinator/scheduling/recovery_placement.h"

#include <algorithm>
#include <iterator>

#include "services/coordinator/scheduling/worker_numbers.h"

namespace muster {
namespace {

bool IsLost(const std::string& name) { return name.empty(); }

int CountLeft(const std::vector<std::string>& members) {
  return static_cast<int>(std::ssize(members) - std::ranges::count_if(members, IsLost));
}

int64_t BytesOn(const std::string& ps, const RecoveringJob& job, int workers) {
  const auto own = job.own_ps.find(ps);
  return (own == job.own_ps.end() ? job.ps_memory : own->second.memory).With(workers);
}

// Whether every ps that the job keeps is there and has enough `bytes` for `workers` workers. No
// other ps can replace one of them.
bool AllKeptHave(int64_t RecoveringJob::OwnPs::*bytes, const RecoveringJob& job, int workers) {
  return std::ranges::all_of(job.ps, [&](const std::string& ps) {
    const auto own = job.own_ps.find(ps);
    if (own == job.own_ps.end()) return !IsLost(ps);
    return own->second.memory.With(workers) <= own->second.*bytes;
  });
}

// Chooses the ps for `workers` workers. Returns false if too few ps have room.
bool PlacePs(const RecoveringJob& job, int workers, const FreeMembers& free, Placement& placement) {
  if (job.keeps_ps) {
    placement.ps = job.ps;
    if (!AllKeptHave(&RecoveringJob::OwnPs::room_bytes, job, workers)) return false;
  }
  std::vector<FreeMembers::Ps> others = free.ps;
  std::ranges::sort(others, LighterPs);
  std::erase_if(others, [&](const FreeMembers::Ps& ps) {
    return ps.room_bytes < BytesOn(ps.name, job, workers);
  });
  if (job.keeps_ps) {
    for (const FreeMembers::Ps& ps : others) {
      if (std::ssize(placement.ps) >= job.ps_wanted) break;
      if (job.excluded_ps.contains(ps.name)) continue;
      if (std::ranges::count(job.ps, ps.name) == 0) placement.ps.push_back(ps.name);
    }
    return true;
  }
  // Not std::ranges::stable_partition: Clang 14 cannot compile its result type of libstdc++ 12.
  std::stable_partition(others.begin(), others.end(), [&](const FreeMembers::Ps& ps) {
    return !job.excluded_ps.contains(ps.name);
  });
  placement.ps.clear();
  for (const std::string& name : job.ps) {
    const auto own = std::ranges::find(others, name, &FreeMembers::Ps::name);
    placement.ps.push_back(own == others.end() ? "" : name);
    if (own != others.end()) others.erase(own);
  }
  auto next = others.begin();
  for (std::string& ps : placement.ps) {
    if (!IsLost(ps)) continue;
    if (next == others.end()) return false;
    ps = (next++)->name;
  }
  return true;
}

// Returns the free workers that the job may take, in the order in which it takes them.
std::vector<std::string> WorkersToTake(const RecoveringJob& job, FreeMembers& free) {
  std::ranges::sort(free.workers, NaturalLess);
  std::vector<std::string> able = free.workers;
  std::erase_if(able, [&](const std::string& name) { return job.excluded.contains(name); });
  if (!job.settle_for_fewer || !job.tries_excluded) return able;
  auto count = std::ssize(able) + CountLeft(job.workers);
  std::vector<std::string> excluded(job.own_excluded.begin(), job.own_excluded.end());
  std::ranges::copy_if(free.workers, std::back_inserter(excluded),
                       [&](const std::string& name) { return job.excluded.contains(name); });
  std::erase_if(excluded, [&](const auto& name) { return job.of_other_kind.contains(name); });
  std::ranges::sort(excluded, NaturalLess);
  for (auto next = excluded.begin(); next != excluded.end() && count < job.workers_min; ++count) {
    able.push_back(*next++);
  }
  return able;
}

// The most workers that the job can have, and whether they fill every earlier rank.
struct Workers {
  std::vector<std::string> names;
  int in_ranks = 0;  // the first ones, in earlier ranks
  bool all_there = false;
};
Workers GatherWorkers(const RecoveringJob& job, FreeMembers& free) {
  Workers workers{.names = job.workers};
  const std::vector<std::string> others = WorkersToTake(job, free);
  auto next = others.begin();
  for (std::string& worker : workers.names) {
    if (IsLost(worker) && next != others.end()) worker = *next++;
  }
  workers.all_there = std::ranges::none_of(workers.names, IsLost);
  std::erase_if(workers.names, IsLost);
  workers.in_ranks = static_cast<int>(workers.names.size());
  while (next != others.end() && std::ssize(workers.names) < job.workers_max) {
    workers.names.push_back(*next++);
  }
  return workers;
}

bool CouldBePlaced(const RecoveringJob& job, const FreeMembers& free) {
  if (free.workers_attached - std::ssize(job.of_other_kind) < job.workers_min) return false;
  if (job.keeps_ps) {
    return AllKeptHave(&RecoveringJob::OwnPs::capacity_bytes, job, job.workers_min);
  }
  const auto large_enough = std::ranges::count_if(free.ps, [&](const FreeMembers::Ps& ps) {
    return ps.capacity_bytes >= BytesOn(ps.name, job, job.workers_min);
  });
  return large_enough >= std::ssize(job.ps);
}

}  // namespace

std::optional<Placement> PlaceAgain(const RecoveringJob& job, FreeMembers& free) {
  const Workers workers = GatherWorkers(job, free);
  if (!workers.all_there && !job.settle_for_fewer) return std::nullopt;
  Placement placement{.number = job.number};
  const int least = std::max(workers.in_ranks, job.workers_min);
  const auto useful = [&](int count) { return UsefulAtMost(count, least, job.logical); };
  int count = useful(static_cast<int>(workers.names.size()));
  // Fewer workers need less memory on each ps.
  while (count >= job.workers_min && !PlacePs(job, count, free, placement)) {
    count = useful(count - 1);
  }
  if (count < job.workers_min) return std::nullopt;
  placement.workers.assign(workers.names.begin(), workers.names.begin() + count);
  // Gathered workers that the placement did not use stay free.
  std::erase_if(free.workers, [&](const std::string& name) {
    return std::ranges::count(placement.workers, name) > 0;
  });
  for (FreeMembers::Ps& ps : free.ps) {
    const bool is_kept = job.keeps_ps && std::ranges::count(job.ps, ps.name) > 0;
    if (is_kept || std::ranges::count(placement.ps, ps.name) == 0) continue;
    ++ps.jobs;
    ps.room_bytes -= BytesOn(ps.name, job, count);
  }
  return placement;
}

uint64_t ReservedFor(absl::Span<const RecoveringJob> unplaced, const FreeMembers& free) {
  FreeMembers fleet = free;
  // Each job is tried with its own workers, but without those that other unplaced jobs keep.
  for (const RecoveringJob& job : unplaced) fleet.workers_attached -= CountLeft(job.workers);
  for (const RecoveringJob& job : unplaced) {
    const int own = CountLeft(job.workers);
    fleet.workers_attached += own;
    if (CouldBePlaced(job, fleet)) return job.number;
    fleet.workers_attached -= own;
  }
  return 0;
}

bool LastYields(absl::Span<const RecoveringJob> unplaced, const FreeMembers& free) {
  FreeMembers given = free;
  for (size_t i = unplaced.size(); i-- > 0;) {
    const RecoveringJob& job = unplaced[i];
    const bool is_last = i + 1 == unplaced.size();
    // A job that has workers_min workers lacks something else, which a yield does not bring.
    if (!is_last && CountLeft(job.workers) < job.workers_min) {
      FreeMembers trial = given;
      if (PlaceAgain(job, trial)) return true;
    }
    for (const std::string& worker : job.workers) {
      if (!IsLost(worker)) given.workers.push_back(worker);
    }
  }
  return false;
}

}  // namespace muster
