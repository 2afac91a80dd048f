#include "services/worker/worker_job.h"

#include <utility>

#include "glog/logging.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/status/status.h"
#include "lib/status/utf8.h"
#include "services/worker/external_loop.h"
#include "services/worker/program/program_process.h"
#include "services/worker/share_check.h"
#include "services/worker/training/trainer.h"

namespace muster {
namespace {

// The worker reports this many first steps of a generation without waiting for the report interval,
// because they show that a recovery is over. If shards have replicas, the first two may be repeated
// steps, so the third is the first new one.
constexpr int kStepsToldAtOnce = 3;

// How often a report contains links. There may be many, and only their byte counts change.
constexpr absl::Duration kLinksInterval = absl::Seconds(5);

absl::Status Released() { return absl::CancelledError("the job was released"); }
absl::Status Halted() { return absl::CancelledError("the generation was halted"); }

}  // namespace

WorkerJob::WorkerJob(Options options) : options_(std::move(options)) {}

std::unique_ptr<JobRunner> WorkerJob::Run(std::unique_ptr<JobRunner> before) {
  options_.metrics->ShowJob(job());
  absl::Status status = Prepare(before);
  if (status.ok()) status = Train();
  // Record the steps that were computed before the failure. If they exceed the log's capacity, this
  // blocks until the coordinator acknowledges some.
  if (!status.ok() && runner_ != nullptr && !released()) runner_->GiveUp().IgnoreError();
  if (!status.ok() && !halting()) FailWith(status);
  if (ReasonOf(status) == "DEVICE_LOST" && options_.device_lost) options_.device_lost();
  Settle();
  AwaitRelease();
  options_.metrics->ForgetJob(job());
  std::unique_ptr<WorkerShard> shard;  // declared first, so it outlives the runner
  std::unique_ptr<JobRunner> finished;
  {
    absl::MutexLock lock(&mu_);
    finished = std::move(runner_);
    shard = std::move(shard_);
  }
  if (shard != nullptr) finished.reset();
  return finished != nullptr ? std::move(finished) : std::move(before);
}

// The runner is set before its Prepare(), which may block: directives must reach it there.
absl::Status WorkerJob::Prepare(std::unique_ptr<JobRunner>& before) {
  if (released()) return Released();
  RETURN_IF_ERROR(CheckShare(*options_.plan));
  RETURN_IF_ERROR(CheckProgramAllowed(options_.plan->spec(), options_.allow_programs));
  if (options_.plan->spec().sync().mode() == v1::ALLREDUCE) RETURN_IF_ERROR(MakeShard());
  ASSIGN_OR_RETURN(std::unique_ptr<JobRunner> runner, MakeRunner(std::move(before)));
  {
    absl::MutexLock lock(&mu_);
    runner_ = std::move(runner);
    if (released_) return Released();
    if (halting_) return Halted();
    if (pausing_) runner_->Pause();
  }
  RETURN_IF_ERROR(runner_->Prepare());
  Enter(v1::MEMBER_PREPARED);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<JobRunner>> WorkerJob::MakeRunner(
    std::unique_ptr<JobRunner> before) {
  return options_.plan->spec().model().has_external() ? MakeExternalLoop(std::move(before))
                                                      : MakeTrainer(std::move(before));
}

absl::StatusOr<std::unique_ptr<JobRunner>> WorkerJob::MakeExternalLoop(
    std::unique_ptr<JobRunner> before) {
  if (options_.programs == nullptr) {
    return WithReason(
        absl::FailedPreconditionError(
            "the job needs a program, and this worker has no socket for programs: see its log, and "
            "its flag --program_socket"),
        "NO_PROGRAM_SOCKET");
  }
  ExternalLoop::Options options{
      .plan = options_.plan,
      .rank = options_.rank,
      .transport = options_.transport,
      .programs = options_.programs,
      .tuning = options_.tuning,
      .log = log_,
      .metrics = options_.metrics,
      .report_soon = options_.report_soon,
  };
  if (auto* const loop = dynamic_cast<ExternalLoop*>(before.get())) {
    (void)before.release();
    ASSIGN_OR_RETURN(auto continued,
                     ExternalLoop::Continue(std::unique_ptr<ExternalLoop>(loop), options));
    if (continued != nullptr) return continued;
  }
  return ExternalLoop::Create(std::move(options));
}

// Trainer::Continue() destroys a trainer that it cannot reuse, so its memory is free before
// Trainer::Create() allocates.
absl::StatusOr<std::unique_ptr<JobRunner>> WorkerJob::MakeTrainer(
    std::unique_ptr<JobRunner> before) {
  Trainer::Options options{
      .plan = options_.plan,
      .rank = options_.rank,
      .devices = options_.devices,
      .threads_per_device = options_.threads_per_device,
      .place_gpus = options_.place_gpus,
      .peak_flops = options_.peak_flops,
      .transport = options_.transport,
      .shard = shard_.get(),
      .paths = options_.paths,
      .index_folder = options_.index_folder,
      .tuning = options_.tuning,
      .log = log_.get(),
      .metrics = options_.metrics,
      .advanced = [this] { ++prepared_; },
      .stopping = restoring_.get_token(),
  };
  if (auto* const trainer = dynamic_cast<Trainer*>(before.get())) {
    (void)before.release();
    ASSIGN_OR_RETURN(auto continued, Trainer::Continue(std::unique_ptr<Trainer>(trainer), options));
    if (continued != nullptr) return continued;
  }
  return Trainer::Create(std::move(options));
}

absl::Status WorkerJob::MakeShard() {
  const absl::Duration begin = SteadyNow();
  ASSIGN_OR_RETURN(auto shard, WorkerShard::Create({.plan = options_.plan,
                                                    .rank = options_.rank,
                                                    .budget = options_.budget,
                                                    .checkpoints = options_.checkpoints,
                                                    .report_soon = options_.report_soon,
                                                    .restored =
                                                        [this](int64_t bytes) {
                                                          prepared_ += bytes;
                                                          options_.metrics->restore_bytes.Increment(
                                                              static_cast<double>(bytes));
                                                        }},
                                                   restoring_.get_token()));
  options_.metrics->restore_duration.Observe(absl::ToDoubleSeconds(SteadyNow() - begin));
  absl::MutexLock lock(&mu_);
  shard_ = std::move(shard);
  return absl::OkStatus();
}

absl::Status WorkerJob::Train() {
  ASSIGN_OR_RETURN(const std::optional<v1::Start> start, AwaitStart());
  if (!start) {
    Enter(v1::MEMBER_PAUSED);
    return absl::OkStatus();
  }
  Enter(v1::MEMBER_RUNNING);
  const int64_t total_steps = start->total_steps();
  RETURN_IF_ERROR(runner_->Start(
      total_steps, std::vector<std::string>(start->addresses().begin(), start->addresses().end())));
  int64_t told_before = runner_->next_step();
  const int64_t told_until = told_before + kStepsToldAtOnce;
  while (!runner_->done() && !Pausing()) {
    absl::Status status = runner_->Step();
    if (absl::IsAborted(status)) break;
    RETURN_IF_ERROR(status);
    if (const int64_t next = runner_->next_step(); told_before < told_until && next > told_before) {
      told_before = next;
      options_.report_soon();
    }
  }
  if (runner_->next_step() < total_steps) {
    Enter(v1::MEMBER_PAUSED);
    RETURN_IF_ERROR(runner_->Drain());
  }
  Enter(runner_->next_step() == total_steps ? v1::MEMBER_DONE : v1::MEMBER_PAUSED);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<v1::Start>> WorkerJob::AwaitStart() {
  absl::MutexLock lock(&mu_);
  auto told = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return start_.has_value() || pausing_ || halting_ || released_;
  };
  mu_.Await(absl::Condition(&told));
  if (released_) return Released();
  if (halting_) return Halted();
  return start_;
}

bool WorkerJob::Pausing() const {
  absl::MutexLock lock(&mu_);
  return pausing_;
}

void WorkerJob::Enter(v1::MemberJobState state) {
  {
    absl::MutexLock lock(&mu_);
    state_ = state;
  }
  LOG(INFO) << job() << " generation " << generation() << ": " << v1::MemberJobState_Name(state);
  options_.report_soon();
}

void WorkerJob::FailWith(const absl::Status& status) {
  {
    absl::MutexLock lock(&mu_);
    if (released_) return;
    const int64_t step = runner_ ? runner_->failed_step() : options_.plan->first_step();
    error_.set_code(static_cast<int32_t>(status.code()));
    error_.set_reason(ReasonOf(status));
    // The coordinator adds the member and the step. The message may contain a file name that is not
    // valid UTF-8.
    error_.set_message(Printable(status.message()));
    error_.set_step(step);
    if (runner_) error_.set_culprit(runner_->culprit());
    LOG(ERROR) << job() << " generation " << generation() << " failed at step " << step << ": "
               << error_.reason() << ": " << error_.message();
  }
  Enter(v1::MEMBER_FAILED);
}

void WorkerJob::Settle() {
  absl::MutexLock lock(&mu_);
  settled_ = true;
}

// A job that is done, paused or failed can still be halted while it waits for its release.
void WorkerJob::AwaitRelease() {
  {
    absl::MutexLock lock(&mu_);
    auto over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return released_ || halting_; };
    mu_.Await(absl::Condition(&over));
    if (released_) return;
  }
  Enter(v1::MEMBER_HALTED);
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&released_));
}

