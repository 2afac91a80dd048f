#include "services/coordinator/scheduling/placement.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "lib/text/byte_size.h"

namespace muster {
namespace {

int64_t CountPresent(const std::vector<std::string>& members) {
  return std::ranges::count_if(members, [](const std::string& name) { return !name.empty(); });
}

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::count(names, name) > 0;
}

void RemoveFrom(std::vector<std::string>& names, const std::vector<std::string>& taken) {
  std::erase_if(names, [&](const std::string& name) { return Contains(taken, name); });
}

// Returns whether memory, not members, is missing for the recovery.
bool LacksMemory(const RecoveringJob& job) {
  return CountPresent(job.workers) >= job.workers_min && CountPresent(job.ps) == std::ssize(job.ps);
}

// Returns what the job lacks. Completes "waits for".
std::string LackOf(const RecoveringJob& job) {
  if (LacksMemory(job)) {
    return absl::StrCat("memory of ps: it needs up to ", job.ps_memory.With(job.workers_min),
                        " bytes on each");
  }
  const int64_t workers = CountPresent(job.workers);
  std::string lack = absl::StrCat(
      "members: it has ", workers, workers == 1 ? " worker" : " workers", " and needs ",
      job.workers_min, ", it has ", CountPresent(job.ps), " of its ", job.ps.size(), " ps");
  if (const size_t others = job.of_other_kind.size(); others > 0) {
    absl::StrAppend(&lack, "; ", others, others == 1 ? " worker has" : " workers have",
                    " other devices than it needs");
  }
  return lack;
}

std::string LackOf(const WaitingJob& job, const FreeMembers& free) {
  std::string lack = absl::StrCat(
      "members: it needs ", job.workers_min, " workers and ", job.ps, " ps; ",
      CountSuitable(job, free.workers), " workers are free of ", SuitableAttached(job, free),
      job.unsuitable.empty() ? "" : " whose devices fit resources.tensor_parallel",
      ", and there are ", free.ps.size(), " ps");
  if (FitOf(job, free.ps) != MemoryFit::kFits) {
    absl::StrAppend(&lack, ", too few of which have the ",
                    FormatBytes(job.ps_memory.With(job.workers_min)), " that its shards may take");
  }
  return lack;
}

// Returns "its shards need up to 1.5 GiB on each of 2 ps with 4 workers".
std::string NeedText(const WaitingJob& job) {
  return absl::StrCat("its shards need up to ", FormatBytes(job.ps_memory.With(job.workers_min)),
                      " on each of ", job.ps, " ps with ", job.workers_min, " workers");
}

// Returns the notice for a queued job that stays in the queue. nullopt if its last notice still
// holds, which is the usual case among thousands of jobs.
std::optional<WaitNotice> NoticeOf(const WaitingJob& job, const std::vector<FreeMembers::Ps>& ps) {
  switch (FitOf(job, ps)) {
    case MemoryFit::kFits:
      if (!job.is_told_of_more) return std::nullopt;
      return WaitNotice{
          .number = job.number, .phase = JobPhase::kWaitsForMembers, .what = "members"};
    case MemoryFit::kWaits: {
      const auto roomiest = std::ranges::max_element(ps, {}, &FreeMembers::Ps::room_bytes);
      return WaitNotice{
          .number = job.number,
          .phase = JobPhase::kWaitsForMemory,
          .what = absl::StrCat("memory of ps: ", NeedText(job), "; the most that is free is ",
                               FormatBytes(roomiest->room_bytes), " of ",
                               FormatBytes(roomiest->capacity_bytes), ", on ", roomiest->name)};
    }
    case MemoryFit::kTooLittle: {
      const auto largest = std::ranges::max_element(ps, {}, &FreeMembers::Ps::capacity_bytes);
      return WaitNotice{
          .number = job.number,
          .phase = JobPhase::kMemoryTooSmall,
          .message = absl::StrCat("too few ps of the fleet are large enough: ", NeedText(job),
                                  "; the largest, ", largest->name, ", has ",
                                  FormatBytes(largest->capacity_bytes),
                                  " (--memory_bytes). Start ps with more memory, or suspend the "
                                  "job and resume it with more resources.ps")};
    }
  }
  return std::nullopt;
}

// Places a running job with more workers. Workers that arrive during a warm-up do not restart it;
// they join the next one. An exception is a warm-up that lost a member, if some of the others are
// of no use without it. Returns nullopt if the job cannot grow.
std::optional<Placement> PlaceNewcomers(const RunningJob::Growth& growth, const FreeMembers& free) {
  const RecoveringJob& job = growth.request;
  const bool all_free = std::ranges::all_of(growth.warming_up, [&](const std::string& name) {
    return Contains(free.workers, name) && !job.excluded.contains(name);
  });
  if (!growth.warming_up.empty() && all_free) {
    FreeMembers able = free;
    able.workers = growth.warming_up;
    std::optional<Placement> placement = PlaceAgain(job, able);
    if (placement && placement->workers.size() == job.workers.size() + growth.warming_up.size()) {
      return placement;
    }
  }
  FreeMembers able = free;
  std::optional<Placement> placement = PlaceAgain(job, able);
  if (placement && placement->workers.size() == job.workers.size()) return std::nullopt;
  return placement;
}

// A job fills its ranks, but does not grow by workers that another job needs.
void LimitToRanks(RecoveringJob& job) {
  job.workers_max = std::max(job.workers_min, static_cast<int>(job.workers.size()));
}

// One run of Place(). The functions are called in the order of their definitions.
class Placer {
 public:
  explicit Placer(ClusterState state) : state_(std::move(state)), free_(std::move(state_.free)) {}

