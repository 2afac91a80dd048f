#include "services/worker/worker.h"

#include <algorithm>
#include <utility>

#include "glog/logging.h"
#include "lib/log/log_scope.h"

namespace muster {
namespace {

// Returns true if `plan` replaces the warm-up `warmed_up`: it is for another job, a newer
// generation or another warm-up.
bool IsAnother(const v1::JobPlan& plan, const WorkerJob& warmed_up) {
  return plan.job() != warmed_up.job() || plan.generation() > warmed_up.generation() ||
         (plan.generation() == warmed_up.generation() && plan.rehearsal() != warmed_up.rehearsal());
}

}  // namespace

Worker::Worker(Options options)
    : options_(std::move(options)),
      metrics_(*options_.metrics),
      checkpoints_(!options_.coordinator ? nullptr
                                         : std::make_unique<CheckpointClient>(
                                               *options_.coordinator, options_.checkpoint_root)),
      budget_(options_.shard_memory_bytes),
      job_thread_([this] { Serve(); }) {}

Worker::~Worker() {
  absl::MutexLock lock(&mu_);
  stopping_ = true;
  ReleaseAll();
}

void Worker::Serve() {
  auto something_to_do = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return next_ != nullptr || stopping_;
  };
  std::unique_ptr<JobRunner> runner;  // of the previous generation, if another one follows
  for (;;) {
    std::shared_ptr<WorkerJob> job;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&something_to_do));
      if (stopping_) return;
      current_ = std::exchange(next_, nullptr);
      job = current_;
    }
    // The job's log lines have these fields. A thread that the job starts must copy them
    // (LogScope::Current()).
    const LogScope scope({.job = job->job(), .generation = job->generation()});
    runner = job->Run(std::move(runner));
    LOG(INFO) << job->job() << " generation " << job->generation() << ": released";
    bool goes_on = false;
    {
      absl::MutexLock lock(&mu_);
      goes_on = next_ != nullptr && next_->job() == job->job();
    }
    if (!goes_on && runner != nullptr && leaves_) runner->WorkerLeaves();
    if (!goes_on) runner.reset();  // blocks until its reads of data end
    {
      absl::MutexLock lock(&mu_);
      current_ = nullptr;
    }
    options_.report_soon();
    if (options_.trace_file == nullptr) continue;
    const absl::Status written = options_.trace_file->Write();
    LOG_IF(WARNING, !written.ok()) << job->job() << ": " << written.message();
  }
}

std::vector<v1::JobReport> Worker::Report() {
  absl::MutexLock lock(&mu_);
  std::vector<v1::JobReport> reports;
  // A released job that is still unwinding stays in the report: it may hang, so this worker is not
  // free.
  const bool is_replaced = current_ && next_ && current_->job() == next_->job();
  if (current_ && !is_replaced) reports.push_back(current_->Report());
  if (next_) reports.push_back(next_->Report());
  return reports;
}

void Worker::Handle(const v1::Directive& directive) {
  absl::MutexLock lock(&mu_);
  if (directive.has_prepare()) return Prepare(directive);
  const std::shared_ptr<WorkerJob> job = Find(directive);
  if (job == nullptr) return;
  switch (directive.kind_case()) {
    case v1::Directive::kStart:
      return job->Start(directive.start());
    case v1::Directive::kSnapshot:
      return job->TakeSnapshot(directive.snapshot());
    case v1::Directive::kPause:
      return job->Pause();
    case v1::Directive::kHalt:
      return job->Halt();
    case v1::Directive::kAcknowledge:
      return job->Acknowledge(directive.acknowledge());
    case v1::Directive::kRelease:
      job->Release();
      if (job == next_) next_ = nullptr;
      return;
    default:
      return;  // not for workers
  }
}

std::shared_ptr<WorkerJob> Worker::Find(const v1::Directive& directive) const {
  for (const std::shared_ptr<WorkerJob>& job : {next_, current_}) {
    if (job && job->job() == directive.job() && job->generation() == directive.generation()) {
      return job;
    }
  }
  return nullptr;
}

void Worker::Prepare(const v1::Directive& directive) {
  const v1::JobPlan& plan = directive.prepare().plan();
  for (const std::shared_ptr<WorkerJob>& job : {current_, next_}) {
    if (!job || job->released()) continue;
    if (job->rehearsal() != 0 && IsAnother(plan, *job)) {
      job->Release();
      continue;
    }
    if (job->job() != plan.job()) {
      // The coordinator resends the directive until a report shows the job. By then the other job
      // may be released.
      LOG(WARNING) << plan.job() << " cannot be prepared: " << job->job() << " is not released";
      return;
    }
    if (job->generation() >= plan.generation()) return;
    job->Release();
  }
  const auto self = std::ranges::find(plan.workers(), options_.member, &v1::PlanWorker::member);
  if (self == plan.workers().end()) {
    LOG(WARNING) << plan.job() << ": the plan has no worker " << options_.member;
    return;
  }
  next_ = std::make_shared<WorkerJob>(WorkerJob::Options{
      .plan = std::make_shared<const v1::JobPlan>(plan),
      .rank = Rank(self - plan.workers().begin()),
      .devices = options_.devices,
      .threads_per_device = options_.threads_per_device,
      .place_gpus = options_.place_gpus,
      .peak_flops = options_.peak_flops,
      .transport = options_.transport,
      .checkpoints = checkpoints_.get(),
      .budget = &budget_,
      .paths = options_.paths,
      .index_folder = options_.index_folder,
      .allow_programs = options_.allow_programs,
      .tuning = options_.tuning,
      .metrics = &metrics_,
      .report_soon = options_.report_soon,
      .device_lost = options_.device_lost,
      .programs = options_.programs,
  });
}

void Worker::ReleaseAll() {
  if (current_) current_->Release();
  next_ = nullptr;
}

void Worker::CoordinatorLost() {
  LOG(ERROR) << "the coordinator was unreachable for too long: dropping the job";
  absl::MutexLock lock(&mu_);
  ReleaseAll();
}

Trace* Worker::TraceOf(const std::string& job) const {
  absl::MutexLock lock(&mu_);
  const bool serves = (current_ && current_->job() == job) || (next_ && next_->job() == job);
  return serves ? options_.tuning.trace : nullptr;
}

void Worker::FinishStep(absl::Duration timeout) {
  std::shared_ptr<WorkerJob> job;
  {
    absl::MutexLock lock(&mu_);
    next_ = nullptr;
    job = current_;
  }
  if (job) job->FinishStep(timeout);
}

}  // namespace muster
