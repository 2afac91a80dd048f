#include "services/coordinator/scheduler.h"

#include <algorithm>
#include <tuple>

namespace muster {

bool NaturalLess(const std::string& a, const std::string& b) {
  return std::tuple(a.size(), a) < std::tuple(b.size(), b);
}

bool LighterPs(const FreeMembers::Ps& a, const FreeMembers::Ps& b) {
  if (a.jobs != b.jobs) return a.jobs < b.jobs;
  return NaturalLess(a.name, b.name);
}

namespace {

// A need that is not known is nothing, which is cheap to look for: thousands of jobs may wait.
bool HasRoom(const FreeMembers::Ps& ps, int64_t bytes) {
  return bytes == 0 || ps.room_bytes >= bytes;
}

int CountWithRoom(absl::Span<const FreeMembers::Ps> all, int64_t bytes) {
  if (bytes == 0) return static_cast<int>(all.size());
  return static_cast<int>(
      std::ranges::count_if(all, [&](const auto& ps) { return HasRoom(ps, bytes); }));
}

int CountLargeEnough(absl::Span<const FreeMembers::Ps> all, int64_t bytes) {
  if (bytes == 0) return static_cast<int>(all.size());
  return static_cast<int>(
      std::ranges::count_if(all, [&](const auto& ps) { return ps.capacity_bytes >= bytes; }));
}

}  // namespace

MemoryFit FitOf(const WaitingJob& job, absl::Span<const FreeMembers::Ps> ps) {
  const int64_t bytes = job.ps_memory.With(job.workers_min);
  if (std::ssize(ps) < job.ps || CountWithRoom(ps, bytes) >= job.ps) return MemoryFit::kFits;
  return CountLargeEnough(ps, bytes) >= job.ps ? MemoryFit::kWaits : MemoryFit::kTooLittle;
}

std::vector<Placement> Schedule(absl::Span<const WaitingJob> waiting, FreeMembers free) {
  std::vector<WaitingJob> order(waiting.begin(), waiting.end());
  std::ranges::sort(order, [](const WaitingJob& a, const WaitingJob& b) {
    return std::tuple(-a.priority, a.number) < std::tuple(-b.priority, b.number);
  });
  std::ranges::sort(free.workers, NaturalLess);

  std::vector<Placement> placements;
  for (const WaitingJob& job : order) {
    int workers = std::min<int>(job.workers_max, free.workers.size());
    const int enough = job.settle_for_fewer ? job.workers_min : job.workers_max;
    while (workers >= enough && CountWithRoom(free.ps, job.ps_memory.With(workers)) < job.ps) {
      --workers;
    }
    if (workers < enough) {
      const bool could_fit =
          free.workers_attached >= job.workers_min &&
          CountLargeEnough(free.ps, job.ps_memory.With(job.workers_min)) >= job.ps;
      if (job.reserves && could_fit) break;
      continue;
    }

    Placement& placement = placements.emplace_back();
    placement.number = job.number;
    placement.workers.assign(free.workers.begin(), free.workers.begin() + workers);
    free.workers.erase(free.workers.begin(), free.workers.begin() + workers);
    std::ranges::sort(free.ps, LighterPs);
    const int64_t bytes = job.ps_memory.With(workers);
    for (FreeMembers::Ps& ps : free.ps) {
      if (std::ssize(placement.ps) == job.ps) break;
      if (!HasRoom(ps, bytes)) continue;
      placement.ps.push_back(ps.name);
      ++ps.jobs;
      ps.room_bytes -= bytes;
    }
    std::ranges::sort(placement.ps, NaturalLess);
  }
  return placements;
}

}  // namespace muster
