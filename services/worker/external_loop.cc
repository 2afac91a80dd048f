#include "services/worker/external_loop.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_set.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "glog/logging.h"
#include "google/protobuf/util/message_differencer.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/plan/batch_order.h"
#include "lib/plan/endless_data.h"
#include "lib/plan/parameter_group.h"
#include "lib/plan/parameter_table.h"
#include "lib/status/status.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

using nlohmann::json;

// The most evaluations of a program that wait for a result. The oldest is forgotten for another.
constexpr size_t kEvaluationsMax = 64;

// After END, the program of the job may end by itself in this time: after the last step, and else.
constexpr absl::Duration kDoneGrace = absl::Seconds(30);
constexpr absl::Duration kEndGrace = absl::Seconds(5);

void SetNow(google::protobuf::Timestamp& to) {
  const absl::Time now = absl::Now();
  to.set_seconds(absl::ToUnixSeconds(now));
  to.set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(now - absl::FromUnixSeconds(to.seconds()))));
}

template <typename... Parts>
absl::Status BadMessage(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// Allows at least two chunks in flight, as Trainer does.
ExchangeTuning TuningOf(const ExternalLoop::Options& options) {
  ExchangeTuning tuning = options.tuning;
  tuning.inflight_bytes_max =
      std::max(tuning.inflight_bytes_max, 2 * options.plan->spec().chunk_bytes());
  return tuning;
}

// Returns whether all workers have the same values of a version, also after a recovery.
bool IsBsp(const v1::JobPlan& plan) { return plan.spec().sync().mode() <= v1::BSP; }

bool HasBackupWorkers(const v1::JobPlan& plan) { return plan.spec().sync().backup_workers() > 0; }

}  // namespace

absl::StatusOr<std::unique_ptr<ExternalLoop>> ExternalLoop::Create(Options options) {
  ASSIGN_OR_RETURN(std::unique_ptr<ProgramMemory> memory, ProgramMemory::Create(*options.plan));
  auto loop = absl::WrapUnique(new ExternalLoop(std::move(options), std::move(memory)));
  RETURN_IF_ERROR(loop->Connect());
  return loop;
}

ExternalLoop::ExternalLoop(Options options, std::unique_ptr<ProgramMemory> memory)
    : options_(std::move(options)),
      memory_(std::move(memory)),
      waits_since_(SteadyNow()),
      announced_(options_.plan->graph().parameters_size()) {
  const v1::JobPlan& plan = *options_.plan;
  std::optional<int> ungrouped, grouped;
  for (int p = 0; p < plan.graph().parameters_size(); ++p) {
    const v1::Parameter& parameter = plan.graph().parameters(p);
    is_trained_.push_back(!TreatmentOf(plan.spec().training(), parameter).frozen);
    if (!is_trained_.back()) continue;
    ++trained_;
    if (parameter.has_statistic_momentum()) continue;
    auto& first = GroupOf(plan.spec().training(), parameter) ? grouped : ungrouped;
    if (!first) first = p;
  }
  shown_ = ungrouped ? *ungrouped
           : grouped ? *grouped
                     : static_cast<int>(std::ranges::find(is_trained_, true) - is_trained_.begin());
}

// The port calls this loop until Retire() returns.
ExternalLoop::~ExternalLoop() {
  if (serves_) options_.programs->Retire();
  if (process_ != nullptr) process_->MayEnd();
  std::string reason = "cancelled", message;
  bool is_over = false;
  {
    absl::MutexLock lock(&mu_);
    is_over = is_over_;
    absl::Status failure = failure_;
    if (failure.ok() && exchange_ != nullptr) failure = exchange_->failure();
    if (leaves_) {
      reason = "drained";
    } else if (!failure.ok() && !absl::IsCancelled(failure)) {
      reason = "failed";
      message = std::string(failure.message());
    } else if (paused_) {
      reason = "suspended";
    } else {
      message = std::string(why_.message());
    }
    options_.programs->End(program_, reason, message);
  }
  if (process_ != nullptr) process_->Stop(is_over ? kDoneGrace : kEndGrace);
  exchange_.reset();
}

