// Trains one generation of one job with the gradients of a program outside of Muster.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lib/exchange/ps_exchange.h"
#include "lib/plan/numbers.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/worker/program/program_port.h"
#include "services/worker/program/program_process.h"
#include "services/worker/program/program_protocol.h"
#include "services/worker/program_memory.h"
#include "services/worker/runner/job_runner.h"
#include "services/worker/runner/progress_log.h"
#include "services/worker/runner/worker_metrics.h"

namespace muster {

// The worker's side of docs/loop_protocol.md. The job thread (see JobRunner) pushes gradients and
// answers NEXT. The port's thread takes the program's messages.
//
// A step begins when the program has sent NEXT and the values are here. It is computed when every
// trained parameter was announced. It is finished when its answers are here and the next NEXT has
// brought the loss. The loop waits for that NEXT
// - after the last step, while the program may evaluate, for at most `last_next_patience`;
// - before a pause, for at most kPausePatience.
// If it does not come, or the program ends, the record has no loss.
//
// If the program ends without FAILED, the loop waits for another one. Gradients that were announced
// by then are not announced again.
class ExternalLoop : public JobRunner, private ProgramHost {
 public:
  static constexpr absl::Duration kPausePatience = absl::Seconds(1);

  struct Options {
    std::shared_ptr<const v1::JobPlan> plan;
    Rank rank{};
    TransportFactory transport;
    ProgramPort* programs = nullptr;  // outlives the loop
    ExchangeTuning tuning;
    std::shared_ptr<ProgressLog> log;  // of this job
    WorkerMetrics* metrics = nullptr;  // outlives the loop
    // Called when a program comes, goes or has evaluated.
    std::function<void()> report_soon = nullptr;
    absl::Duration last_next_patience = absl::Minutes(10);
  };
  // Allocates memory. Fails as ProgramMemory::Create and PsExchange::Create do.
  static absl::StatusOr<std::unique_ptr<ExternalLoop>> Create(Options options);
  // Continues the job in another generation. The program and its memory stay. If the program
  // computes the first step of this generation with the same samples, it notices nothing:
  // gradients are pushed again. Otherwise its next NEXT gets the right step. Returns null if
  // `before` is of another job; destroys it in that case and on failure.
  static absl::StatusOr<std::unique_ptr<ExternalLoop>> Continue(
      std::unique_ptr<ExternalLoop> before, Options options);
  // Tells the program why the job ends here.
  ~ExternalLoop() override;

  // Accepts programs, and starts the job's own, if it has one. Blocks until a program has attached
  // and has sent DATA.
  absl::Status Prepare() override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Start(int64_t total_steps, std::vector<std::string> addresses) override;
  // Errors as those of Trainer::Step(). Returns UNKNOWN (reason "PROGRAM_FAILED") after FAILED.
  //
  // After Pause() a step that the program computes is abandoned, unless some of its gradients were
  // pushed: then other workers may have the next version of these parameters already.
  absl::Status Step() override ABSL_LOCKS_EXCLUDED(mu_);
  bool done() const override { return step_.load() >= total_steps_; }
  absl::Status Drain() override ABSL_LOCKS_EXCLUDED(mu_);
  int64_t next_step() const override { return next_step_.load(std::memory_order_acquire); }
  void Pause() override ABSL_LOCKS_EXCLUDED(mu_);
  void Cancel(absl::Status why) override ABSL_LOCKS_EXCLUDED(mu_);
  void Halt(absl::Status why) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status GiveUp() override ABSL_LOCKS_EXCLUDED(mu_);
  int64_t failed_step() const override ABSL_LOCKS_EXCLUDED(mu_);
  std::string culprit() const override ABSL_LOCKS_EXCLUDED(mu_);
  v1::StepTiming timing() const override ABSL_LOCKS_EXCLUDED(mu_);
  v1::DatasetFacts dataset() const override ABSL_LOCKS_EXCLUDED(mu_);
  std::optional<v1::ProgramWait> program_wait() const override ABSL_LOCKS_EXCLUDED(mu_);
  void Evaluated(const v1::EvaluationResult& result) override ABSL_LOCKS_EXCLUDED(mu_);
  void WorkerLeaves() override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // One BEGIN.
  struct Attempt {
    int64_t number = 0;
    int64_t step = 0;
    int64_t batch = 0;
    int64_t first_position = 0;
    int64_t samples = 0;
    int workers = 0;
    bool is_lost = false;   // its program has ended
    bool is_stale = false;  // the step or its samples changed: its gradients are ignored
    std::optional<float> weight;
    absl::Duration asked;  // when its NEXT came, see SteadyNow()
    absl::Duration begin;  // when BEGIN was sent
  };
  struct Announced {
    PsExchange::PushTerms terms;
    int64_t attempt = 0;  // that named the parameter last
  };
  // A computed step that is not finished.
  struct Computed {
    v1::StepRecord record;
    int64_t attempt = 0;
    absl::Duration asked, begin;  // of the attempt
    absl::Duration end;           // when its last gradient was pushed
    bool is_taken = false;        // the record has what the program said
  };

