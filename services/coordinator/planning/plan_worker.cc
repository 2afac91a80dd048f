#include "services/coordinator/planning/plan_worker.h"

#include <glog/logging.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <type_traits>
#include <utility>

#include "lib/concurrency/steady_wait.h"
#include "lib/job/resource_name.h"
#include "lib/log/log_scope.h"
#include "lib/status/status.h"
#include "services/coordinator/job/recovery/replica_placement.h"

namespace muster {
namespace {

// How often a checkpoint read checks that its job still needs it.
constexpr int64_t kLooksEveryMs = 1000;

// Makes `request` continue at `resume_point`, which is null for a queued job, and decides whether
// the job evaluates first. The evaluation at the checkpoint from which the job started is not
// repeated.
void ContinueAt(const Job::ResumePoint* resume_point, int64_t origin_step,
                int64_t evaluations_before, std::shared_ptr<const v1::JobPlan> before,
                PlanRequest& request) {
  if (resume_point != nullptr && resume_point->carries) {
    request.carried = std::move(before);
    request.shards = resume_point->shards;
    request.restore.clear();
    request.first_step = resume_point->first_step;
  }
  request.evaluate_first =
      request.first_step > origin_step && evaluations_before <= request.first_step;
}

}  // namespace

BytesByPs TakenOfPs(const JobRegistry::Transaction& transaction, const PsMemoryAccounting& memory,
                    uint64_t except) {
  std::vector<uint64_t> holders;
  for (const JobRegistry::Entry* entry : transaction.Active()) {
    const uint64_t number = entry->job.record().number();
    if (number != except && entry->job.HoldsMemory()) holders.push_back(number);
  }
  return memory.SumOf(holders);
}

PlanWorker::PlanWorker(JobRegistry* registry, Fleet* fleet, PsMemoryAccounting* memory,
                       ModelBuilder build_model, RestoreChooser choose)
    : registry_(registry),
      fleet_(fleet),
      memory_(memory),
      build_model_(std::move(build_model)),
      choose_(std::move(choose)),
      threads_{std::thread([this] { Run(kReadsNothing); }), std::thread([this] { Run(kOthers); })} {
}

PlanWorker::~PlanWorker() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

PlanWorker::Lane PlanWorker::LaneOf(const PlanTask& task) {
  if (std::holds_alternative<StartFresh>(task.work)) return kOthers;
  const Resume* const resume = std::get_if<Resume>(&task.work);
  return resume != nullptr && !resume->resume_point.carries ? kOthers : kReadsNothing;
}

void PlanWorker::Add(const Tasks& tasks) {
  absl::MutexLock lock(&mu_);
  for (const auto& task : tasks) {
    under_way_[task->number] = task;
    queues_[LaneOf(*task)].push_back(task);
  }
}

PlanWorker::UnderWay PlanWorker::under_way() const {
  absl::MutexLock lock(&mu_);
  return under_way_;
}

void PlanWorker::AwaitIdle() const {
  absl::MutexLock lock(&mu_);
  auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return under_way_.empty(); };
  mu_.Await(absl::Condition(&idle));
}

void PlanWorker::Run(Lane lane) {
  auto something = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !queues_[lane].empty() || stopping_;
  };
  while (true) {
    std::shared_ptr<const PlanTask> task;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&something));
      if (stopping_) return;
      task = std::move(queues_[lane].front());
      queues_[lane].pop_front();
    }
    Do(*task);
    absl::MutexLock lock(&mu_);
    under_way_.erase(task->number);
  }
}

void PlanWorker::Do(const PlanTask& task) {
  if (const auto* warm_up = std::get_if<WarmUpNewcomers>(&task.work)) {
    BeginWarmUp(task, warm_up->newcomers);
  } else if (std::holds_alternative<AddReplicas>(task.work)) {
    SeekReplicas(task);
  } else {
    const auto* const resume = std::get_if<Resume>(&task.work);
    Start(task, resume == nullptr ? nullptr : &resume->resume_point);
  }
}

// A running job may change in ways that do not matter to its next plan, such as its last
// checkpoint. So only its generation counts.
JobRegistry::Entry* PlanWorker::FindUnchanged(const JobRegistry::Transaction& transaction,
                                              const PlanTask& task) {
  JobRegistry::Entry* const entry = transaction.FindNumber(task.number);
  if (entry == nullptr) return nullptr;
  const v1::Job& record = entry->job.record();
  const auto unchanged = [&]<typename Work>(const Work& work) {
    if constexpr (std::is_same_v<Work, StartFresh>) {
      return record.state() == v1::QUEUED && record.revision() == work.revision;
    } else if constexpr (std::is_same_v<Work, Resume>) {
      return record.state() == v1::RECOVERING && record.revision() == work.revision;
    } else {
      return record.state() == v1::RUNNING && record.generation() == work.generation;
    }
  };
  return std::visit(unchanged, task.work) ? entry : nullptr;
}

