#include "services/coordinator/planning/scheduler.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "lib/job/resource_name.h"
#include "lib/limits/limits.h"
#include "lib/plan/worker_devices.h"
#include "services/coordinator/job/recovery/failure_detector.h"
#include "services/coordinator/job/recovery/replica_placement.h"
#include "services/coordinator/scheduling/worker_numbers.h"

namespace muster {
namespace {

// How long a member in its longest back-off also gets to connect after the coordinator's start. A
// job that starts without it must be halted to take it later, and some jobs cannot take it at all.
constexpr absl::Duration kConnectTime = absl::Seconds(3);

// How long a worker counts as part of the fleet while it still serves a job that has ended, or that
// continues without it. It becomes free within a step, so after this time it probably hangs.
constexpr absl::Duration kLetsGoMax = absl::Minutes(1);

// How long a running job that lacks replicas is not searched again in the same generation. The plan
// may have no more replicas than the job has, although the estimate promised some.
constexpr absl::Duration kSearchAgain = absl::Seconds(10);
constexpr absl::Duration kSearchAgainMax = absl::Minutes(1);

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

std::shared_ptr<const PlanTask> TaskOf(const Placement& placement,
                                       const absl::btree_map<std::string, AttachedMember>& members,
                                       decltype(PlanTask::work) work) {
  auto task = std::make_shared<PlanTask>();
  task->number = placement.number;
  for (const std::string& name : placement.workers) {
    task->workers.push_back(members.at(name).hello);
  }
  for (const std::string& name : placement.ps) task->ps.push_back(members.at(name).hello);
  task->work = std::move(work);
  return task;
}

}  // namespace

Scheduler::Scheduler(JobRegistry* registry, Fleet* fleet, PlanWorker::ModelBuilder build_model,
                     PlanWorker::RestoreChooser choose)
    : registry_(registry),
      fleet_(fleet),
      worker_(registry, fleet, &memory_, std::move(build_model), std::move(choose)) {}

void Scheduler::Pass() {
  // If the store is not writable, no start could be stored.
  if (registry_->changes().full() || !registry_->changes().trouble().ok()) return;
  start_ = std::min(start_, registry_->Now());
  LearnWhatIsTaken();
  PlanWorker::Tasks tasks;
  {
    Transaction transaction(registry_);
    if (!HasWork(transaction)) {
      letting_go_.clear();
      reserved_for_ = 0;
      return;
    }
    View view{.transaction = transaction,
              .now = registry_->Now(),
              .under_way = worker_.under_way(),
              .members = fleet_->members()};
    view.free = FindFreeMembers(view);
    GiveUpMissing(view);
    const PlacementDecisions decisions = Place(Describe(view));
    reserved_for_ = decisions.reserved_for;
    tasks = Apply(view, decisions);
  }
  worker_.Add(tasks);
}

// Accounts for the memory of plans that this scheduler did not make, which are from before a
// restart. Forgets jobs that are not active any more.
void Scheduler::LearnWhatIsTaken() {
  std::vector<std::shared_ptr<const v1::JobPlan>> unknown;
  {
    Transaction transaction(registry_);
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

// Mostly all jobs run and none can grow. Such a pass does not read the members, which may be many.
bool Scheduler::HasWork(const Transaction& transaction) const {
  const absl::Time now = registry_->Now();
  return !transaction.queue().empty() ||
         std::ranges::any_of(transaction.Active(), [&](const JobRegistry::Entry* entry) {
           const Job& job = entry->job;
           return job.state() == v1::RECOVERING || job.TakesMoreWorkers(now) ||
                  job.TakesReplicas(now) || !job.MissingSinceRestart(now).empty();
         });
}

// ---------------------------------------------------------------- members

FreeMembers Scheduler::FindFreeMembers(View& view) {
  absl::flat_hash_map<std::string, int> jobs;  // by member
  for (const auto& [number, task] : view.under_way) {
    for (const v1::Hello& hello : task->workers) ++jobs[hello.member()];
    for (const v1::Hello& hello : task->ps) ++jobs[hello.member()];
  }
  const std::vector<JobRegistry::Entry*> active = view.transaction.Active();
  const BytesByPs taken = TakenOfPs(view.transaction, memory_);
  const auto before = std::exchange(letting_go_, {});
  FreeMembers free;
  for (const auto& [name, member] : view.members) {
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
      const absl::Time since = known == before.end() ? view.now : known->second;
      letting_go_[name] = since;
      if (view.now - since < kLetsGoMax) ++free.workers_attached;
    }
  }
  return free;
}

// Members may reattach in a grace time after a restart. While the coordinator is partitioned, it
// cannot know which members are available.
bool Scheduler::AllAreBack(absl::Time now) const {
  return now - start_ >= FailureDetector::kRestartGrace && !fleet_->partitioned();
}

// The job does not wait for the whole grace, which is for members that learn late of the new
// coordinator. A coordinator that stayed up would wait only for the lease of a silent member, 5 s.
// A job that already recovers goes before jobs that would only begin to.
void Scheduler::GiveUpMissing(View& view) const {
  const std::vector<JobRegistry::Entry*> active = view.transaction.Active();
  const bool recovering = std::ranges::any_of(
      active, [](const auto* entry) { return entry->job.state() == v1::RECOVERING; });
  if (recovering || fleet_->partitioned()) return;
  std::vector<MissingMembers> jobs;
  for (const JobRegistry::Entry* entry : active) {
    const Job& job = entry->job;
    const std::vector<std::string> missing = job.MissingSinceRestart(view.now);
    const bool about_to_report = std::ranges::any_of(missing, [&](const std::string& name) {
      const auto known = view.members.find(name);
      return known != view.members.end() && known->second.attached;
    });
    if (missing.empty() || about_to_report) continue;
    MissingMembers& lost = jobs.emplace_back();
    lost.number = job.record().number();
    lost.workers = static_cast<int>(std::ranges::count_if(missing, [&](const std::string& name) {
      return std::ranges::count(job.record().workers(), name) > 0;
    }));
    lost.excluded = Unsuitable(job.record().spec(), view.members);
    for (const std::string& name : view.free.workers) {
      if (job.exclusions().Why(name) != nullptr) lost.excluded.insert(name);
    }
  }
  for (const uint64_t number : ReplaceableJobs(jobs, view.free)) {
    JobRegistry::Entry& entry = *view.transaction.FindNumber(number);
    for (const std::string& name : entry.job.MissingSinceRestart(view.now)) {
      entry.job.MemberLost(
          name,
          absl::StrCat("it did not come back within ",
                       absl::FormatDuration(FailureDetector::kReturnTime),
                       " after the others, since the coordinator's restart, and the job "
                       "can go on without it"),
          view.now);
    }
    view.transaction.Commit(entry);
  }
}

// ---------------------------------------------------------------- describing

ClusterState Scheduler::Describe(View& view) {
  memory_.ForgetNeeds(view.now, [&](uint64_t number, int ps) {
    const JobRegistry::Entry* const entry = view.transaction.FindNumber(number);
    const bool waits = entry != nullptr &&
                       (entry->job.state() == v1::QUEUED || entry->job.state() == v1::RECOVERING);
    return waits && entry->job.record().spec().resources().ps() == ps;
  });
  ClusterState state{
      .now = view.now,
      .all_have_connected = view.now - start_ >= limits::kAttachBackoffMax + kConnectTime,
      .all_are_back = AllAreBack(view.now),
      .free = view.free,
      .workers_let_go = !letting_go_.empty(),
      .reserved_for = reserved_for_};
  for (const auto& [number, task] : view.under_way) {
    for (const v1::Hello& ps : task->ps) state.ps_in_plans.insert(ps.member());
  }
  std::vector<JobRegistry::Entry*> active = view.transaction.Active();
  std::ranges::stable_sort(active, std::greater<>(), [](const JobRegistry::Entry* entry) {
    return entry->job.record().spec().priority();
  });
  // Queued jobs, and jobs that lost their shards, continue from their last checkpoint after its
  // commit.
  const auto commits = [&](const JobRegistry::Entry& entry, absl::Time since) {
    state.committing.push_back({.number = entry.job.record().number(),
                                .since = since,
                                .waits_too_long = entry.job.WaitsTooLong(view.now)});
  };
  for (const JobRegistry::Entry* entry : active) {
    const Job& job = entry->job;
    if (job.state() == v1::RUNNING) state.running.push_back(DescribeRunning(view, *entry));
    state.any_yields |= job.Yields();
    if (job.state() != v1::RECOVERING) continue;
    state.any_recovers = true;
    const auto resume_point = job.ResumesAt(view.now);
    if (entry->rounds.committing() && resume_point && !resume_point->carries) {
      commits(*entry, resume_point->since);
    }
    if (view.under_way.contains(job.record().number())) continue;
    if (auto halted = DescribeHalted(view, *entry)) state.halted.push_back(*std::move(halted));
  }
  std::ranges::sort(state.running, {}, &RunningJob::number);
  int position = 0;
  for (const auto& [key, entry] : view.transaction.queue()) {
    // A pass only stops a job that is far behind.
    state.queue_is_cut = ++position > kConsideredMax;
    if (state.queue_is_cut && !entry->job.WaitsTooLong(view.now)) continue;
    if (entry->rounds.committing()) {
      commits(*entry, entry->queued_since);
    } else if (!view.under_way.contains(key.second)) {
      state.queued.push_back(DescribeQueued(view, *entry));
    }
  }
  return state;
}

WaitingJob Scheduler::DescribeQueued(const View& view, const JobRegistry::Entry& entry) const {
  const v1::Job& record = entry.job.record();
  const v1::JobSpec& spec = record.spec();
  const v1::WorkerCount& workers = spec.resources().workers();
  absl::btree_set<std::string> former;
  if (workers.logical() > 0) former.insert(record.workers().begin(), record.workers().end());
  const JobPhase told = entry.job.phase();
  return {.number = record.number(),
          .priority = spec.priority(),
          .workers_min = workers.min(),
          .workers_max = MostWorkers(spec),
          .logical = workers.logical(),
          .preferred = std::move(former),
          .unsuitable = Unsuitable(spec, view.members),
          .ps = spec.sync().mode() == v1::ALLREDUCE ? 0 : spec.resources().ps(),
          .ps_memory = memory_.MostNeeded(record.number()),
          .since = entry.queued_since,
          .waits_too_long = entry.job.WaitsTooLong(view.now),
          .is_told_of_more = told == JobPhase::kWaitsForMemory ||
                             told == JobPhase::kMemoryTooSmall ||
                             told == JobPhase::kWaitsForCheckpoint};
}

bool Scheduler::GoesOnSoon(const Job& job, absl::Time now) const {
  return !job.RecoversToStop() && registry_->MetricsTrouble(job.record().number()).ok() &&
         now - job.WaitsForFilesSince() < kFilesTakeMax;
}

std::optional<HaltedJob> Scheduler::DescribeHalted(const View& view,
                                                   const JobRegistry::Entry& entry) const {
  const Job& job = entry.job;
  HaltedJob halted{.recovers_to_stop = job.RecoversToStop(),
                   .waits_too_long = job.WaitsTooLong(view.now)};
  // A checkpoint that is being committed is a better resume point. One that is still being written
  // will not complete, because the job does not run.
  const std::optional<Job::ResumePoint> resume_point = job.ResumesAt(view.now);
  if (resume_point && (resume_point->carries || !entry.rounds.committing())) {
    halted.ready_since = resume_point->since;
    halted.request = DescribeAt(view, entry, *resume_point);
    return halted;
  }
  if (!GoesOnSoon(job, view.now)) return std::nullopt;
  // The resume point is not known yet. Until the job has stopped it keeps its memory, whatever the
  // resume point will be. Lost ps are left out, because replicas may replace them.
  const auto& shards = job.plan()->shards();
  halted.request = DescribeAt(
      view, entry, {.carries = job.HoldsMemory(), .shards = {shards.begin(), shards.end()}});
  if (halted.request.keeps_ps) std::erase(halted.request.ps, "");
  return halted;
}

RunningJob Scheduler::DescribeRunning(const View& view, const JobRegistry::Entry& entry) const {
  const Job& job = entry.job;
  const v1::Job& record = job.record();
  RunningJob running{.number = record.number(),
                     .priority = record.spec().priority(),
                     .has_task = view.under_way.contains(record.number()),
                     .workers_to_yield = job.WorkersToYield(view.now)};
  if (job.TakesMoreWorkers(view.now)) {
    const WarmUp& warm_up = job.warm_up();
    RecoveringJob request{.number = record.number(),
                          .workers = {record.workers().begin(), record.workers().end()},
                          .workers_min = record.workers_size(),
                          .workers_max = job.WorkersMax(),
                          .logical = record.spec().resources().workers().logical(),
                          .excluded = Unsuitable(record.spec(), view.members),
                          .ps = {record.ps().begin(), record.ps().end()},
                          .keeps_ps = true};
    for (const std::string& name : view.free.workers) {
      if (job.exclusions().ExcludesNow(name)) request.excluded.insert(name);
    }
    AddNeeds(view, request);
    running.growth = {.request = std::move(request),
                      .warming_up = warm_up.members(),
                      .is_warm = warm_up.Of(warm_up.members()) == WarmUp::State::kDone};
  }
  const auto search = searches_.find(record.number());
  const bool searched = search != searches_.end() &&
                        search->second.generation == record.generation() &&
                        view.now < search->second.again;
  if (job.TakesReplicas(view.now) && !searched) {
    const auto& shards = job.plan()->shards();
    running.replication = {
        .request = DescribeAt(
            view, entry,
            {.carries = true, .shards = {shards.begin(), shards.end()}, .since = view.now})};
    for (const v1::PlanShard& shard : shards) {
      if (!shard.has_backup()) running.replication->primary.push_back(shard.member());
    }
  }
  return running;
}

RecoveringJob Scheduler::DescribeAt(const View& view, const JobRegistry::Entry& entry,
                                    const Job::ResumePoint& resume_point) const {
  const Job& job = entry.job;
  const v1::Job& record = job.record();
  // Returns the name of a member that stays with the job, otherwise "". A leaving ps stays while
  // the shards continue in place, because no checkpoint has their data.
  auto unless_lost = [&](const std::string& member) -> std::string {
    const auto known = view.members.find(member);
    if (known == view.members.end() || !known->second.attached || !job.Uses(member)) return "";
    const bool is_kept = resume_point.carries && known->second.hello.role() == v1::PS;
    return known->second.leaving && !is_kept ? "" : member;
  };
  const v1::WorkerCount& workers = record.spec().resources().workers();
  const absl::btree_set<std::string> unsuitable = Unsuitable(record.spec(), view.members);
  RecoveringJob request{
      .number = record.number(),
      .workers_min = job.RecoversToStop() ? 1 : workers.min(),
      .workers_max = job.WorkersMax(),
      .logical = workers.logical(),
      .excluded = unsuitable,
      // A job that recovers only to stop does not need an excluded worker: it stops without one.
      .tries_excluded = !job.RecoversToStop(),
      .of_other_kind = unsuitable,
      .keeps_ps = resume_point.carries};
  const auto has_excluded = [&](const std::string& name) {
    return job.exclusions().Why(name) != nullptr;
  };
  // The job was halted for workers that have warmed up. It takes other free workers only if it
  // would have too few without them, so they count as excluded.
  const bool joins = job.phase() == JobPhase::kWorkersJoin;
  for (const std::string& name : view.free.workers) {
    const bool unprepared = joins && !job.warm_up().Has(name);
    if (unprepared || has_excluded(name)) request.excluded.insert(name);
  }
  for (const FreeMembers::Ps& ps : view.free.ps) {
    if (has_excluded(ps.name)) request.excluded_ps.insert(ps.name);
  }
  for (const std::string& worker : record.workers()) {
    std::string& rank = request.workers.emplace_back(unless_lost(worker));
    // An excluded worker loses its rank.
    if (has_excluded(rank)) request.own_excluded.insert(std::exchange(rank, ""));
  }
  const bool any_left = std::ranges::any_of(
      request.workers, [](const std::string& worker) { return !worker.empty(); });
  if (any_left) {
    for (const auto& [name, member] : view.members) {
      const bool is_other = member.attached && job.exclusions().IsOfOtherKind(name);
      if (is_other) request.of_other_kind.insert(name);
    }
  }
  // A job that yields workers leaves its last ranks out. Other recoveries keep every rank.
  if (job.phase() == JobPhase::kWorkersYield && std::ssize(request.workers) > request.workers_max) {
    request.workers.resize(request.workers_max);
  }
  std::vector<std::string> holders(record.ps().begin(), record.ps().end());
  const v1::ResourceSpec& resources = record.spec().resources();
  if (resume_point.carries) {
    holders = HoldersOf(resume_point.shards);
    request.ps_wanted = resources.ps_replication() > 1 ? resources.ps() : 0;
  }
  for (const std::string& ps : holders) request.ps.push_back(unless_lost(ps));
  // The previous generation may have had fewer ps, if replicas took the places of lost shards.
  const bool has_ps = record.spec().sync().mode() != v1::ALLREDUCE;
  while (!resume_point.carries && has_ps && std::ssize(request.ps) < resources.ps()) {
    request.ps.emplace_back();
  }
  AddNeeds(view, request);
  return request;
}

void Scheduler::AddNeeds(const View& view, RecoveringJob& job) const {
  const BytesByPs others = TakenOfPs(view.transaction, memory_, job.number);
  const MemoryByPs memory = memory_.MemoryOf(job.number);
  job.ps_memory = MostOf(memory);
  for (const std::string& ps : job.ps) {
    const auto known = view.members.find(ps);
    if (known == view.members.end()) continue;
    const auto own = memory.find(ps);
    job.own_ps[ps] = {.memory = own == memory.end() ? job.ps_memory : own->second,
                      .room_bytes = RoomOf(known->second.hello, others),
                      .capacity_bytes = CapacityOf(known->second.hello)};
  }
}

// ---------------------------------------------------------------- applying

// Records an event when the reason changes, not when the figures change.
void Scheduler::Tell(const View& view, const WaitNotice& notice) const {
  JobRegistry::Entry& entry = *view.transaction.FindNumber(notice.number);
  Job& job = entry.job;
  if (!notice.message.empty()) {
    job.Wait(notice.phase, notice.message, view.now);
  } else if (notice.phase != JobPhase::kOther) {
    job.WaitFor(notice.phase, notice.what, view.now);
  }
  std::string what = notice.what;
  if (notice.reserved_for != 0) {
    const v1::Job& first = view.transaction.FindNumber(notice.reserved_for)->job.record();
    absl::StrAppend(&what, "; freed members are reserved for job number ", first.number(), " (",
                    JobIdOf(first.name()), "), which goes before it");
  }
  if (notice.stops) job.StopWaiting(what, view.now);
  view.transaction.Commit(entry);
}

PlanWorker::Tasks Scheduler::Apply(const View& view, const PlacementDecisions& decisions) {
  const auto job_of = [&](uint64_t number) -> JobRegistry::Entry& {
    return *view.transaction.FindNumber(number);
  };
  // Waits are in the order of the queue, so that thousands of them need no search.
  auto wait = decisions.waits.begin();
  const int length = static_cast<int>(view.transaction.queue().size());
  int position = 0;
  for (const auto& [key, entry] : view.transaction.queue()) {
    ++position;
    if (wait != decisions.waits.end() && wait->number == key.second) {
      entry->wait = *wait++;
    } else if (position > kConsideredMax && !view.under_way.contains(key.second)) {
      entry->wait = {.number = key.second, .cause = WaitCause::kIsBehind};
    } else {
      continue;
    }
    entry->wait->position = position;
    entry->wait->queue_length = length;
  }
  PlanWorker::Tasks tasks;
  for (const Placement& placement : decisions.resumes) {
    const Job& job = job_of(placement.number).job;
    tasks.push_back(TaskOf(
        placement, view.members,
        Resume{.revision = job.record().revision(), .resume_point = *job.ResumesAt(view.now)}));
  }
  for (const WaitNotice& notice : decisions.notices) Tell(view, notice);
  if (decisions.yield_all) {
    JobRegistry::Entry& entry = job_of(decisions.yield_all->number);
    entry.job.Yield(decisions.yield_all->what, view.now);
    view.transaction.Commit(entry);
  }
  for (const Placement& placement : decisions.starts) {
    JobRegistry::Entry& entry = job_of(placement.number);
    entry.wait.reset();
    tasks.push_back(
        TaskOf(placement, view.members, StartFresh{.revision = entry.job.record().revision()}));
  }
  for (const auto& [number, workers, beneficiary] : decisions.yields) {
    JobRegistry::Entry& entry = job_of(number);
    entry.job.YieldWorkers(workers, JobIdOf(job_of(beneficiary).job.record().name()), view.now);
    view.transaction.Commit(entry);
  }
  for (const auto& [placement, newcomers] : decisions.warm_ups) {
    const bool all_known = std::ranges::all_of(
        placement.workers, [&](const std::string& name) { return view.members.contains(name); });
    if (!all_known) continue;
    const uint32_t generation = job_of(placement.number).job.record().generation();
    tasks.push_back(TaskOf(placement, view.members,
                           WarmUpNewcomers{.generation = generation, .newcomers = newcomers}));
  }
  for (const uint64_t number : decisions.joins) {
    JobRegistry::Entry& entry = job_of(number);
    entry.job.LetWorkersJoin(view.now);
    view.transaction.Commit(entry);
  }
  for (const Placement& placement : decisions.replica_searches) {
    const uint32_t generation = job_of(placement.number).job.record().generation();
    // A search that finds nothing is repeated ever less often.
    Search& search = searches_[placement.number];
    search.interval = search.generation == generation
                          ? std::min(2 * search.interval, kSearchAgainMax)
                          : kSearchAgain;
    search.generation = generation;
    search.again = view.now + search.interval;
    tasks.push_back(TaskOf(placement, view.members, AddReplicas{.generation = generation}));
  }
  return tasks;
}

}  // namespace muster