absl::StatusOr<std::unique_ptr<ExternalLoop>> ExternalLoop::Continue(
    std::unique_ptr<ExternalLoop> before, Options options) {
  ExternalLoop& loop = *before;
  if (loop.options_.plan->job_number() != options.plan->job_number() ||
      !google::protobuf::util::MessageDifferencer::Equals(loop.options_.plan->graph(),
                                                          options.plan->graph())) {
    return nullptr;
  }
  // The thread of the exchange must end before another one receives into the same memory.
  loop.TakeExchange().reset();
  if (loop.TakeOver()) {  // the program was told that the job is done
    loop.options_.programs->Retire();
    loop.serves_ = false;
    loop.Lost(ProgramId::kNone);
    if (loop.process_ != nullptr) std::exchange(loop.process_, nullptr)->Stop(kEndGrace);
  }
  loop.Renew(std::move(options));
  RETURN_IF_ERROR(loop.Connect());
  return before;
}

std::shared_ptr<PsExchange> ExternalLoop::TakeExchange() {
  absl::MutexLock lock(&mu_);
  return std::exchange(exchange_, nullptr);
}

bool ExternalLoop::TakeOver() {
  absl::MutexLock lock(&mu_);
  return std::exchange(is_over_, false);
}

// Keeps the program, its memory and the state of its step.
void ExternalLoop::Renew(Options options) {
  pending_.reset();
  copied_frozen_ = false;
  failed_step_ = -1;
  absl::MutexLock lock(&mu_);
  options_ = std::move(options);
  timing_.Clear();
  why_ = absl::OkStatus();
  // A program may fail while its generation is halted. The next generation tells of it. After a
  // failure that was told another program may come, but ProgramProcess starts none.
  if (std::exchange(program_failure_is_told_, false) && process_ == nullptr) {
    program_failure_ = absl::OkStatus();
  }
  failure_ = program_failure_;
  exchange_failed_ = paused_ = leaves_ = false;
  to_push_.clear();
  if (begun_ && GoesOn(*begun_)) {
    for (int p = 0; p < std::ssize(announced_); ++p) {
      if (announced_[p]) to_push_.push_back(p);
    }
    LOG(INFO) << options_.plan->job() << ": the program goes on with step " << begun_->step;
  } else if (begun_) {
    begun_->is_stale = true;
  }
  // The log of the generation before may have lost them.
  for (const auto& [step, record] : evaluations_) options_.log->TryAppend(record);
}

absl::Status ExternalLoop::Connect() {
  const v1::JobPlan& plan = *options_.plan;
  ASSIGN_OR_RETURN(std::shared_ptr<PsExchange> exchange,
                   PsExchange::Create({.plan = options_.plan,
                                       .rank = options_.rank,
                                       .transport = options_.transport,
                                       .parameters = memory_->values(0),
                                       .odd_parameters = memory_->values(1),
                                       .gradients = memory_->gradients(),
                                       .memory = memory_->memory(),
                                       .tuning = TuningOf(options_),
                                       // The programs of other workers may take any time.
                                       .answer_timeout = absl::InfiniteDuration(),
                                       .on_failure =
                                           [this] {
                                             absl::MutexLock lock(&mu_);
                                             exchange_failed_ = true;
                                           },
                                       .metrics = &options_.metrics->exchange}));
  step_ = next_step_ = plan.first_step();
  chunks_.assign(plan.graph().parameters_size(), {});
  for (const ChunkId chunk : NumbersBelow<ChunkId>(plan.chunks_size())) {
    chunks_[plan.chunks(ToInt(chunk)).parameter()].push_back(chunk);
  }
  absl::MutexLock lock(&mu_);
  exchange_ = std::move(exchange);
  exchange_failed_ = false;
  return absl::OkStatus();
}

ExternalLoop::Attempt ExternalLoop::NextAttempt(int64_t step) const {
  const v1::JobPlan& plan = *options_.plan;
  const v1::PlanWorker& share = plan.workers(ToInt(options_.rank));
  return {.step = step,
          .batch = BatchOfStep(step, plan.left_out_batches()),
          .first_position = share.first_position(),
          .samples = share.samples(),
          .workers = plan.workers_size()};
}