bool PlanWorker::HasRoom(const PlanTask& task, const JobRegistry::Transaction& transaction,
                         const MemoryByPs& memory) const {
  const BytesByPs others = TakenOfPs(transaction, *memory_, task.number);
  const int workers = static_cast<int>(task.workers.size());
  return std::ranges::all_of(task.ps, [&](const v1::Hello& ps) {
    const auto needed = memory.find(ps.member());
    return needed == memory.end() || needed->second.With(workers) <= RoomOf(ps, others);
  });
}

bool PlanWorker::HasRoomNow(const PlanTask& task, const MemoryByPs& memory) const {
  JobRegistry::Transaction transaction(registry_);
  return HasRoom(task, transaction, memory);
}

bool PlanWorker::AllAttached(const PlanTask& task) const {
  auto attached = [this](const v1::Hello& hello) { return fleet_->IsAttached(hello); };
  return std::ranges::all_of(task.workers, attached) && std::ranges::all_of(task.ps, attached);
}

bool PlanWorker::AnyGone(const PlanTask& task) const {
  const auto members = fleet_->members();
  auto gone = [&](const v1::Hello& hello) {
    const auto known = members.find(hello.member());
    return known == members.end() || known->second.hello.incarnation() != hello.incarnation();
  };
  return std::ranges::any_of(task.workers, gone) || std::ranges::any_of(task.ps, gone);
}

void PlanWorker::Start(const PlanTask& task, const Job::ResumePoint* resume_point) {
  v1::Job record;
  JobOrigin origin;
  std::shared_ptr<const v1::Graph> graph;
  std::shared_ptr<const v1::JobPlan> before;
  int64_t evaluations_before = 0;
  {
    JobRegistry::Transaction transaction(registry_);
    const JobRegistry::Entry* const entry = FindUnchanged(transaction, task);
    if (entry == nullptr) return;
    record = entry->job.record();
    origin = entry->origin;
    graph = entry->graph;
    before = entry->job.plan();
    // Shares the ownership of the whole plan.
    if (graph == nullptr && before != nullptr) graph = {before, &before->graph()};
    evaluations_before = entry->job.evaluations_before();
  }
  absl::StatusOr<PlanRequest> request = Prepare(task, record, origin, std::move(graph));
  std::shared_ptr<const v1::JobPlan> plan;
  MemoryByPs memory;
  absl::Status fault = request.status();
  if (request.ok()) {
    ContinueAt(resume_point, origin.first_step, evaluations_before, before, *request);
    std::optional<PlanRequest> without_replicas;
    if (request->carried != nullptr && record.spec().resources().ps_replication() > 1) {
      without_replicas = *request;
      without_replicas->without_new_replicas = true;
    }
    plan = MakePlan(*std::move(request));
    memory = MemoryOfPs(*plan);
    // The job continues with the replicas that it has, instead of waiting for memory.
    if (without_replicas && !HasRoomNow(task, memory)) {
      plan = MakePlan(*std::move(without_replicas));
      memory = MemoryOfPs(*plan);
    }
  }
  // Reads the checkpoint only once there is room for the job: a waiting job is planned again and
  // again.
  const bool may_start = fault.ok() && HasRoomNow(task, memory);
  TrainedData trained_data;
  if (may_start && !plan->restore().empty()) {
    absl::StatusOr<TrainedData> verified = Verify(task, record, origin);
    fault = verified.status();
    if (verified.ok()) trained_data = *std::move(verified);
  }

  // The plan was made outside of a transaction, so the job and its members may have changed
  // meanwhile. The other thread may also have taken the memory.
  JobRegistry::Transaction transaction(registry_);
  JobRegistry::Entry* const entry = FindUnchanged(transaction, task);
  if (entry == nullptr || !AllAttached(task) || absl::IsCancelled(fault)) return;
  if (absl::IsResourceExhausted(fault)) {  // the next pass tries again
    const LogScope scope({.job = JobIdOf(record.name()), .generation = record.generation()});
    LOG_EVERY_N(ERROR, 300) << JobIdOf(record.name()) << " cannot be started yet: " << fault;
    return;
  }
  if (!fault.ok()) {
    entry->job.Fail(ReasonOf(fault), std::string(fault.message()), registry_->Now());
    transaction.Commit(*entry);
    return;
  }
  if (!may_start || !HasRoom(task, transaction, memory)) {
    if (resume_point != nullptr) {
      entry->job.WaitFor(JobPhase::kWaitsForMemory, "memory of ps", registry_->Now());
      transaction.Commit(*entry);
    }
    // The next pass finds other ps, or reports what the job waits for.
    memory_->Need(task.number, static_cast<int>(task.ps.size()), std::move(memory),
                  registry_->Now());
    return;
  }
  memory_->Take(*plan, std::move(memory));
  entry->rounds.Begin();
  entry->graph.reset();
  entry->job.Schedule(plan, registry_->Now(), std::move(trained_data));
  transaction.Commit(*entry, {.plan = std::move(plan)});
}

