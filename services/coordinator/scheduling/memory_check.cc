#include "services/coordinator/scheduling/memory_check.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/graph/cost.h"
#include "lib/text/byte_size.h"
#include "services/coordinator/scheduling/job_plan.h"
#include "services/coordinator/scheduling/plan_memory.h"
#include "services/coordinator/scheduling/ps_memory_accounting.h"

namespace muster {
namespace {

// Returns an upper bound for all shards of a job together. By docs/sizing.md a parameter takes at
// most 10 floats of state, 11 more in a replica, and 5 floats for each worker: three gradients, one
// of a backup worker and a compressed one.
int64_t BytesAtMost(const v1::Graph& graph, int workers) {
  const int64_t floats = 21 + 5 * int64_t{workers};
  const ParameterCount count = CountParameters(graph);
  return (count.trained + count.statistic) * floats * static_cast<int64_t>(sizeof(float));
}

}  // namespace

std::string NeedText(const WaitingJob& job) {
  return absl::StrCat("its shards need up to ", FormatBytes(job.ps_memory.With(job.workers_min)),
                      " on each of ", job.ps, " ps with ", job.workers_min, " workers");
}

std::string TooSmallText(const WaitingJob& job, absl::Span<const FreeMembers::Ps> ps) {
  const auto largest = std::ranges::max_element(ps, {}, &FreeMembers::Ps::capacity_bytes);
  return absl::StrCat("too few ps of the fleet are large enough: ", NeedText(job),
                      "; the largest, ", largest->name, ", has ",
                      FormatBytes(largest->capacity_bytes), " (--memory_bytes)");
}

std::string MemoryWarning(const v1::Job& job, const v1::Graph& graph,
                          const absl::btree_map<std::string, AttachedMember>& members) {
  const v1::ResourceSpec& wanted = job.spec().resources();
  if (job.spec().sync().mode() == v1::ALLREDUCE) return "";
  std::vector<v1::Hello> workers, ps;
  for (const auto& [name, member] : members) {
    if (!member.attached || member.leaving) continue;
    (member.hello.role() == v1::PS ? ps : workers).push_back(member.hello);
  }
  if (std::ssize(ps) < wanted.ps()) return "";
  std::ranges::sort(ps, std::greater<>(), CapacityOf);
  std::vector<FreeMembers::Ps> fleet;
  for (const v1::Hello& hello : ps) {
    fleet.push_back({.name = hello.member(),
                     .room_bytes = CapacityOf(hello),
                     .capacity_bytes = CapacityOf(hello)});
  }
  ps.resize(wanted.ps());
  if (BytesAtMost(graph, wanted.workers().min()) <= CapacityOf(ps.back())) return "";
  // Any workers will do, because the plan depends only on their number and their hosts.
  workers.resize(wanted.workers().min());
  const auto plan = MakePlan({.job = job, .graph = graph, .workers = workers, .ps = ps});
  const WaitingJob waiting{.workers_min = wanted.workers().min(),
                           .ps = wanted.ps(),
                           .ps_memory = MostOf(MemoryOfPs(*plan))};
  if (FitOf(waiting, fleet) != MemoryFit::kTooLittle) return "";
  return absl::StrCat("resources.ps: ", TooSmallText(waiting, fleet),
                      ". Start ps with more memory, or set more ps");
}

}  // namespace muster