// Returns whether the first step of this generation is the attempt, with the same samples and
// values.
bool ExternalLoop::GoesOn(const Attempt& attempt) const {
  if (attempt.is_stale || !IsBsp(*options_.plan)) return false;
  const Attempt first = NextAttempt(options_.plan->first_step());
  return attempt.step == first.step && attempt.batch == first.batch &&
         attempt.first_position == first.first_position && attempt.samples == first.samples &&
         attempt.workers == first.workers;
}

// ---------------------------------------------------------------- the job thread

absl::Status ExternalLoop::Prepare() {
  if (!serves_) {
    ASSIGN_OR_RETURN(std::vector<FileDescriptor> files, memory_->Files());
    const v1::JobPlan& plan = *options_.plan;
    const std::string& member = plan.workers(ToInt(options_.rank)).member();
    options_.programs->Serve({.id = plan.job(),
                              .name = plan.spec().name(),
                              .welcome = WelcomeBody(plan, member, *memory_),
                              .memory = std::move(files)},
                             this);
    serves_ = true;
    if (plan.spec().has_program()) {
      ASSIGN_OR_RETURN(process_, ProgramProcess::Start(plan.spec().program(),
                                                       {.job = plan.job(),
                                                        .socket = options_.programs->path(),
                                                        .failed = [this](absl::Status why) {
                                                          FailProgram(std::move(why));
                                                        }}));
    }
  }
  if (options_.report_soon) options_.report_soon();
  absl::MutexLock lock(&mu_);
  const absl::Status awaited =
      Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return has_data_; });
  return absl::IsAborted(awaited) ? absl::OkStatus() : awaited;
}

absl::Status ExternalLoop::Start(int64_t total_steps, std::vector<std::string> addresses) {
  total_steps_ = total_steps;
  sent_before_ = static_cast<int64_t>(options_.metrics->exchange.push_bytes.Value());
  received_before_ = static_cast<int64_t>(options_.metrics->exchange.params_bytes.Value());
  const int64_t batch_size = options_.plan->spec().data().batch_size();
  const int64_t samples = dataset().samples();
  if (samples < batch_size) {
    return BadMessage("data.batch_size: ", batch_size, " exceeds the ", samples,
                      " training samples of the program");
  }
  RETURN_IF_ERROR(exchange_->Connect(total_steps, std::move(addresses)));
  EndIfDone();
  return absl::OkStatus();
}

bool ExternalLoop::HasFailed() const {
  return !why_.ok() || !program_failure_.ok() || exchange_failed_;
}

absl::Status ExternalLoop::Failure() {
  RETURN_IF_ERROR(why_);
  if (!program_failure_.ok()) {
    program_failure_is_told_ = true;
    return program_failure_;
  }
  return exchange_failed_ ? exchange_->failure() : absl::OkStatus();
}

absl::Status ExternalLoop::Await(absl::FunctionRef<bool()> ready) {
  auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return ready() || paused_ || HasFailed();
  };
  mu_.Await(absl::Condition(&settled));
  RETURN_IF_ERROR(Failure());
  return ready() ? absl::OkStatus() : absl::AbortedError("interrupted");
}

// Returns whether the program computes `step` now.
bool ExternalLoop::Computes(int64_t step) const {
  return begun_ && begun_->step == step && !begun_->is_stale && !begun_->is_lost;
}

bool ExternalLoop::IsComplete(int64_t step) const {
  return begun_ && begun_->step == step && !begun_->is_stale && announced_count_ == trained_;
}

absl::Status ExternalLoop::Step() {
  CHECK(!done());
  const int64_t step = step_;
  {
    absl::MutexLock lock(&mu_);
    RETURN_IF_ERROR(Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return wants_next_ || Computes(step) || IsComplete(step);
    }));
    if (paused_) return absl::AbortedError("paused");
  }
  const absl::Status awaited = exchange_->AwaitVersion(step);
  if (absl::IsAborted(awaited) && exchange_->overtaken()) return CatchUp();
  RETURN_IF_ERROR(awaited);
  if (!std::exchange(copied_frozen_, true)) {
    for (int p = 0; p < std::ssize(is_trained_); ++p) {
      if (!is_trained_[p]) memory_->CopyToOtherParity(p, options_.plan->first_step());
    }
  }
  RETURN_IF_ERROR(FinishStep());
  RETURN_IF_ERROR(Compute(step));
  KeepComputed(step);
  ++step_;
  if (!done()) return absl::OkStatus();

  const absl::Status answered = exchange_->AwaitVersion(step + 1);
  if (absl::IsAborted(answered) && exchange_->overtaken()) return CatchUp();
  RETURN_IF_ERROR(answered);
  AwaitFinished(options_.last_next_patience);
  RETURN_IF_ERROR(FinishStep());
  EndIfDone();
  return absl::OkStatus();
}