  PlacementDecisions Run() {
    WaitForCommits();
    ResumeHalted();
    StartQueued();
    LetWorkersYield();
    const bool all_start = decisions_.starts.size() == state_.queued.size();
    if (free_.reserved_for == 0 && all_start && !state_.queue_is_cut) GrowRunning();
    SearchReplicas();
    return std::move(decisions_);
  }

 private:
  bool MayStopWaiting(bool waits_too_long) const { return waits_too_long && state_.all_are_back; }

  bool IsSettled(absl::Time since) const {
    return state_.now - since >= kGatherTime && state_.all_have_connected;
  }

  void WaitForCommits() {
    for (const CommittingJob& job : state_.committing) {
      if (state_.now - job.since < kFilesTakeMax) continue;
      if (MayStopWaiting(job.waits_too_long)) {
        decisions_.notices.push_back({.number = job.number,
                                      .what = "its checkpoint, which is still being committed",
                                      .stops = true});
      } else {
        decisions_.notices.push_back(
            {.number = job.number,
             .phase = JobPhase::kWaitsForCheckpoint,
             .what = absl::StrCat("its checkpoint, which is still being committed after ",
                                  absl::FormatDuration(kFilesTakeMax), ": the disk is slow")});
      }
    }
  }

  void ResumeHalted() {
    std::vector<RecoveringJob> early;  // jobs that cannot continue yet
    for (const HaltedJob& job : state_.halted) {
      if (!job.ready_since) early.push_back(job.request);
    }
    const bool others_lack_workers = std::ranges::any_of(early, [](const RecoveringJob& job) {
      return CountPresent(job.workers) < std::ssize(job.workers);
    });
    std::vector<RecoveringJob> unplaced;  // jobs that keep waiting
    std::vector<RecoveringJob> settled;   // jobs that have waited for kYieldsAfter
    for (const HaltedJob& halted : state_.halted) {
      if (!halted.ready_since) continue;
      RecoveringJob job = halted.request;
      job.settle_for_fewer = IsSettled(*halted.ready_since);
      const bool is_kept = state_.reserved_for != 0 && state_.reserved_for != job.number;
      if (is_kept || others_lack_workers || ReservedFor(unplaced, free_) != 0) LimitToRanks(job);
      if (std::optional<Placement> placement = PlaceAgain(job, free_)) {
        decisions_.resumes.push_back(*std::move(placement));
        continue;
      }
      if (!job.settle_for_fewer) {
        early.push_back(std::move(job));
        continue;
      }
      WaitNotice& notice = decisions_.notices.emplace_back(WaitNotice{
          .number = job.number,
          .phase = LacksMemory(job) ? JobPhase::kWaitsForMemory : JobPhase::kWaitsForMembers,
          .what = LackOf(job)});
      if (halted.recovers_to_stop) continue;  // it stops once it is told
      if (MayStopWaiting(halted.waits_too_long)) {
        notice.stops = true;
      } else {
        if (state_.now - *halted.ready_since >= kYieldsAfter) settled.push_back(job);
        unplaced.push_back(std::move(job));
      }
    }
    // Reserves the members that would let these jobs continue.
    for (RecoveringJob& job : early) {
      LimitToRanks(job);
      job.settle_for_fewer = true;
      if (!PlaceAgain(job, free_)) unplaced.push_back(std::move(job));
    }
    decisions_.reserved_for = free_.reserved_for = ReservedFor(unplaced, free_);
    // Only one job yields at a time, because its workers may be enough for several others.
    if (state_.all_are_back && !state_.any_yields && LastYields(settled, free_)) {
      decisions_.yield_all = {.number = settled.back().number, .what = LackOf(settled.back())};
    }
  }

