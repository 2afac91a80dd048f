#include "services/coordinator/planning/scheduler.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "lib/job/resource_name.h"
#include "lib/limits/limits.h"
#include "lib/plan/worker_devices.h"
#include "lib/text/byte_size.h"
#include "services/coordinator/job/recovery/failure_detector.h"
#include "services/coordinator/job/recovery/replica_placement.h"
#include "services/coordinator/scheduling/memory_check.h"
#include "services/coordinator/scheduling/plan_memory.h"
#include "services/coordinator/scheduling/worker_numbers.h"

namespace muster {
namespace {

// A job that could have more workers than are free waits this long for workers that are still
// attaching.
constexpr absl::Duration kGatherTime = absl::Seconds(2);
// After the coordinator's start, a member in its longest back-off also gets this long to connect. A
// job that starts without it must be halted to take it later, and some jobs cannot take it at all.
constexpr absl::Duration kConnectTime = absl::Seconds(3);
// The scheduler reserves freed members for a job that has not fitted for this long. With a shorter
// time, reserved members stay idle for longer. With a longer one, more small jobs pass it.
constexpr absl::Duration kReserveAfter = absl::Minutes(1);

// How long a worker counts as part of the fleet while it still serves a job that has ended, or that
// continues without it. It becomes free within a step, so after this time it probably hangs.
constexpr absl::Duration kLetsGoMax = absl::Minutes(1);

// How long members may be reserved for a recovering job while its workers' records are written and
// its checkpoint is committed. That takes moments, so after this time its disk probably hangs.
constexpr absl::Duration kFilesTakeMax = absl::Minutes(1);

// How long recovering jobs may block each other, because each holds workers that another one needs.
// New workers may solve that in this time. After it one of the jobs yields: it stops, so that
// another can continue.
constexpr absl::Duration kYieldsAfter = absl::Minutes(1);

// Returns the ps of these shards and of their replicas.
std::vector<std::string> HoldersOf(const std::vector<v1::PlanShard>& shards) {
  std::vector<std::string> holders;
  const auto add = [&](const std::string& name) {
    if (std::ranges::count(holders, name) == 0) holders.push_back(name);
  };
  for (const v1::PlanShard& shard : shards) add(shard.member());
  for (const v1::PlanShard& shard : shards) {
    if (shard.has_backup()) add(shard.backup().member());
  }
  return holders;
}

// How long a running job that lacks replicas is not searched again in the same generation.
constexpr absl::Duration kSearchAgain = absl::Seconds(10);

std::shared_ptr<const PlanTask> TaskOf(uint64_t number, const Placement& placement,
                                       const absl::btree_map<std::string, AttachedMember>& members,
                                       decltype(PlanTask::work) work) {
  auto task = std::make_shared<PlanTask>();
  task->number = number;
  for (const std::string& name : placement.workers) {
    task->workers.push_back(members.at(name).hello);
  }
  for (const std::string& name : placement.ps) task->ps.push_back(members.at(name).hello);
  task->work = std::move(work);
  return task;
}

int64_t CountPresent(const std::vector<std::string>& members) {
  return std::ranges::count_if(members, [](const std::string& name) { return !name.empty(); });
}

// Returns whether memory, not members, is missing for the recovery.
bool LacksMemory(const RecoveringJob& job) {
  return CountPresent(job.workers) >= job.workers_min && CountPresent(job.ps) == std::ssize(job.ps);
}

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

// Places a running job with more workers. Workers that arrive during a warm-up do not restart it;
// they join the next one. An exception is a warm-up that lost a member, if some of the others are
// of no use without it. Returns nullopt if the job cannot grow.
std::optional<Placement> PlaceNewcomers(const RecoveringJob& job, const WarmUp& warm_up,
                                        const FreeMembers& free) {
  const std::vector<std::string> warming_up = warm_up.members();
  const bool all_free = std::ranges::all_of(warming_up, [&](const std::string& name) {
    return std::ranges::count(free.workers, name) > 0;
  });
  if (!warming_up.empty() && all_free) {
    FreeMembers able = free;
    able.workers = warming_up;
    std::optional<Placement> placement = PlaceAgain(job, able);
    if (placement && placement->workers.size() == job.workers.size() + warming_up.size()) {
      return placement;
    }
  }
  FreeMembers able = free;
  std::optional<Placement> placement = PlaceAgain(job, able);
  if (placement && placement->workers.size() == job.workers.size()) return std::nullopt;
  return placement;
}

// Returns the attached workers with devices that cannot share the job's model.
absl::btree_set<std::string> Unsuitable(
    const v1::JobSpec& spec, const absl::btree_map<std::string, AttachedMember>& members) {
  absl::btree_set<std::string> unsuitable;
  const int degree = spec.resources().tensor_parallel();
  if (degree <= 1) return unsuitable;
  for (const auto& [name, member] : members) {
    if (!member.attached || member.leaving || member.hello.role() != v1::WORKER) continue;
    if (!CanShareModel(member.hello.devices(), degree)) unsuitable.insert(name);
  }
  return unsuitable;
}

}  // namespace

Scheduler::Scheduler(JobRegistry* registry, Fleet* fleet, PlanWorker::ModelBuilder build_model,
                     PlanWorker::RestoreChooser choose)
    : registry_(registry),
      fleet_(fleet),
      worker_(registry, fleet, &memory_, std::move(build_model), std::move(choose)) {}

// ---------------------------------------------------------------- memory of ps

// Accounts for the memory of plans that this scheduler did not make, which are from before a
// restart. Forgets what jobs took that are not active any more.
void Scheduler::LearnWhatIsTaken() {
  std::vector<std::shared_ptr<const v1::JobPlan>> unknown;
  {
    JobRegistry::Transaction transaction(registry_);
    absl::flat_hash_set<uint64_t> active;
    for (const JobRegistry::Entry* entry : transaction.Active()) {
      active.insert(entry->job.record().number());
      if (!memory_.Knows(*entry->job.plan())) unknown.push_back(entry->job.plan());
    }
    memory_.KeepOnly(active);
    absl::erase_if(searches_, [&](const auto& search) { return !active.contains(search.first); });
  }
  for (const auto& plan : unknown) memory_.Take(*plan, MemoryOfPs(*plan));
}

// Whether a job may be stopped because its start_timeout is over. After a restart, members must get
// the chance to reattach first. While the coordinator is partitioned, it cannot know which members
// are available.
bool Scheduler::MayGiveUpWaiting(const Job& job, absl::Time now) const {
  return now - start_ >= FailureDetector::kRestartGrace && !fleet_->partitioned() &&
         job.WaitsTooLong(now);
}

// Makes jobs whose last checkpoint is still being committed wait, or stops those that have waited
// too long. Queued jobs, and jobs that lost their shards, continue from it after its commit.
void Scheduler::WaitForCommits(JobRegistry::Transaction& transaction) {
  const absl::Time now = registry_->Now();
  for (const auto& [number, entry] : transaction.jobs()) {
    if (!entry->rounds.committing()) continue;
    const absl::Time queued_since = entry->queued_since;
    absl::Time since = queued_since;
    if (entry->job.state() != v1::QUEUED) {
      const std::optional<Job::ResumePoint> resume_point = entry->job.ResumesAt(now);
      if (!resume_point || resume_point->carries) continue;
      since = resume_point->since;
    }
    if (now - since < kFilesTakeMax) continue;  // usually the commit takes only a moment
    if (MayGiveUpWaiting(entry->job, now)) {
      entry->job.StopWaiting("its checkpoint, which is still being committed", now);
    } else {
      entry->job.WaitFor(JobPhase::kWaitsForCheckpoint,
                         absl::StrCat("its checkpoint, which is still being committed after ",
                                      absl::FormatDuration(kFilesTakeMax), ": the disk is slow"),
                         now);
    }
    transaction.Commit(*entry);
    // Commit() resets queued_since with every event of a queued job.
    entry->queued_since = queued_since;
  }
}

// Stops a job whose start_timeout is over. Returns whether it did. The message says what the job
// needs, and what the fleet has.
bool Scheduler::GiveUpWaiting(JobRegistry::Transaction& transaction, const WaitingJob& waiting,
                              const FreeMembers& free) {
  JobRegistry::Entry& entry = *transaction.FindNumber(waiting.number);
  const absl::Time now = registry_->Now();
  if (!MayGiveUpWaiting(entry.job, now)) return false;
  std::string lacks =
      absl::StrCat("members: it needs ", waiting.workers_min, " workers and ", waiting.ps, " ps; ",
                   CountSuitable(waiting, free.workers), " workers are free of ",
                   SuitableAttached(waiting, free),
                   waiting.unsuitable.empty() ? "" : " whose devices fit resources.tensor_parallel",
                   ", and there are ", free.ps.size(), " ps");
  if (FitOf(waiting, free.ps) != MemoryFit::kFits) {
    absl::StrAppend(&lacks, ", too few of which have the ",
                    FormatBytes(waiting.ps_memory.With(waiting.workers_min)),
                    " that its shards may take");
  }
  if (entry.wait && entry.wait->reserved_for != 0) {
    const JobRegistry::Entry* const first = transaction.FindNumber(entry.wait->reserved_for);
    absl::StrAppend(&lacks, "; freed members are reserved for job number ",
                    entry.wait->reserved_for, " (", JobIdOf(first->job.record().name()),
                    "), which goes before it");
  }
  entry.job.StopWaiting(lacks, now);
  transaction.Commit(entry);
  return true;
}

// Records an event when the reason changes, not when the figures change.
void Scheduler::TellWhatIsWaitedFor(JobRegistry::Transaction& transaction,
                                    const WaitingJob& waiting,
                                    const std::vector<FreeMembers::Ps>& ps) {
  JobRegistry::Entry& entry = *transaction.FindNumber(waiting.number);
  const JobPhase told = entry.job.phase();
  const bool told_of_more = told == JobPhase::kWaitsForMemory ||
                            told == JobPhase::kMemoryTooSmall ||
                            told == JobPhase::kWaitsForCheckpoint;
  const MemoryFit fit = FitOf(waiting, ps);
  if (fit == MemoryFit::kFits && !told_of_more) return;  // the usual case, among thousands of jobs
  const absl::Time now = registry_->Now();
  const absl::Time queued_since = entry.queued_since;
  switch (fit) {
    case MemoryFit::kFits:
      entry.job.Wait(JobPhase::kWaitsForMembers, "waits for members", now);
      break;
    case MemoryFit::kWaits: {
      const auto roomiest = std::ranges::max_element(ps, {}, &FreeMembers::Ps::room_bytes);
      entry.job.Wait(
          JobPhase::kWaitsForMemory,
          absl::StrCat("waits for memory of ps: ", NeedText(waiting), "; the most that is free is ",
                       FormatBytes(roomiest->room_bytes), " of ",
                       FormatBytes(roomiest->capacity_bytes), ", on ", roomiest->name),
          now);
      break;
    }
    case MemoryFit::kTooLittle:
      entry.job.Wait(JobPhase::kMemoryTooSmall,
                     absl::StrCat(TooSmallText(waiting, ps),
                                  ". Start ps with more memory, or suspend the job and resume it "
                                  "with more resources.ps"),
                     now);
      break;
  }
  transaction.Commit(entry);
  entry.queued_since = queued_since;  // it has waited since before this event
}

// ---------------------------------------------------------------- choosing

std::vector<WaitingJob> Scheduler::WaitingJobs(const JobRegistry::Transaction& transaction,
                                               const PlanWorker::UnderWay& under_way) {
  const absl::Time now = registry_->Now();
  memory_.ForgetNeeds(now, [&](uint64_t number, int ps) {
    const JobRegistry::Entry* const entry = transaction.FindNumber(number);
    const bool waits = entry != nullptr &&
                       (entry->job.state() == v1::QUEUED || entry->job.state() == v1::RECOVERING);
    return waits && entry->job.record().spec().resources().ps() == ps;
  });
  std::vector<WaitingJob> waiting;
  for (const auto& [number, entry] : transaction.jobs()) {
    if (entry->job.state() != v1::QUEUED || under_way.contains(number)) continue;
    if (entry->rounds.committing()) continue;  // see WaitForCommits()
    const v1::JobSpec& spec = entry->job.record().spec();
    const v1::WorkerCount& workers = spec.resources().workers();
    absl::btree_set<std::string> former;
    if (const v1::Job& record = entry->job.record(); workers.logical() > 0) {
      former.insert(record.workers().begin(), record.workers().end());
    }
    waiting.push_back({.number = number,
                       .priority = spec.priority(),
                       .workers_min = workers.min(),
                       .workers_max = MostWorkers(spec),
                       .logical = workers.logical(),
                       .preferred = std::move(former),
                       .ps = spec.sync().mode() == v1::ALLREDUCE ? 0 : spec.resources().ps(),
                       .ps_memory = memory_.MostNeeded(number),
                       .settle_for_fewer = now - entry->queued_since >= kGatherTime &&
                                           now - start_ >= limits::kAttachBackoffMax + kConnectTime,
                       .has_reservation = now - entry->queued_since >= kReserveAfter});
  }
  return waiting;
}

FreeMembers Scheduler::FindFreeMembers(const JobRegistry::Transaction& transaction,
                                       const PlanWorker::UnderWay& under_way,
                                       const absl::btree_map<std::string, AttachedMember>& members,
                                       const LettingGo& before) {
  const absl::Time now = registry_->Now();
  absl::flat_hash_map<std::string, int> jobs;  // by member
  for (const auto& [number, task] : under_way) {
    for (const v1::Hello& hello : task->workers) ++jobs[hello.member()];
    for (const v1::Hello& hello : task->ps) ++jobs[hello.member()];
  }
  const std::vector<JobRegistry::Entry*> active = transaction.Active();
  const BytesByPs taken = TakenOfPs(transaction, memory_);
  FreeMembers free;
  for (const auto& [name, member] : members) {
    if (!member.attached || member.leaving) continue;
    const int serving = jobs[name] + static_cast<int>(std::ranges::count_if(
                                         active, [&name = name](const JobRegistry::Entry* entry) {
                                           return entry->job.Uses(name);
                                         }));
    if (member.hello.role() == v1::PS) {
      free.ps.push_back({.name = name,
                         .jobs = serving,
                         .room_bytes = RoomOf(member.hello, taken),
                         .capacity_bytes = CapacityOf(member.hello)});
    } else if (serving > 0 || member.jobs.empty()) {
      ++free.workers_attached;
      if (serving == 0) free.workers.push_back(name);
    } else {
      // The worker reports a job that no longer counts on it.
      const auto known = before.find(name);
      const absl::Time since = known == before.end() ? now : known->second;
      letting_go_[name] = since;
      if (now - since < kLetsGoMax) ++free.workers_attached;
    }
  }
  return free;
}

void Scheduler::AddNeeds(const JobRegistry::Transaction& transaction,
                         const JobRegistry::Entry& entry,
                         const absl::btree_map<std::string, AttachedMember>& members,
                         RecoveringJob& job) const {
  const uint64_t number = entry.job.record().number();
  const BytesByPs others = TakenOfPs(transaction, memory_, number);
  const MemoryByPs memory = memory_.MemoryOf(number);
  job.ps_memory = MostOf(memory);
  for (const std::string& ps : job.ps) {
    const auto known = members.find(ps);
    if (known == members.end()) continue;
    const auto own = memory.find(ps);
    job.own_ps[ps] = {.memory = own == memory.end() ? job.ps_memory : own->second,
                      .room_bytes = RoomOf(known->second.hello, others),
                      .capacity_bytes = CapacityOf(known->second.hello)};
  }
}

RecoveringJob Scheduler::Describe(const JobRegistry::Transaction& transaction,
                                  const JobRegistry::Entry& entry,
                                  const Job::ResumePoint& resume_point,
                                  const absl::btree_map<std::string, AttachedMember>& members,
                                  const FreeMembers& free) const {
  const v1::Job& record = entry.job.record();
  const absl::Time now = registry_->Now();
  // Returns the name of a member that stays with the job, otherwise "". A leaving ps stays while
  // the shards continue in place, because no checkpoint has their data.
  auto unless_lost = [&](const std::string& member) -> std::string {
    const auto known = members.find(member);
    if (known == members.end() || !known->second.attached || !entry.job.Uses(member)) return "";
    const bool is_kept = resume_point.carries && known->second.hello.role() == v1::PS;
    return known->second.leaving && !is_kept ? "" : member;
  };
  const v1::WorkerCount& workers = record.spec().resources().workers();
  const absl::btree_set<std::string> unsuitable = Unsuitable(record.spec(), members);
  RecoveringJob job{
      .number = record.number(),
      .workers_min = entry.job.RecoversToStop() ? 1 : workers.min(),
      .workers_max = entry.job.WorkersMax(),
      .logical = workers.logical(),
      .settle_for_fewer = now - resume_point.since >= kGatherTime &&
                          now - start_ >= limits::kAttachBackoffMax + kConnectTime,
      .excluded = unsuitable,
      // A job that recovers only to stop does not need an excluded worker: it stops without one.
      .tries_excluded = !entry.job.RecoversToStop(),
      .of_other_kind = unsuitable,
      .keeps_ps = resume_point.carries};
  const auto has_excluded = [&](const std::string& name) {
    return entry.job.exclusions().Why(name) != nullptr;
  };
  // The job was halted for workers that have warmed up. It takes other free workers only if it
  // would have too few without them, so they count as excluded.
  const bool joins = entry.job.phase() == JobPhase::kWorkersJoin;
  for (const std::string& name : free.workers) {
    const bool unprepared = joins && !entry.job.warm_up().Has(name);
    if (unprepared || has_excluded(name)) job.excluded.insert(name);
  }
  for (const FreeMembers::Ps& ps : free.ps) {
    if (has_excluded(ps.name)) job.excluded_ps.insert(ps.name);
  }
  for (const std::string& worker : record.workers()) {
    std::string& rank = job.workers.emplace_back(unless_lost(worker));
    // An excluded worker loses its rank.
    if (has_excluded(rank)) job.excluded.insert(std::exchange(rank, ""));
  }
  if (CountPresent(job.workers) > 0) {
    for (const auto& [name, member] : members) {
      const bool is_other = member.attached && entry.job.exclusions().IsOfOtherKind(name);
      if (is_other) job.of_other_kind.insert(name);
    }
  }
  // A job that yields workers leaves its last ranks out. Other recoveries keep every rank.
  if (entry.job.phase() == JobPhase::kWorkersYield && std::ssize(job.workers) > job.workers_max) {
    job.workers.resize(job.workers_max);
  }
  std::vector<std::string> holders(record.ps().begin(), record.ps().end());
  const v1::ResourceSpec& resources = record.spec().resources();
  if (resume_point.carries) {
    holders = HoldersOf(resume_point.shards);
    job.ps_wanted = resources.ps_replication() > 1 ? resources.ps() : 0;
  }
  for (const std::string& ps : holders) job.ps.push_back(unless_lost(ps));
  // The previous generation may have had fewer ps, if replicas took the places of lost shards.
  const bool has_ps = record.spec().sync().mode() != v1::ALLREDUCE;
  while (!resume_point.carries && has_ps && std::ssize(job.ps) < resources.ps()) {
    job.ps.emplace_back();
  }
  AddNeeds(transaction, entry, members, job);
  return job;
}

// The resume point of a halted job is not known yet. Until the job has stopped it keeps its memory,
// whatever the resume point will be. Lost ps are left out, because replicas may replace them.
RecoveringJob Scheduler::DescribeHalted(const JobRegistry::Transaction& transaction,
                                        const JobRegistry::Entry& entry,
                                        const absl::btree_map<std::string, AttachedMember>& members,
                                        const FreeMembers& free) const {
  const auto& shards = entry.job.plan()->shards();
  RecoveringJob job = Describe(transaction, entry,
                               {.carries = entry.job.HoldsMemory(),
                                .shards = {shards.begin(), shards.end()},
                                .since = registry_->Now()},
                               members, free);
  if (job.keeps_ps) std::erase(job.ps, "");
  return job;
}

bool Scheduler::GoesOnSoon(const Job& job, absl::Time now) const {
  return !job.RecoversToStop() && registry_->MetricsTrouble(job.record().number()).ok() &&
         now - job.WaitsForFilesSince() < kFilesTakeMax;
}

PlanWorker::Tasks Scheduler::Recoveries(JobRegistry::Transaction& transaction,
                                        const PlanWorker::UnderWay& under_way,
                                        const absl::btree_map<std::string, AttachedMember>& members,
                                        FreeMembers& free) {
  const absl::Time now = registry_->Now();
  std::vector<JobRegistry::Entry*> entries = transaction.Active();
  std::ranges::stable_sort(entries, std::greater<>(), [](const JobRegistry::Entry* entry) {
    return entry->job.record().spec().priority();
  });
  std::vector<std::pair<JobRegistry::Entry*, Job::ResumePoint>> ready;
  std::vector<RecoveringJob> early;  // jobs that cannot continue yet
  for (JobRegistry::Entry* entry : entries) {
    const Job& job = entry->job;
    if (job.state() != v1::RECOVERING || under_way.contains(job.record().number())) continue;
    std::optional<Job::ResumePoint> resume_point = job.ResumesAt(now);
    // A checkpoint that is being committed is a better resume point. One that is still being
    // written will not complete, because the job does not run.
    if (resume_point && (resume_point->carries || !entry->rounds.committing())) {
      ready.emplace_back(entry, *std::move(resume_point));
    } else if (GoesOnSoon(job, now)) {
      early.push_back(DescribeHalted(transaction, *entry, members, free));
    }
  }
  const bool others_lack_workers = std::ranges::any_of(early, [](const RecoveringJob& job) {
    return CountPresent(job.workers) < std::ssize(job.workers);
  });
  const auto limit_to_ranks = [](RecoveringJob& job) {
    job.workers_max = std::max(job.workers_min, static_cast<int>(job.workers.size()));
  };
  PlanWorker::Tasks tasks;
  std::vector<RecoveringJob> unplaced;  // jobs that keep waiting
  std::vector<RecoveringJob> settled;   // jobs that have waited for kYieldsAfter
  for (const auto& [entry, resume_point] : ready) {
    const v1::Job& record = entry->job.record();
    RecoveringJob job = Describe(transaction, *entry, resume_point, members, free);
    // A job fills its ranks, but does not grow by workers that another job needs.
    const bool is_kept = reserved_for_ != 0 && reserved_for_ != record.number();
    if (is_kept || others_lack_workers || ReservedFor(unplaced, free) != 0) limit_to_ranks(job);
    const std::optional<Placement> placement = PlaceAgain(job, free);
    if (!placement) {
      if (!job.settle_for_fewer) {
        early.push_back(std::move(job));
        continue;
      }
      const bool recovers_to_stop = entry->job.RecoversToStop();
      TellWhoIsMissing(*entry, job);
      if (recovers_to_stop) {
        // It stops by itself.
      } else if (MayGiveUpWaiting(entry->job, now)) {
        entry->job.StopWaiting(LackOf(job), now);
      } else {
        if (now - resume_point.since >= kYieldsAfter) settled.push_back(job);
        unplaced.push_back(std::move(job));
      }
      transaction.Commit(*entry);
      continue;
    }
    tasks.push_back(TaskOf(record.number(), *placement, members,
                           Resume{.revision = record.revision(), .resume_point = resume_point}));
  }
  // Reserves the members that would let these jobs continue.
  for (RecoveringJob& job : early) {
    limit_to_ranks(job);
    job.settle_for_fewer = true;
    if (!PlaceAgain(job, free)) unplaced.push_back(std::move(job));
  }
  reserved_for_ = free.reserved_for = ReservedFor(unplaced, free);
  const bool all_are_back =
      now - start_ >= FailureDetector::kRestartGrace && !fleet_->partitioned();
  // Only one job yields at a time, because its workers may be enough for several others.
  const bool one_does = std::ranges::any_of(
      entries, [](const JobRegistry::Entry* entry) { return entry->job.Yields(); });
  if (all_are_back && !one_does && LastYields(settled, free)) {
    JobRegistry::Entry& last = *transaction.FindNumber(settled.back().number);
    last.job.Yield(LackOf(settled.back()), now);
    transaction.Commit(last);
  }
  return tasks;
}

// The job does not wait for the whole grace, which is for members that learn late of the new
// coordinator. A coordinator that stayed up would wait only for the lease of a silent member, 5 s.
bool Scheduler::GiveUpMissing(JobRegistry::Transaction& transaction,
                              const absl::btree_map<std::string, AttachedMember>& members,
                              const FreeMembers& free) const {
  if (fleet_->partitioned()) return false;
  const absl::Time now = registry_->Now();
  std::vector<std::string> left = free.workers;
  bool gave_up = false;
  for (JobRegistry::Entry* entry : transaction.Active()) {
    Job& job = entry->job;
    const std::vector<std::string> missing = job.MissingSinceRestart(now);
    const bool about_to_report = std::ranges::any_of(missing, [&](const std::string& name) {
      const auto known = members.find(name);
      return known != members.end() && known->second.attached;
    });
    if (missing.empty() || about_to_report) continue;
    const auto lacks = std::ranges::count_if(missing, [&](const std::string& name) {
      return std::ranges::count(job.record().workers(), name) > 0;
    });
    const absl::btree_set<std::string> unsuitable = Unsuitable(job.record().spec(), members);
    std::vector<std::string> able;
    std::ranges::copy_if(left, std::back_inserter(able), [&](const std::string& name) {
      return job.exclusions().Why(name) == nullptr && !unsuitable.contains(name);
    });
    if (std::ssize(able) < lacks) continue;
    able.resize(lacks);
    std::erase_if(left, [&](const auto& name) { return std::ranges::count(able, name) > 0; });
    for (const std::string& name : missing) {
      job.MemberLost(name,
                     absl::StrCat("it did not come back within ",
                                  absl::FormatDuration(FailureDetector::kReturnTime),
                                  " after the others, since the coordinator's restart, and the job "
                                  "can go on without it"),
                     now);
    }
    transaction.Commit(*entry);
    gave_up = true;
  }
  return gave_up;
}

// The message also says what happened to the job, because that is why it does not run.
void Scheduler::TellWhoIsMissing(JobRegistry::Entry& entry, const RecoveringJob& job) {
  entry.job.WaitFor(LacksMemory(job) ? JobPhase::kWaitsForMemory : JobPhase::kWaitsForMembers,
                    LackOf(job), registry_->Now());
}

// Uses free workers that no job waits for. They get the ranks that they would have if the job were
// halted now.
PlanWorker::Tasks Scheduler::LetFreeWorkersJoin(
    JobRegistry::Transaction& transaction, const std::vector<Placement>& placements,
    const absl::btree_map<std::string, AttachedMember>& members, FreeMembers free) {
  for (const Placement& placement : placements) {
    std::erase_if(free.workers, [&](const std::string& name) {
      return std::ranges::count(placement.workers, name) > 0;
    });
  }
  const absl::Time now = registry_->Now();
  PlanWorker::Tasks warm_ups;
  for (JobRegistry::Entry* entry : transaction.Active()) {
    if (!entry->job.TakesMoreWorkers(now)) continue;
    const v1::Job& record = entry->job.record();
    const WarmUp& warm_up = entry->job.warm_up();
    RecoveringJob job{.workers = {record.workers().begin(), record.workers().end()},
                      .workers_min = record.workers_size(),
                      .workers_max = entry->job.WorkersMax(),
                      .logical = record.spec().resources().workers().logical(),
                      .ps = {record.ps().begin(), record.ps().end()},
                      .keeps_ps = true};
    AddNeeds(transaction, *entry, members, job);
    FreeMembers able = free;
    const absl::btree_set<std::string> unsuitable = Unsuitable(record.spec(), members);
    std::erase_if(able.workers, [&](const auto& name) {
      return entry->job.exclusions().ExcludesNow(name) || unsuitable.contains(name);
    });
    const std::optional<Placement> placement = PlaceNewcomers(job, warm_up, able);
    if (!placement) continue;
    const std::vector<std::string> newcomers(placement->workers.begin() + std::ssize(job.workers),
                                             placement->workers.end());
    std::erase_if(free.workers,
                  [&](const std::string& name) { return std::ranges::count(newcomers, name) > 0; });
    switch (warm_up.Of(newcomers)) {
      case WarmUp::State::kDone:
        entry->job.LetWorkersJoin(now);
        transaction.Commit(*entry);
        break;
      case WarmUp::State::kUnderWay:
        break;
      case WarmUp::State::kNone: {
        const bool all_known = std::ranges::all_of(
            placement->workers, [&](const std::string& name) { return members.contains(name); });
        if (!all_known) break;
        warm_ups.push_back(
            TaskOf(record.number(), {.workers = placement->workers}, members,
                   WarmUpNewcomers{.generation = record.generation(),
                                   .newcomers = static_cast<int>(newcomers.size())}));
        break;
      }
    }
  }
  return warm_ups;
}

// Only a job that has waited for kReserveAfter takes workers from others, because the autoscaler or
// a job that ends may provide workers earlier. The freed workers go to that job, because it is the
// first in the queue.
void Scheduler::LetWorkersYield(JobRegistry::Transaction& transaction,
                                const std::vector<WaitingJob>& waiting, const Decision& decision,
                                const FreeMembers& free) {
  if (free.reserved_for != 0 || decision.waits.empty()) return;
  const Wait& first = decision.waits.front();
  const WaitingJob& job = *std::ranges::find(waiting, first.number, &WaitingJob::number);
  if (first.cause != WaitCause::kWorkers || !job.has_reservation) return;
  if (std::ssize(free.ps) < job.ps || FitOf(job, free.ps) != MemoryFit::kFits) return;
  // The workers that others yield may be unsuitable, too.
  if (!job.unsuitable.empty()) return;
  // Workers that an earlier job yielded become free within a step.
  if (!letting_go_.empty()) return;

  const absl::Time now = registry_->Now();
  std::vector<JobRegistry::Entry*> givers;
  int spare = 0;
  for (JobRegistry::Entry* entry : transaction.Active()) {
    if (entry->job.state() == v1::RECOVERING) return;
    const int workers = entry->job.WorkersToYield(now);
    if (workers == 0 || entry->job.record().spec().priority() > job.priority) continue;
    givers.push_back(entry);
    spare += workers;
  }
  int lacking = first.workers_needed - first.workers_free;
  if (spare < lacking) return;
  std::ranges::stable_sort(givers, std::greater<>(), [now](const JobRegistry::Entry* entry) {
    return entry->job.WorkersToYield(now);
  });
  const std::string id = JobIdOf(transaction.FindNumber(job.number)->job.record().name());
  for (JobRegistry::Entry* entry : givers) {
    if (lacking <= 0) return;
    const int workers = std::min(lacking, entry->job.WorkersToYield(now));
    entry->job.YieldWorkers(workers, id, now);
    transaction.Commit(*entry);
    lacking -= workers;
  }
}

// Looks for members with which each job would continue if it were halted now. Skips a job if
// another start is about to use one of these ps, because the memory that will be left there is not
// known yet.
PlanWorker::Tasks Scheduler::LookForReplicas(
    const JobRegistry::Transaction& transaction, const PlanWorker::Tasks& tasks,
    const absl::btree_map<std::string, AttachedMember>& members, FreeMembers free) {
  absl::flat_hash_set<uint64_t> under_way;
  absl::flat_hash_set<std::string> given;
  for (const auto& task : tasks) {
    under_way.insert(task->number);
    for (const v1::Hello& worker : task->workers) std::erase(free.workers, worker.member());
    for (const v1::Hello& ps : task->ps) given.insert(ps.member());
  }
  const absl::Time now = registry_->Now();
  PlanWorker::Tasks searches;
  for (const JobRegistry::Entry* entry : transaction.Active()) {
    const v1::Job& record = entry->job.record();
    if (!entry->job.TakesReplicas(now) || under_way.contains(record.number())) continue;
    const auto& shards = entry->job.plan()->shards();
    FreeMembers left = free;
    const std::optional<Placement> placement = PlaceAgain(
        Describe(transaction, *entry,
                 {.carries = true, .shards = {shards.begin(), shards.end()}, .since = now}, members,
                 left),
        left);
    if (!placement) continue;
    const bool there_is_one = std::ranges::any_of(placement->ps, [&](const std::string& ps) {
      return std::ranges::any_of(shards, [&](const v1::PlanShard& shard) {
        return !shard.has_backup() && shard.member() != ps;
      });
    });
    const bool may_take = std::ranges::none_of(
        placement->ps, [&](const std::string& ps) { return given.contains(ps); });
    if (!there_is_one || !may_take) continue;
    // The plan may have no more replicas than the estimate promised. The next plan would not
    // either, except if the fleet has changed.
    Search& search = searches_[record.number()];
    if (search.generation == record.generation() && now - search.time < kSearchAgain) continue;
    search = {.generation = record.generation(), .time = now};
    searches.push_back(TaskOf(record.number(), *placement, members,
                              AddReplicas{.generation = record.generation()}));
  }
  return searches;
}

void Scheduler::Pass() {
  // If the store is not writable, no start could be stored.
  if (registry_->changes().full() || !registry_->changes().trouble().ok()) return;
  // Keeps entries of the previous pass only if this pass finds them again. A pass that returns
  // early keeps none.
  const auto letting_go = std::exchange(letting_go_, {});
  start_ = std::min(start_, registry_->Now());
  LearnWhatIsTaken();
  const PlanWorker::UnderWay under_way = worker_.under_way();
  PlanWorker::Tasks tasks;
  {
    JobRegistry::Transaction transaction(registry_);
    WaitForCommits(transaction);
    std::vector<WaitingJob> waiting = WaitingJobs(transaction, under_way);
    bool recovering = std::ranges::any_of(transaction.Active(), [](const auto* entry) {
      return entry->job.state() == v1::RECOVERING;
    });
    // A job that already recovers goes before jobs that would only begin to.
    const bool missing =
        !recovering &&
        std::ranges::any_of(transaction.Active(), [now = registry_->Now()](const auto* entry) {
          return !entry->job.MissingSinceRestart(now).empty();
        });
    const bool growing =
        std::ranges::any_of(transaction.Active(), [now = registry_->Now()](const auto* e) {
          return e->job.TakesMoreWorkers(now) || e->job.TakesReplicas(now);
        });
    if (!recovering) reserved_for_ = 0;
    if (waiting.empty() && !recovering && !growing && !missing) return;
    const auto members = fleet_->members();
    for (WaitingJob& job : waiting) {
      job.unsuitable = Unsuitable(transaction.FindNumber(job.number)->job.record().spec(), members);
    }
    FreeMembers free = FindFreeMembers(transaction, under_way, members, letting_go);
    if (missing) recovering = GiveUpMissing(transaction, members, free);
    if (recovering) tasks = Recoveries(transaction, under_way, members, free);
    const Decision decision = Decide(waiting, free);
    const std::vector<Placement>& placements = decision.placements;
    for (const Wait& wait : decision.waits) transaction.FindNumber(wait.number)->wait = wait;
    absl::flat_hash_set<uint64_t> placed;
    for (const Placement& placement : placements) placed.insert(placement.number);
    for (const WaitingJob& job : waiting) {
      if (placed.contains(job.number) || GiveUpWaiting(transaction, job, free)) continue;
      TellWhatIsWaitedFor(transaction, job, free.ps);
    }
    for (const Placement& placement : placements) {
      JobRegistry::Entry& entry = *transaction.FindNumber(placement.number);
      entry.wait.reset();
      tasks.push_back(TaskOf(placement.number, placement, members,
                             StartFresh{.revision = entry.job.record().revision()}));
    }
    LetWorkersYield(transaction, waiting, decision, free);
    if (free.reserved_for == 0 && placements.size() == waiting.size()) {
      for (auto& warm_up : LetFreeWorkersJoin(transaction, placements, members, free)) {
        if (!under_way.contains(warm_up->number)) tasks.push_back(std::move(warm_up));
      }
    }
    PlanWorker::Tasks all = tasks;
    for (const auto& [number, task] : under_way) all.push_back(task);
    // A job that is halted for replicas would also take free workers.
    FreeMembers left = free;
    if (free.reserved_for != 0) left.workers.clear();
    for (auto& search : LookForReplicas(transaction, all, members, left)) {
      tasks.push_back(std::move(search));
    }
  }
  worker_.Add(tasks);
}

}  // namespace muster