// Pushes the gradients of `step` as the program announces them, until all are pushed.
absl::Status ExternalLoop::Compute(int64_t step) {
  bool pushed = false;  // a gradient of the step
  for (;;) {
    std::vector<std::pair<int, PsExchange::PushTerms>> pushes;
    {
      absl::MutexLock lock(&mu_);
      auto something_to_do = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return !to_push_.empty() || IsComplete(step) || (wants_next_ && !Computes(step)) ||
               (paused_ && !pushed) || HasFailed();
      };
      mu_.Await(absl::Condition(&something_to_do));
      RETURN_IF_ERROR(Failure());
      for (const int p : std::exchange(to_push_, {})) {
        pushes.emplace_back(p, announced_[p]->terms);
      }
      if (pushes.empty()) {
        if (IsComplete(step)) return absl::OkStatus();
        if (paused_ && !pushed) return absl::AbortedError("paused");
        if (!pushed) {
          Begin(step);
          continue;
        }
      }
    }
    if (pushes.empty()) {
      // Another program takes over. It writes to memory that is being sent, so this waits first.
      RETURN_IF_ERROR(exchange_->AwaitAnswers());
      absl::MutexLock lock(&mu_);
      if (wants_next_) Begin(step);
      continue;
    }
    pushed = true;
    for (const auto& [parameter, terms] : pushes) {
      for (const ChunkId chunk : chunks_[parameter]) {
        RETURN_IF_ERROR(exchange_->Push(chunk, step, terms));
      }
    }
  }
}

void ExternalLoop::Begin(int64_t step) {
  const v1::JobPlan& plan = *options_.plan;
  const bool goes_on = begun_ && begun_->step == step && !begun_->is_stale;
  if (!goes_on) {
    announced_.assign(announced_.size(), std::nullopt);
    announced_count_ = 0;
  }
  begun_ = NextAttempt(step);
  begun_->number = ++last_attempt_;
  begun_->asked = asked_;
  begun_->begin = SteadyNow();
  waits_since_ = begun_->begin;
  wants_next_ = false;
  finished_.reset();
  const v1::TrainingSpec& training = plan.spec().training();
  options_.programs->Send(
      program_, ProgramMessageKind::kBegin,
      JsonText(json::object({
          {"attempt", begun_->number},
          {"step", step},
          {"batch", begun_->batch},
          {"first_position", begun_->first_position},
          {"samples", begun_->samples},
          {"rank", ToInt(options_.rank)},
          {"workers", begun_->workers},
          {"generation", plan.generation()},
          {"total_steps", total_steps_},
          {"learning_rate", HasSchedule(training) ? json(LearningRate(training, step, total_steps_))
                                                  : json(nullptr)},
      })));
}

// Notes that `step` is computed.
void ExternalLoop::KeepComputed(int64_t step) {
  absl::MutexLock lock(&mu_);
  pending_ = Computed{.attempt = begun_->number,
                      .asked = begun_->asked,
                      .begin = begun_->begin,
                      .end = SteadyNow()};
  pending_->record.set_step(step);
  pending_->record.set_learning_rate(announced_[shown_]->terms.learning_rate);
  SetNow(*pending_->record.mutable_time());
}

// Waits for the NEXT that has the loss of the computed step. Once paused, waits for kPausePatience.
void ExternalLoop::AwaitFinished(absl::Duration patience) {
  if (!pending_) return;
  absl::MutexLock lock(&mu_);
  auto settled = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return wants_next_ || program_ == ProgramId::kNone || HasFailed();
  };
  auto settled_or_paused = [&]()
                               ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return settled() || paused_; };
  AwaitFor(&mu_, absl::Condition(&settled_or_paused), patience);
  if (paused_) AwaitFor(&mu_, absl::Condition(&settled), std::min(patience, kPausePatience));
}

