#include "services/coordinator/recovery_placement.h"

#include <algorithm>

namespace muster {
namespace {

bool IsLost(const std::string& name) { return name.empty(); }

bool PlacePs(const RecoveringJob& job, FreeMembers& free, Placement& placement) {
  placement.ps = job.ps;
  if (std::ranges::none_of(placement.ps, IsLost)) return true;
  if (job.keeps_ps) return false;
  std::ranges::sort(free.ps, LighterPs);
  auto next = free.ps.begin();
  for (std::string& ps : placement.ps) {
    if (!IsLost(ps)) continue;
    while (next != free.ps.end() && std::ranges::count(placement.ps, next->name) > 0) ++next;
    if (next == free.ps.end()) return false;
    ps = next->name;
    ++next->jobs;
  }
  return true;
}

bool PlaceWorkers(const RecoveringJob& job, FreeMembers& free, Placement& placement) {
  placement.workers = job.workers;
  std::ranges::sort(free.workers, NaturalLess);
  auto next = free.workers.begin();
  for (std::string& worker : placement.workers) {
    if (IsLost(worker) && next != free.workers.end()) worker = *next++;
  }
  const bool all_there = std::ranges::none_of(placement.workers, IsLost);
  std::erase_if(placement.workers, IsLost);
  while (next != free.workers.end() && std::ssize(placement.workers) < job.workers_max) {
    placement.workers.push_back(*next++);
  }
  if (std::ssize(placement.workers) < job.workers_min) return false;
  if (!all_there && !job.settle_for_fewer) return false;
  free.workers.erase(free.workers.begin(), next);
  return true;
}

}  // namespace

std::optional<Placement> PlaceAgain(const RecoveringJob& job, FreeMembers& free) {
  Placement placement;
  if (!PlacePs(job, free, placement) || !PlaceWorkers(job, free, placement)) return std::nullopt;
  return placement;
}

}  // namespace muster