  ExternalLoop(Options options, std::unique_ptr<ProgramMemory> memory);
  std::shared_ptr<PsExchange> TakeExchange() ABSL_LOCKS_EXCLUDED(mu_);
  bool TakeOver() ABSL_LOCKS_EXCLUDED(mu_);
  void Renew(Options options) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Connect() ABSL_LOCKS_EXCLUDED(mu_);
  bool GoesOn(const Attempt& attempt) const;
  Attempt NextAttempt(int64_t step) const;
  bool HasFailed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Failure() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Blocks until `ready`, a failure, or Pause(). Returns ABORTED if only the latter is true.
  absl::Status Await(absl::FunctionRef<bool()> ready) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Computes(int64_t step) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsComplete(int64_t step) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Compute(int64_t step) ABSL_LOCKS_EXCLUDED(mu_);
  void Begin(int64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void KeepComputed(int64_t step) ABSL_LOCKS_EXCLUDED(mu_);
  void AwaitFinished(absl::Duration patience) ABSL_LOCKS_EXCLUDED(mu_);
  void ReportSoon() ABSL_LOCKS_EXCLUDED(mu_);
  void TakeFinished() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status FinishStep();
  absl::Status RecordStep(double gradient_norm);
  bool StopsAt(double loss_or_norm) const;
  absl::Status NotFinite(int64_t step, const std::string& what);
  std::string NameNonFinite(int64_t version) const;
  absl::Status CatchUp();
  void EndIfDone() ABSL_LOCKS_EXCLUDED(mu_);
  void FailProgram(absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<PsExchange> exchange() const ABSL_LOCKS_EXCLUDED(mu_);

  // ProgramHost, on the port's thread.
  void Attached(ProgramId program) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Received(ProgramId program, ProgramMessage message) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void Lost(ProgramId program) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status TakeNext(ProgramNext next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status TakeGradients(const ProgramGradients& gradients) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status TakeEvaluation(const ProgramEvaluation& evaluation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Changed only by the job thread, under mu_. So that thread may read them without it.
  Options options_;
  std::shared_ptr<PsExchange> exchange_;

  const std::unique_ptr<ProgramMemory> memory_;
  std::vector<bool> is_trained_;              // by parameter; const
  std::vector<std::vector<ChunkId>> chunks_;  // by parameter
  int trained_ = 0;                           // parameters that are not frozen; const
  int shown_ = 0;                             // the parameter whose learning rate is recorded

  // Used only by the job thread.
  int64_t total_steps_ = 0;
  std::optional<Computed> pending_;
  bool serves_ = false;                      // the port serves this loop
  std::unique_ptr<ProgramProcess> process_;  // of a job with `program`
  bool copied_frozen_ = false;
  int64_t sent_before_ = 0;
  int64_t received_before_ = 0;

  std::atomic<int64_t> step_ = 0;  // the running step, or the next one to run
  std::atomic<int64_t> next_step_ = 0;
  std::atomic<int64_t> failed_step_ = -1;  // the step at which this worker itself failed; -1: none

  mutable absl::Mutex mu_;
  ProgramId program_ ABSL_GUARDED_BY(mu_) = ProgramId::kNone;
  std::optional<ProgramData> data_ ABSL_GUARDED_BY(mu_);  // of the last program
  bool has_data_ ABSL_GUARDED_BY(mu_) = false;            // this program has sent DATA
  bool wants_next_ ABSL_GUARDED_BY(mu_) = false;
  absl::Duration asked_ ABSL_GUARDED_BY(mu_);        // when the last NEXT came
  absl::Duration waits_since_ ABSL_GUARDED_BY(mu_);  // for a program, or for the program's code
  std::optional<FinishedStep> finished_ ABSL_GUARDED_BY(mu_);  // of the last NEXT
  int64_t last_attempt_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<Attempt> begun_ ABSL_GUARDED_BY(mu_);                     // the last BEGIN
  std::vector<std::optional<Announced>> announced_ ABSL_GUARDED_BY(mu_);  // of begun_->step
  int announced_count_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<int> to_push_ ABSL_GUARDED_BY(mu_);  // announced parameters
  std::map<int64_t, v1::EvaluationRecord> evaluations_ ABSL_GUARDED_BY(mu_);  // without a result
  v1::StepTiming timing_ ABSL_GUARDED_BY(mu_);
  absl::Status why_ ABSL_GUARDED_BY(mu_);              // of Halt() or Cancel()
  absl::Status program_failure_ ABSL_GUARDED_BY(mu_);  // after FAILED, or of process_
  bool program_failure_is_told_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);  // for the reason "failed" of END
  bool exchange_failed_ ABSL_GUARDED_BY(mu_) = false;
  bool paused_ ABSL_GUARDED_BY(mu_) = false;
  bool is_over_ ABSL_GUARDED_BY(mu_) = false;  // the last step is finished
  bool leaves_ ABSL_GUARDED_BY(mu_) = false;   // see WorkerLeaves()
};

}  // namespace muster