// Adds what the program said about the computed step to its record.
void ExternalLoop::TakeFinished() {
  if (std::exchange(pending_->is_taken, true)) return;
  const v1::JobPlan& plan = *options_.plan;
  const auto share = static_cast<double>(plan.workers(ToInt(options_.rank)).samples());
  const auto batch_size = static_cast<double>(plan.spec().data().batch_size());
  WorkerMetrics& metrics = *options_.metrics;
  v1::StepRecord& record = pending_->record;
  absl::Duration end = pending_->end;
  FinishedStep finished;
  {
    absl::MutexLock lock(&mu_);
    if (finished_ && finished_->attempt == pending_->attempt) {
      finished = *finished_;
      end = asked_;
    }
  }
  const double part = static_cast<double>(finished.samples) / batch_size;
  record.set_has_no_loss(!finished.loss);
  if (finished.loss) {
    record.set_loss_share(*finished.loss * part);
    metrics.loss.Set(*finished.loss);
    if (!std::isfinite(*finished.loss)) metrics.nonfinite_losses.Increment();
  }
  for (const auto& [name, value] : finished.metrics) {
    (*record.mutable_metric_shares())[name] = value * part;
  }
  const double step = absl::ToDoubleSeconds(end - pending_->asked);
  const double wait = absl::ToDoubleSeconds(pending_->begin - pending_->asked);
  const double data = std::min(finished.data_seconds, std::max(0.0, step - wait));
  const double compute = std::max(0.0, step - wait - data);
  record.set_step_seconds(step);
  record.set_wait_seconds(wait);
  metrics.steps.Increment();
  metrics.samples.Increment(share);
  metrics.step_duration.Observe(step);
  metrics.wait_duration.Observe(wait);
  metrics.data_duration.Observe(data);
  metrics.compute_duration.Observe(compute);
  const auto bytes = [](const prometheus::Counter& counter) {
    return static_cast<int64_t>(counter.Value());
  };
  absl::MutexLock lock(&mu_);
  timing_.set_steps(timing_.steps() + 1);
  timing_.set_samples(timing_.samples() + static_cast<int64_t>(share));
  timing_.set_step_seconds(timing_.step_seconds() + step);
  timing_.set_data_seconds(timing_.data_seconds() + data);
  timing_.set_compute_seconds(timing_.compute_seconds() + compute);
  timing_.set_wait_seconds(timing_.wait_seconds() + wait);
  timing_.set_forward_seconds(timing_.forward_seconds() +
                              std::min(compute, finished.forward_seconds));
  timing_.set_backward_seconds(timing_.backward_seconds() +
                               std::min(compute, finished.backward_seconds));
  timing_.set_sent_bytes(bytes(metrics.exchange.push_bytes) - sent_before_);
  timing_.set_received_bytes(bytes(metrics.exchange.params_bytes) - received_before_);
}

absl::Status ExternalLoop::FinishStep() {
  if (!pending_) return absl::OkStatus();
  const int64_t version = pending_->record.step() + 1;
  CHECK_GE(exchange_->version(), version);
  TakeFinished();
  const v1::StepRecord& record = pending_->record;
  if (!record.has_no_loss() && StopsAt(record.loss_share())) {
    return NotFinite(version - 1,
                     absl::StrCat("the loss of step ", version - 1, " is ", record.loss_share()));
  }
  const double norm = exchange_->GradientNorm(version);
  // With backup workers, the answers to a late worker do not contain the norm.
  if (!HasBackupWorkers(*options_.plan) && StopsAt(norm)) {
    return NotFinite(version - 1,
                     absl::StrCat("the norm of the gradient of step ", version - 1, " is ", norm));
  }
  RETURN_IF_ERROR(RecordStep(norm));
  next_step_.store(version, std::memory_order_release);
  if (process_ != nullptr) process_->StepFinished();
  return absl::OkStatus();
}

absl::Status ExternalLoop::RecordStep(double gradient_norm) {
  v1::StepRecord record = std::move(std::exchange(pending_, std::nullopt)->record);
  record.set_gradient_norm(gradient_norm);
  record.set_skipped(StepsAreJudged(options_.plan->spec().training()) &&
                     !std::isfinite(gradient_norm));
  if (record.skipped()) options_.metrics->skipped_steps.Increment();
  options_.metrics->gradient_norm.Set(gradient_norm);
  options_.metrics->learning_rate.Set(record.learning_rate());
  return options_.log->Append(std::move(record));
}

