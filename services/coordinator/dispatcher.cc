#include "services/coordinator/dispatcher.h"

#include <glog/logging.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "lib/job/resource_name.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"
#include "services/coordinator/job_plan.h"

namespace muster {
namespace {

// A job that could have more workers than are there waits this long for those that are still
// attaching.
constexpr absl::Duration kGatherTime = absl::Seconds(2);
// From then on members that come free are kept for a job that does not fit yet. A shorter time
// idles them for longer; a longer one lets more small jobs pass.
constexpr absl::Duration kReserveAfter = absl::Minutes(1);

}  // namespace

Dispatcher::Dispatcher(JobRegistry* registry, Fleet* fleet, ModelBuilder build_model)
    : registry_(registry),
      fleet_(fleet),
      build_model_(std::move(build_model)),
      thread_([this] { Run(); }) {}

Dispatcher::~Dispatcher() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  thread_.join();
}

// ---------------------------------------------------------------- choosing

Dispatcher::Starts Dispatcher::starting() const {
  absl::MutexLock lock(&mu_);
  return starting_;
}

std::vector<WaitingJob> Dispatcher::WaitingJobs(const JobRegistry::Turn& turn,
                                                const Starts& starting) const {
  std::vector<WaitingJob> waiting;
  for (const auto& [number, entry] : turn.jobs()) {
    if (entry->job.state() != v1::QUEUED || starting.contains(number)) continue;
    const v1::JobSpec& spec = entry->job.record().spec();
    const v1::WorkerCount& workers = spec.resources().workers();
    waiting.push_back(
        {.number = number,
         .priority = spec.priority(),
         .workers_min = workers.min(),
         .workers_max = static_cast<int>(std::max<int64_t>(
             workers.min(), std::min<int64_t>(workers.max(), spec.data().batch_size()))),
         .ps = spec.sync().mode() == v1::ALLREDUCE ? 0 : spec.resources().ps(),
         .settle_for_fewer = registry_->Now() - entry->queued_since >= kGatherTime,
         .reserves = registry_->Now() - entry->queued_since >= kReserveAfter});
  }
  return waiting;
}

FreeMembers Dispatcher::FindFreeMembers(
    const JobRegistry::Turn& turn, const Starts& starting,
    const absl::btree_map<std::string, AttachedMember>& members) const {
  absl::flat_hash_map<std::string, int> jobs;  // of a member
  for (const auto& [number, start] : starting) {
    for (const v1::Hello& hello : start->workers) ++jobs[hello.member()];
    for (const v1::Hello& hello : start->ps) ++jobs[hello.member()];
  }
  const std::vector<JobRegistry::Entry*> active = turn.Active();
  FreeMembers free;
  for (const auto& [name, member] : members) {
    if (!member.attached) continue;
    const int serving = jobs[name] + static_cast<int>(std::ranges::count_if(
                                         active, [&name = name](const JobRegistry::Entry* entry) {
                                           return entry->job.Uses(name);
                                         }));
    if (member.hello.role() == v1::PS) {
      free.ps.push_back({name, serving});
    } else {
      ++free.workers_attached;
      if (serving == 0 && member.jobs.empty()) free.workers.push_back(name);
    }
  }
  return free;
}

void Dispatcher::Dispatch() {
  const Starts starting = this->starting();
  std::vector<std::shared_ptr<const Start>> starts;
  {
    JobRegistry::Turn turn(registry_);
    const std::vector<WaitingJob> waiting = WaitingJobs(turn, starting);
    if (waiting.empty()) return;
    const auto members = fleet_->members();
    for (const Placement& placement : Schedule(waiting, FindFreeMembers(turn, starting, members))) {
      auto start = std::make_shared<Start>();
      start->number = placement.number;
      start->revision = turn.FindNumber(placement.number)->job.record().revision();
      for (const auto& name : placement.workers) start->workers.push_back(members.at(name).hello);
      for (const auto& name : placement.ps) start->ps.push_back(members.at(name).hello);
      starts.push_back(std::move(start));
    }
  }
  absl::MutexLock lock(&mu_);
  for (auto& start : starts) {
    starting_[start->number] = start;
    queue_.push_back(std::move(start));
  }
}

void Dispatcher::AwaitIdle() const {
  absl::MutexLock lock(&mu_);
  auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return starting_.empty(); };
  mu_.Await(absl::Condition(&idle));
}

// ---------------------------------------------------------------- starting

void Dispatcher::Run() {
  auto something = [this]()
                       ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !queue_.empty() || stopping_; };
  while (true) {
    std::shared_ptr<const Start> start;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&something));
      if (stopping_) return;
      start = std::move(queue_.front());
      queue_.pop_front();
    }
    Carry(*start);
    absl::MutexLock lock(&mu_);
    starting_.erase(start->number);
  }
}

JobRegistry::Entry* Dispatcher::FindUnchanged(JobRegistry::Turn& turn, const Start& start) const {
  JobRegistry::Entry* const entry = turn.FindNumber(start.number);
  if (entry == nullptr || entry->job.state() != v1::QUEUED) return nullptr;
  return entry->job.record().revision() == start.revision ? entry : nullptr;
}

bool Dispatcher::AllAttached(const Start& start) const {
  auto attached = [this](const v1::Hello& hello) { return fleet_->IsAttached(hello); };
  return std::ranges::all_of(start.workers, attached) && std::ranges::all_of(start.ps, attached);
}

void Dispatcher::Carry(const Start& start) {
  v1::Job record;
  JobOrigin origin;
  std::shared_ptr<const v1::Graph> graph;
  {
    JobRegistry::Turn turn(registry_);
    const JobRegistry::Entry* const entry = FindUnchanged(turn, start);
    if (entry == nullptr) return;
    record = entry->job.record();
    origin = entry->origin;
    graph = entry->graph;
    if (graph == nullptr && entry->job.plan() != nullptr) {  // of the generation before
      graph = {entry->job.plan(), &entry->job.plan()->graph()};
    }
  }
  absl::StatusOr<std::shared_ptr<const v1::JobPlan>> plan =
      Prepare(start, record, origin, std::move(graph));

  JobRegistry::Turn turn(registry_);
  JobRegistry::Entry* const entry = FindUnchanged(turn, start);
  if (entry == nullptr || !AllAttached(start)) return;
  if (!plan.ok()) {
    entry->job.Fail(ReasonOf(plan.status()), std::string(plan.status().message()),
                    registry_->Now());
    turn.Perform(*entry);
    return;
  }
  entry->rounds.Begin();
  entry->graph.reset();
  entry->job.Schedule(*plan, registry_->Now());
  turn.Perform(*entry, {.plan = *std::move(plan)});
}

absl::StatusOr<std::shared_ptr<const v1::JobPlan>> Dispatcher::Prepare(
    const Start& start, const v1::Job& record, const JobOrigin& origin,
    std::shared_ptr<const v1::Graph> graph) {
  const std::string id = JobIdOf(record.name());
  RETURN_IF_ERROR(registry_->folder().MakeJob(id));
  PlanRequest request{.job = record,
                      .workers = start.workers,
                      .ps = start.ps,
                      .restore = origin.restore,
                      .first_step = origin.first_step};
  if (graph != nullptr) {
    request.graph = *graph;
  } else {
    ASSIGN_OR_RETURN(request.graph, build_model_(record.spec().model()));
  }
  if (const auto own = ParseCheckpointRef(record.checkpoint()); own && own->step) {
    request.restore = record.checkpoint();
    request.first_step = *own->step;
  }
  return MakePlan(std::move(request));
}

}  // namespace muster