void WorkerJob::Start(const v1::Start& start) {
  absl::MutexLock lock(&mu_);
  if (!start_) start_ = start;
}

void WorkerJob::TakeSnapshot(const v1::Snapshot& snapshot) {
  absl::MutexLock lock(&mu_);
  if (shard_) shard_->TakeSnapshot(snapshot.snapshot(), snapshot.step());
}

void WorkerJob::Pause() {
  absl::MutexLock lock(&mu_);
  pausing_ = true;
  if (runner_) runner_->Pause();
}

void WorkerJob::Halt() {
  absl::MutexLock lock(&mu_);
  if (std::exchange(halting_, true)) return;
  restoring_.request_stop();
  if (runner_) runner_->Halt(Halted());
}

void WorkerJob::Release() {
  absl::MutexLock lock(&mu_);
  released_ = true;
  restoring_.request_stop();
  if (shard_) shard_->Close();
  if (runner_) runner_->Cancel(Released());
}

void WorkerJob::Acknowledge(const v1::Acknowledge& acknowledge) {
  log_->Acknowledge(acknowledge);
  absl::MutexLock lock(&mu_);
  if (acknowledge.has_evaluation() && runner_) runner_->Evaluated(acknowledge.evaluation());
}

bool WorkerJob::halting() const {
  absl::MutexLock lock(&mu_);
  return halting_;
}