bool ExternalLoop::StopsAt(double loss_or_norm) const {
  const v1::JobSpec& spec = options_.plan->spec();
  return !std::isfinite(loss_or_norm) && spec.on_non_finite() != v1::NON_FINITE_IGNORE &&
         !StepsAreJudged(spec.training());
}

absl::Status ExternalLoop::NotFinite(int64_t step, const std::string& what) {
  failed_step_ = step;
  if (options_.plan->spec().on_non_finite() == v1::NON_FINITE_ROLLBACK) pending_.reset();
  const absl::Status why = WithReason(
      absl::OutOfRangeError(absl::StrCat(what, NameNonFinite(step + 1))), "LOSS_NOT_FINITE");
  absl::MutexLock lock(&mu_);
  failure_ = why;
  return why;
}

// Names the first parameter with a gradient that is not finite, of the step that led to `version`.
// Returns text that follows a sentence.
std::string ExternalLoop::NameNonFinite(int64_t version) const {
  if (exchange_->version() != version && exchange_->version() != version + 1) return "";
  const v1::JobPlan& plan = *options_.plan;
  for (int p = 0; p < std::ssize(chunks_); ++p) {
    for (const ChunkId chunk : chunks_[p]) {
      if (!is_trained_[p] || std::isfinite(exchange_->GradientSquares(chunk, version))) continue;
      const v1::Parameter& parameter = plan.graph().parameters(p);
      return absl::StrCat(
          parameter.has_statistic_momentum() ? "; the statistic '" : "; the gradient of '",
          parameter.name(), "' is not finite");
    }
  }
  return "; every element of its gradient is finite";
}

// Continues at the version of the other workers. Requires: all gradients of the last step were
// pushed, and the program waits in NEXT or computes a step that the others have closed.
absl::Status ExternalLoop::CatchUp() {
  ASSIGN_OR_RETURN(const int64_t version, exchange_->CatchUp());
  if (pending_) {
    TakeFinished();
    // The shards do not send the gradient's norm to a late worker.
    RETURN_IF_ERROR(RecordStep(std::numeric_limits<double>::quiet_NaN()));
  }
  for (int64_t missed = step_; missed < version; ++missed) {
    v1::StepRecord record;
    record.set_step(missed);
    record.set_missed(true);
    record.set_has_no_loss(true);
    SetNow(*record.mutable_time());
    RETURN_IF_ERROR(options_.log->Append(std::move(record)));
    options_.metrics->missed_steps.Increment();
  }
  step_ = version;
  next_step_.store(version, std::memory_order_release);
  {
    absl::MutexLock lock(&mu_);
    if (begun_ && begun_->step < version) {
      begun_->is_stale = true;
      to_push_.clear();
    }
  }
  EndIfDone();
  return absl::OkStatus();
}

absl::Status ExternalLoop::Drain() {
  RETURN_IF_ERROR(exchange_->AwaitAnswers());
  if (exchange_->overtaken()) return CatchUp();
  AwaitFinished(kPausePatience);
  RETURN_IF_ERROR(FinishStep());
  EndIfDone();
  return absl::OkStatus();
}

void ExternalLoop::EndIfDone() {
  if (next_step() < total_steps_) return;
  if (process_ != nullptr) process_->MayEnd();
  absl::MutexLock lock(&mu_);
  is_over_ = true;
  options_.programs->End(program_, "done", "");
}

absl::Status ExternalLoop::GiveUp() {
  if (!pending_) return absl::OkStatus();
  TakeFinished();
  const int64_t version = pending_->record.step() + 1;
  return RecordStep(exchange_->version() >= version ? exchange_->GradientNorm(version)
                                                    : std::numeric_limits<double>::quiet_NaN());
}

// ---------------------------------------------------------------- any thread

std::shared_ptr<PsExchange> ExternalLoop::exchange() const {
  absl::MutexLock lock(&mu_);
  return exchange_;
}

void ExternalLoop::Pause() {
  {
    absl::MutexLock lock(&mu_);
    paused_ = true;
  }
  exchange()->Interrupt();
}