  void StartQueued() {
    for (WaitingJob& job : state_.queued) {
      job.settle_for_fewer = IsSettled(job.since);
      job.has_reservation = state_.now - job.since >= kReserveAfter;
    }
    Decision decision = Decide(state_.queued, free_);
    absl::flat_hash_set<uint64_t> placed;
    for (const Placement& placement : decision.placements) placed.insert(placement.number);
    for (const WaitingJob& job : state_.queued) {
      if (placed.contains(job.number)) continue;
      if (MayStopWaiting(job.waits_too_long)) {
        const auto wait = std::ranges::find(decision.waits, job.number, &Wait::number);
        decisions_.notices.push_back({.number = job.number,
                                      .what = LackOf(job, free_),
                                      .stops = true,
                                      .reserved_for = wait->reserved_for});
      } else if (std::optional<WaitNotice> notice = NoticeOf(job, free_.ps)) {
        decisions_.notices.push_back(*std::move(notice));
      }
    }
    decisions_.starts = std::move(decision.placements);
    decisions_.waits = std::move(decision.waits);
  }

  // Only a job that has waited for kReserveAfter takes workers from others, because the autoscaler
  // or a job that ends may provide workers earlier. The freed workers go to that job, because it is
  // the first in the queue.
  void LetWorkersYield() {
    if (free_.reserved_for != 0 || decisions_.waits.empty() || state_.any_recovers) return;
    const Wait& first = decisions_.waits.front();
    const WaitingJob& job = *std::ranges::find(state_.queued, first.number, &WaitingJob::number);
    if (MayStopWaiting(job.waits_too_long)) return;
    if (first.cause != WaitCause::kWorkers || !job.has_reservation) return;
    if (std::ssize(free_.ps) < job.ps || FitOf(job, free_.ps) != MemoryFit::kFits) return;
    // The workers that others yield may be unsuitable, too.
    if (!job.unsuitable.empty()) return;
    // Workers that an earlier job yielded become free within a step.
    if (state_.workers_let_go) return;
    std::vector<const RunningJob*> givers;
    int spare = 0;
    for (const RunningJob& running : state_.running) {
      if (running.workers_to_yield == 0 || running.priority > job.priority) continue;
      givers.push_back(&running);
      spare += running.workers_to_yield;
    }
    int lacking = first.workers_needed - first.workers_free;
    if (spare < lacking) return;
    std::ranges::stable_sort(givers, std::greater<>(), &RunningJob::workers_to_yield);
    for (const RunningJob* giver : givers) {
      if (lacking <= 0) return;
      const int workers = std::min(lacking, giver->workers_to_yield);
      decisions_.yields.push_back(
          {.number = giver->number, .workers = workers, .beneficiary = job.number});
      halted_.insert(giver->number);
      lacking -= workers;
    }
  }