// Copies the running plan outside of the transactions, because it may be large.
void PlanWorker::BeginWarmUp(const PlanTask& task, int newcomers) {
  std::shared_ptr<const v1::JobPlan> running;
  {
    JobRegistry::Transaction transaction(registry_);
    const JobRegistry::Entry* const entry = FindUnchanged(transaction, task);
    if (entry == nullptr) return;
    running = entry->job.plan();
  }
  v1::JobPlan plan = WarmUpPlan(*running, task.workers);
  std::vector<std::string> names;
  for (size_t i = task.workers.size() - newcomers; i < task.workers.size(); ++i) {
    names.push_back(task.workers[i].member());
  }
  JobRegistry::Transaction transaction(registry_);
  JobRegistry::Entry* const entry = FindUnchanged(transaction, task);
  if (entry == nullptr || !AllAttached(task)) return;
  entry->job.BeginWarmUp(std::move(plan), names, registry_->Now());
  transaction.Commit(*entry);
}

// Uses the plan that Start() would make. Otherwise a job could be halted for replicas, get none,
// and be halted again and again.
void PlanWorker::SeekReplicas(const PlanTask& task) {
  v1::Job record;
  std::shared_ptr<const v1::JobPlan> running;
  {
    JobRegistry::Transaction transaction(registry_);
    const JobRegistry::Entry* const entry = FindUnchanged(transaction, task);
    if (entry == nullptr) return;
    record = entry->job.record();
    running = entry->job.plan();
  }
  const auto plan = MakePlan({.job = std::move(record),
                              .graph = running->graph(),
                              .workers = task.workers,
                              .ps = task.ps,
                              .carried = running,
                              .shards = {running->shards().begin(), running->shards().end()}});
  const MemoryByPs memory = MemoryOfPs(*plan);
  const bool has_more = ShardsWithoutReplica(*plan) < ShardsWithoutReplica(*running);

  JobRegistry::Transaction transaction(registry_);
  JobRegistry::Entry* const entry = FindUnchanged(transaction, task);
  const absl::Time now = registry_->Now();
  if (entry == nullptr || !entry->job.TakesReplicas(now) || !AllAttached(task)) return;
  if (!has_more || !HasRoom(task, transaction, memory)) return;
  entry->job.LetReplicasJoin(now);
  transaction.Commit(*entry);
}

absl::StatusOr<PlanRequest> PlanWorker::Prepare(const PlanTask& task, const v1::Job& record,
                                                const JobOrigin& origin,
                                                std::shared_ptr<const v1::Graph> graph) {
  const std::string id = JobIdOf(record.name());
  RETURN_IF_ERROR(registry_->folder().MakeJob(id));
  PlanRequest request{.job = record,
                      .workers = task.workers,
                      .ps = task.ps,
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
  return request;
}

// Reading may take minutes. Meanwhile the members are reserved and other jobs wait. So the read
// stops once the job can no longer start with these members.
absl::StatusOr<TrainedData> PlanWorker::Verify(const PlanTask& task, const v1::Job& record,
                                               const JobOrigin& origin) {
  std::atomic<int64_t> looks_at_ms = 0;
  std::atomic<bool> in_vain = false;
  auto stop = [&] {
    {
      absl::MutexLock lock(&mu_);
      if (stopping_) return true;
    }
    const int64_t now_ms = absl::ToInt64Milliseconds(SteadyNow());
    int64_t due_ms = looks_at_ms;
    if (now_ms < due_ms || !looks_at_ms.compare_exchange_strong(due_ms, now_ms + kLooksEveryMs)) {
      return in_vain.load();
    }
    const bool any_gone = AnyGone(task);
    JobRegistry::Transaction transaction(registry_);
    in_vain = any_gone || FindUnchanged(transaction, task) == nullptr;
    return in_vain.load();
  };
  ASSIGN_OR_RETURN(const RestoreChoice choice,
                   choose_(record, origin, registry_->folder(),
                           {.stop = stop, .damaged = [this] {
                              registry_->metrics().checkpoints_damaged.Increment();
                            }}));
  if (choice.passed_over.empty()) {
    return TrainedData{.fingerprint = choice.data_fingerprint, .is_own = choice.is_own};
  }
  TellPassedOver(task.number, choice);
  return absl::CancelledError("the job has changed");
}

// Passing over a checkpoint changes the job, so the present plan is dropped. The next pass
// starts the job.
void PlanWorker::TellPassedOver(uint64_t number, const RestoreChoice& choice) {
  JobRegistry::Transaction transaction(registry_);
  JobRegistry::Entry* const entry = transaction.FindNumber(number);
  if (entry == nullptr) return;
  std::vector<int64_t> gone;
  for (const auto& [step, what, set_aside] : choice.passed_over) {
    entry->job.CheckpointUnusable(set_aside ? Job::Unusable::kDamaged : Job::Unusable::kUnreadable,
                                  step, what, choice.first_step, registry_->Now());
    if (set_aside) gone.push_back(step);
  }
  transaction.Commit(*entry, {.checkpoints_removed = std::move(gone)});
}

}  // namespace muster
