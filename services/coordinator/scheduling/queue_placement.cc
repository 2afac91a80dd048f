#include "services/coordinator/scheduling/queue_placement.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "services/coordinator/scheduling/worker_numbers.h"

namespace muster {

bool NaturalLess(const std::string& a, const std::string& b) {
  return std::tuple(a.size(), a) < std::tuple(b.size(), b);
}

int CountSuitable(const WaitingJob& job, absl::Span<const std::string> workers) {
  if (job.unsuitable.empty()) return static_cast<int>(workers.size());
  return static_cast<int>(std::ranges::count_if(
      workers, [&](const std::string& name) { return !job.unsuitable.contains(name); }));
}

int SuitableAttached(const WaitingJob& job, const FreeMembers& free) {
  return std::max(0, free.workers_attached - static_cast<int>(job.unsuitable.size()));
}

bool LighterPs(const FreeMembers::Ps& a, const FreeMembers::Ps& b) {
  if (a.jobs != b.jobs) return a.jobs < b.jobs;
  return NaturalLess(a.name, b.name);
}

namespace {

// Whether `ps` has room for these bytes. An unknown need is 0 bytes, which always fits. The callers
// then compare no ps at all, because thousands of jobs may wait.
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

// Returns why `job` cannot start now.
WaitCause CauseOf(const WaitingJob& job, const FreeMembers& free) {
  if (CountSuitable(job, free.workers) < job.workers_min) return WaitCause::kWorkers;
  if (std::ssize(free.ps) < job.ps) return WaitCause::kPs;
  if (CountWithRoom(free.ps, job.ps_memory.With(job.workers_min)) < job.ps) {
    return WaitCause::kPsMemory;
  }
  return WaitCause::kGathers;
}

}  // namespace

bool CouldFit(const WaitingJob& job, const FreeMembers& free) {
  return SuitableAttached(job, free) >= job.workers_min &&
         CountLargeEnough(free.ps, job.ps_memory.With(job.workers_min)) >= job.ps;
}

MemoryFit FitOf(const WaitingJob& job, absl::Span<const FreeMembers::Ps> ps) {
  const int64_t bytes = job.ps_memory.With(job.workers_min);
  if (std::ssize(ps) < job.ps || CountWithRoom(ps, bytes) >= job.ps) return MemoryFit::kFits;
  return CountLargeEnough(ps, bytes) >= job.ps ? MemoryFit::kWaits : MemoryFit::kTooLittle;
}

Decision Decide(absl::Span<const WaitingJob> waiting, FreeMembers free) {
  std::vector<const WaitingJob*> order;
  order.reserve(waiting.size());
  for (const WaitingJob& job : waiting) order.push_back(&job);
  const auto goes_first = [](const WaitingJob* a, const WaitingJob* b) {
    return std::tuple(-a->priority, a->number) < std::tuple(-b->priority, b->number);
  };
  if (!std::ranges::is_sorted(order, goes_first)) std::ranges::sort(order, goes_first);
  std::ranges::sort(free.workers, NaturalLess);

  Decision decision;
  const int queue_length = static_cast<int>(order.size());
  uint64_t reserved_for = free.reserved_for;
  for (int i = 0; i < queue_length; ++i) {
    const WaitingJob& job = *order[i];
    Wait wait{.number = job.number,
              .cause = WaitCause::kItsTurn,
              .position = i + 1,
              .queue_length = queue_length,
              .workers_needed = job.workers_min,
              .workers_free = CountSuitable(job, free.workers),
              .workers_attached = SuitableAttached(job, free),
              .workers_unsuitable = static_cast<int>(job.unsuitable.size()),
              .ps_needed = job.ps,
              .ps_attached = static_cast<int>(free.ps.size()),
              .reserved_for = reserved_for};
    if (reserved_for != 0) {
      decision.waits.push_back(wait);
      continue;
    }
    const auto useful = [&](int workers) {
      return UsefulAtMost(workers, job.workers_min, job.logical);
    };
    int workers = useful(std::min(job.workers_max, wait.workers_free));
    const int enough = job.settle_for_fewer ? job.workers_min : job.workers_max;
    // Fewer workers need less memory on each ps.
    while (workers >= enough && CountWithRoom(free.ps, job.ps_memory.With(workers)) < job.ps) {
      workers = useful(workers - 1);
    }
    if (workers < enough) {
      wait.cause = CauseOf(job, free);
      decision.waits.push_back(wait);
      // A job that could never fit must not stop the others.
      if (!job.has_reservation || !CouldFit(job, free)) continue;
      if (job.unsuitable.empty()) {
        reserved_for = job.number;
      } else {
        // Others may take the workers that are of no use to it.
        std::erase_if(free.workers,
                      [&](const auto& name) { return !job.unsuitable.contains(name); });
      }
      continue;
    }

    Placement& placement = decision.placements.emplace_back();
    placement.number = job.number;
    // Not std::ranges::stable_partition: Clang 14 cannot compile its result type of libstdc++ 12.
    std::stable_partition(free.workers.begin(), free.workers.end(),
                          [&](const std::string& name) { return job.preferred.contains(name); });
    std::stable_partition(free.workers.begin(), free.workers.end(),
                          [&](const std::string& name) { return !job.unsuitable.contains(name); });
    placement.workers.assign(free.workers.begin(), free.workers.begin() + workers);
    free.workers.erase(free.workers.begin(), free.workers.begin() + workers);
    for (auto* names : {&placement.workers, &free.workers}) std::ranges::sort(*names, NaturalLess);
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
  return decision;
}

}  // namespace muster