  // Uses free workers that no job waits for. They get the ranks that they would have if the job
  // were halted now.
  void GrowRunning() {
    FreeMembers free = free_;
    for (const Placement& placement : decisions_.starts)
      RemoveFrom(free.workers, placement.workers);
    for (RunningJob& job : state_.running) {
      if (!job.growth) continue;
      const size_t ranks = job.growth->request.workers.size();
      std::optional<Placement> placement = PlaceNewcomers(*job.growth, free);
      if (!placement) continue;
      std::vector<std::string> newcomers(placement->workers.begin() + ranks,
                                         placement->workers.end());
      RemoveFrom(free.workers, newcomers);
      std::ranges::sort(newcomers);
      if (newcomers != job.growth->warming_up) {
        if (job.has_task) continue;
        job.has_task = true;
        placement->ps.clear();  // a warm-up needs none
        decisions_.warm_ups.push_back(
            {.placement = *std::move(placement), .newcomers = static_cast<int>(newcomers.size())});
      } else if (job.growth->is_warm) {
        decisions_.joins.push_back(job.number);
        halted_.insert(job.number);
      }
    }
  }

  // Looks for members with which each job would continue if it were halted now. Skips a job if a
  // plan is about to use one of these ps, because the memory that will be left there is not known
  // yet.
  void SearchReplicas() {
    FreeMembers free = free_;
    absl::btree_set<std::string> given = std::move(state_.ps_in_plans);
    for (const auto* placements : {&decisions_.resumes, &decisions_.starts}) {
      for (const Placement& placement : *placements) {
        RemoveFrom(free.workers, placement.workers);
        given.insert(placement.ps.begin(), placement.ps.end());
      }
    }
    for (const auto& warm_up : decisions_.warm_ups) {
      RemoveFrom(free.workers, warm_up.placement.workers);
    }
    // A job that is halted for replicas would also take free workers.
    if (free_.reserved_for != 0) free.workers.clear();
    for (const RunningJob& job : state_.running) {
      if (!job.replication || job.has_task || halted_.contains(job.number)) continue;
      FreeMembers left = free;
      std::optional<Placement> placement = PlaceAgain(job.replication->request, left);
      if (!placement) continue;
      const bool there_is_one = std::ranges::any_of(placement->ps, [&](const std::string& ps) {
        return std::ranges::any_of(job.replication->primary,
                                   [&](const std::string& primary) { return primary != ps; });
      });
      const bool may_take = std::ranges::none_of(
          placement->ps, [&](const std::string& ps) { return given.contains(ps); });
      if (there_is_one && may_take) decisions_.replica_searches.push_back(*std::move(placement));
    }
  }

  ClusterState state_;
  FreeMembers free_;                      // without the members of recovering jobs that were placed
  absl::flat_hash_set<uint64_t> halted_;  // the running jobs that the decisions halt
  PlacementDecisions decisions_;
};

}  // namespace

PlacementDecisions Place(ClusterState state) { return Placer(std::move(state)).Run(); }

std::vector<uint64_t> ReplaceableJobs(absl::Span<const MissingMembers> jobs,
                                      const FreeMembers& free) {
  std::vector<std::string> left = free.workers;
  std::vector<uint64_t> replaceable;
  for (const MissingMembers& job : jobs) {
    std::vector<std::string> able;
    std::ranges::copy_if(left, std::back_inserter(able),
                         [&](const std::string& name) { return !job.excluded.contains(name); });
    if (std::ssize(able) < job.workers) continue;
    able.resize(job.workers);
    RemoveFrom(left, able);
    replaceable.push_back(job.number);
  }
  return replaceable;
}

}  // namespace muster