bool WorkerJob::released() const {
  absl::MutexLock lock(&mu_);
  return released_;
}

void WorkerJob::FinishStep(absl::Duration timeout) {
  Pause();
  absl::MutexLock lock(&mu_);
  AwaitFor(&mu_, absl::Condition(&settled_), timeout);
}

v1::JobReport WorkerJob::Report() const {
  v1::JobReport report;
  report.set_job(job());
  report.set_generation(generation());
  absl::MutexLock lock(&mu_);
  // The job does no work any more; only the job thread has not ended yet.
  if (released_) {
    report.set_state(v1::MEMBER_HALTED);
    report.set_next_step(runner_ ? runner_->next_step() : options_.plan->first_step());
    return report;
  }
  report.set_rehearsal(rehearsal());
  report.set_state(state_);
  if (state_ == v1::MEMBER_PREPARING) report.set_prepare_progress(prepared_);
  report.set_next_step(options_.plan->first_step());
  if (state_ == v1::MEMBER_FAILED) *report.mutable_error() = error_;
  if (runner_) {
    *report.mutable_dataset() = runner_->dataset();
    if (options_.plan->spec().resources().workers().logical() > 0) {
      report.set_device_kind(runner_->device_kind());
    }
    report.set_next_step(runner_->next_step());
    report.set_address(runner_->address());
    if (std::optional<v1::ProgramWait> wait = runner_->program_wait()) {
      *report.mutable_program_wait() = *std::move(wait);
    }
    if (v1::StepTiming timing = runner_->timing(); timing.steps() > 0) {
      *report.mutable_timing() = std::move(timing);
      if (const absl::Duration now = SteadyNow(); now >= links_due_) {
        options_.metrics->exchange.AddLinksTo(report);
        links_due_ = now + kLinksInterval;
      }
    }
  }
  if (shard_) {
    const std::vector<v1::SnapshotReport> snapshots = shard_->SnapshotReports();
    report.mutable_snapshots()->Assign(snapshots.begin(), snapshots.end());
  }
  log_->AddTo(report);
  return report;
}

}  // namespace muster
