#include "services/coordinator/scheduler.h"

#include <algorithm>
#include <tuple>

namespace muster {
namespace {

bool NaturalLess(const std::string& a, const std::string& b) {
  return std::tuple(a.size(), a) < std::tuple(b.size(), b);
}

bool LighterPs(const FreeMembers::Ps& a, const FreeMembers::Ps& b) {
  if (a.jobs != b.jobs) return a.jobs < b.jobs;
  return NaturalLess(a.name, b.name);
}

}  // namespace

std::vector<Placement> Schedule(absl::Span<const WaitingJob> waiting, FreeMembers free) {
  std::vector<WaitingJob> order(waiting.begin(), waiting.end());
  std::ranges::sort(order, [](const WaitingJob& a, const WaitingJob& b) {
    return std::tuple(-a.priority, a.number) < std::tuple(-b.priority, b.number);
  });
  std::ranges::sort(free.workers, NaturalLess);

  std::vector<Placement> placements;
  for (const WaitingJob& job : order) {
    const int workers = std::min<int>(job.workers_max, free.workers.size());
    const int enough = job.settle_for_fewer ? job.workers_min : job.workers_max;
    if (workers < enough || std::ssize(free.ps) < job.ps) {
      const bool could_fit =
          free.workers_attached >= job.workers_min && std::ssize(free.ps) >= job.ps;
      if (job.reserves && could_fit) break;
      continue;
    }

    Placement& placement = placements.emplace_back();
    placement.number = job.number;
    placement.workers.assign(free.workers.begin(), free.workers.begin() + workers);
    free.workers.erase(free.workers.begin(), free.workers.begin() + workers);
    std::ranges::sort(free.ps, LighterPs);
    for (int i = 0; i < job.ps; ++i) {
      placement.ps.push_back(free.ps[i].name);
      ++free.ps[i].jobs;
    }
    std::ranges::sort(placement.ps, NaturalLess);
  }
  return placements;
}

}  // namespace muster