void ExternalLoop::Halt(absl::Status why) {
  {
    absl::MutexLock lock(&mu_);
    if (why_.ok()) why_ = why;
  }
  exchange()->Fail(std::move(why));
}

void ExternalLoop::Cancel(absl::Status why) {
  options_.log->Close();
  Halt(std::move(why));
}

int64_t ExternalLoop::failed_step() const {
  if (failed_step_ >= 0) return failed_step_;
  const std::shared_ptr<PsExchange> used = exchange();
  return used->failed() ? used->step() : step_.load();
}

std::string ExternalLoop::culprit() const { return exchange()->culprit(); }

v1::StepTiming ExternalLoop::timing() const {
  absl::MutexLock lock(&mu_);
  return timing_;
}

v1::DatasetFacts ExternalLoop::dataset() const {
  v1::DatasetFacts facts;
  absl::MutexLock lock(&mu_);
  if (!data_) return facts;
  facts.set_samples(data_->samples > 0 ? data_->samples : kEndlessSamples);
  facts.set_evaluation_samples(data_->evaluation_samples);
  return facts;
}

std::optional<v1::ProgramWait> ExternalLoop::program_wait() const {
  absl::MutexLock lock(&mu_);
  if (is_over_ || wants_next_) return std::nullopt;
  v1::ProgramWait wait;
  wait.set_attached(program_ != ProgramId::kNone);
  const absl::Duration time = SteadyNow() - waits_since_;
  wait.mutable_time()->set_seconds(absl::ToInt64Seconds(time));
  wait.mutable_time()->set_nanos(static_cast<int32_t>(
      absl::ToInt64Nanoseconds(time - absl::Seconds(absl::ToInt64Seconds(time)))));
  return wait;
}

void ExternalLoop::Evaluated(const v1::EvaluationResult& result) {
  absl::MutexLock lock(&mu_);
  if (evaluations_.erase(result.step()) == 0) return;
  json metrics = json::object();
  for (const auto& [name, value] : result.metrics()) metrics[name] = JsonNumber(value);
  options_.programs->Send(program_, ProgramMessageKind::kResult,
                          JsonText(json::object({{"step", result.step()},
                                                 {"samples", result.samples()},
                                                 {"metrics", std::move(metrics)}})));
}

void ExternalLoop::WorkerLeaves() {
  absl::MutexLock lock(&mu_);
  leaves_ = true;
}

// ---------------------------------------------------------------- the port's thread

void ExternalLoop::ReportSoon() {
  std::function<void()> report_soon;
  {
    absl::MutexLock lock(&mu_);
    report_soon = options_.report_soon;
  }
  if (report_soon) report_soon();
}

void ExternalLoop::Attached(ProgramId program) {
  {
    absl::MutexLock lock(&mu_);
    program_ = program;
    waits_since_ = SteadyNow();
  }
  ReportSoon();
}

void ExternalLoop::Lost(ProgramId) {
  {
    absl::MutexLock lock(&mu_);
    program_ = ProgramId::kNone;
    has_data_ = wants_next_ = false;
    waits_since_ = SteadyNow();
    evaluations_.clear();
    if (begun_) begun_->is_lost = true;
  }
  ReportSoon();
}

absl::Status ExternalLoop::Received(ProgramId, ProgramMessage message) {
  {
    absl::MutexLock lock(&mu_);
    if (const auto* const data = std::get_if<ProgramData>(&message)) {
      if (std::exchange(has_data_, true)) return BadMessage("a second DATA");
      data_ = *data;
      return absl::OkStatus();
    }
    if (std::holds_alternative<ProgramFailure>(message)) {
      // Below, without mu_.
    } else if (!has_data_) {
      return BadMessage("the first message after WELCOME must be DATA");
    } else if (auto* const next = std::get_if<ProgramNext>(&message)) {
      return TakeNext(std::move(*next));
    } else if (const auto* const gradients = std::get_if<ProgramGradients>(&message)) {
      return TakeGradients(*gradients);
    } else if (const auto* const evaluation = std::get_if<ProgramEvaluation>(&message)) {
      RETURN_IF_ERROR(TakeEvaluation(*evaluation));
    }
  }
  if (std::holds_alternative<ProgramEvaluation>(message)) ReportSoon();  // the program waits
  if (const auto* const failed = std::get_if<ProgramFailure>(&message)) {
    FailProgram(
        WithReason(absl::UnknownError(absl::StrCat("the program failed: ", failed->message)),
                   "PROGRAM_FAILED"));
  }
  return absl::OkStatus();
}

// Called without mu_, because the exchange tells this loop of its failure.
void ExternalLoop::FailProgram(absl::Status why) {
  std::shared_ptr<PsExchange> exchange;
  {
    absl::MutexLock lock(&mu_);
    if (is_over_ || !program_failure_.ok()) return;
    program_failure_ = failure_ = why;
    exchange = exchange_;
  }
  if (exchange != nullptr) exchange->Fail(std::move(why));
}

absl::Status ExternalLoop::TakeNext(ProgramNext next) {
  if (begun_ && !begun_->is_lost && !begun_->is_stale && announced_count_ < trained_) {
    return BadMessage("NEXT after the gradients of ", announced_count_, " of ", trained_,
                      " trained parameters; announce each, those without a gradient with flag 1");
  }
  wants_next_ = true;
  asked_ = SteadyNow();
  finished_ = std::move(next.finished);
  if (is_over_) options_.programs->End(program_, "done", "");
  return absl::OkStatus();
}

absl::Status ExternalLoop::TakeGradients(const ProgramGradients& gradients) {
  if (gradients.attempt > last_attempt_) {
    return BadMessage("GRADIENTS of attempt ", gradients.attempt, ", the last one is ",
                      last_attempt_);
  }
  if (!begun_ || begun_->number != gradients.attempt || begun_->is_stale) return absl::OkStatus();
  if (begun_->is_lost) return BadMessage("GRADIENTS before BEGIN");
  if (begun_->weight.value_or(gradients.weight) != gradients.weight) {
    return BadMessage("the weight ", gradients.weight, " in a step of weight ", *begun_->weight);
  }
  // Nothing of a message with a fault may count.
  absl::flat_hash_set<uint32_t> named;
  for (const ProgramGradients::Entry& entry : gradients.entries) {
    if (entry.parameter >= is_trained_.size() || !is_trained_[entry.parameter]) {
      return BadMessage("GRADIENTS of parameter ", entry.parameter, " of ", is_trained_.size(),
                        ", which does not exist or is frozen");
    }
    const std::optional<Announced>& announced = announced_[entry.parameter];
    if (!named.insert(entry.parameter).second ||
        (announced && announced->attempt == gradients.attempt)) {
      return BadMessage("parameter ", entry.parameter, " is announced twice in attempt ",
                        gradients.attempt);
    }
  }
  for (const ProgramGradients::Entry& entry : gradients.entries) {
    std::optional<Announced>& announced = announced_[entry.parameter];
    if (announced) {  // by a program that has ended
      announced->attempt = gradients.attempt;
      continue;
    }
    announced = Announced{.terms = {.learning_rate = entry.learning_rate,
                                    .weight = gradients.weight,
                                    .has_gradient = entry.has_gradient},
                          .attempt = gradients.attempt};
    ++announced_count_;
    to_push_.push_back(static_cast<int>(entry.parameter));
  }
  begun_->weight = gradients.weight;
  return absl::OkStatus();
}

absl::Status ExternalLoop::TakeEvaluation(const ProgramEvaluation& evaluation) {
  const auto samples = static_cast<double>(evaluation.samples);
  v1::EvaluationRecord record;
  record.set_step(evaluation.step);
  record.set_samples(evaluation.samples);
  for (const auto& [name, mean] : evaluation.metrics) {
    (*record.mutable_metric_sums())[name] = mean * samples;
    if (name == "loss") record.set_loss_sum(mean * samples);
  }
  SetNow(*record.mutable_time());
  if (!options_.log->TryAppend(record)) {
    return absl::ResourceExhaustedError(
        "an evaluation: the worker holds too many records that the coordinator has not "
        "acknowledged");
  }
  evaluations_[evaluation.step] = std::move(record);
  if (evaluations_.size() > kEvaluationsMax) evaluations_.erase(evaluations_.begin());
  return absl::OkStatus();
}

}  // namespace muster
