#include "lib/exchange/version_board.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/plan/parameter_group.h"
#include "lib/status/status.h"

namespace muster {

VersionBoard::VersionBoard(const v1::JobPlan& plan, Options options)
    : options_(std::move(options)),
      first_version_(plan.first_step()),
      chunks_of_parameter_(plan.graph().parameters_size(), 0),
      parameters_behind_(plan.graph().parameters_size()),
      parameter_versions_(plan.graph().parameters_size()),
      version_(first_version_ - 1),
      chunks_awaited_(plan.chunks_size()),
      loss_scale_version_(first_version_ - 1) {
  for (const v1::PlanChunk& chunk : plan.chunks()) ++chunks_of_parameter_[chunk.parameter()];
  chunks_behind_ = chunks_of_parameter_;
  for (const v1::Parameter& parameter : plan.graph().parameters()) {
    frozen_.push_back(TreatmentOf(plan.spec().training(), parameter).frozen);
  }
  trained_ = static_cast<int>(std::ranges::count(frozen_, false));
  for (std::atomic<int64_t>& version : parameter_versions_) version = first_version_ - 1;
}

// ---------------------------------------------------------------- any thread

absl::Status VersionBoard::Await(absl::FunctionRef<bool()> reached, int64_t version,
                                 Missing missing) {
  {
    absl::MutexLock lock(&mu_);
    auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return reached() || overtaken() || interrupted_ || !failure_.ok();
    };
    const bool in_time = AwaitFor(&mu_, absl::Condition(&settled), options_.answer_timeout);
    // A failure counts before success, and success before an interruption.
    if (!failure_.ok()) return failure_;
    if (reached()) return absl::OkStatus();
    if (overtaken()) return absl::AbortedError(absl::StrCat("overtaken at step ", version));
    if (in_time) return absl::AbortedError(absl::StrCat("interrupted before step ", version));
  }
  return TimeIsUp(version, missing);
}

absl::Status VersionBoard::TimeIsUp(int64_t version, Missing missing) const {
  return WithReason(
      absl::DeadlineExceededError(absl::StrCat("step ", version, ": ", missing(), " for ",
                                               absl::FormatDuration(options_.answer_timeout))),
      "STEP_TIMEOUT");
}

absl::Status VersionBoard::AwaitParameter(int parameter, int64_t version, Missing missing) {
  if (HasParameter(parameter, version) && !failed()) return absl::OkStatus();
  return Await([&] { return HasParameter(parameter, version); }, version, missing);
}

absl::Status VersionBoard::AwaitVersion(int64_t version, Missing missing) {
  return Await([&] { return this->version() >= version; }, version, missing);
}

absl::StatusOr<float> VersionBoard::AwaitLossScale(int64_t version, Missing missing) {
  float loss_scale = 0;
  RETURN_IF_ERROR(Await(
      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        loss_scale = loss_scale_;
        return loss_scale_version_ >= version;
      },
      version, missing));
  return loss_scale;
}

absl::Status VersionBoard::AwaitAnswers(Missing missing) {
  {
    absl::MutexLock lock(&mu_);
    auto settled = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return chunks_awaited() == 0 || !failure_.ok();
    };
    auto untimed = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return interrupted_ || settled(); };
    if (AwaitFor(&mu_, absl::Condition(&untimed), options_.answer_timeout)) {
      // Interrupted or settled: from here on there is no timeout.
      mu_.Await(absl::Condition(&settled));
      return failure_;
    }
  }
  return TimeIsUp(step(), missing);
}

void VersionBoard::Change(absl::FunctionRef<void()> change) {
  absl::MutexLock lock(&mu_);  // taking the lock ends waits
  change();
}

absl::Status VersionBoard::AwaitChange(absl::FunctionRef<bool()> reached, Missing missing) {
  {
    absl::MutexLock lock(&mu_);
    auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return reached() || !failure_.ok(); };
    if (AwaitFor(&mu_, absl::Condition(&settled), options_.answer_timeout)) return failure_;
  }
  return TimeIsUp(step(), missing);
}

bool VersionBoard::AwaitConnected(absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  auto settled = [this]()
                     ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return connected_ || !failure_.ok(); };
  return AwaitFor(&mu_, absl::Condition(&settled), timeout);
}

absl::Status VersionBoard::AwaitCaughtUp(Missing missing) {
  int64_t came = 0;
  do {
    came = answers_.load(std::memory_order_relaxed);
    absl::MutexLock lock(&mu_);
    auto settled = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return !catching_up() || !failure_.ok();
    };
    if (AwaitFor(&mu_, absl::Condition(&settled), options_.answer_timeout)) return failure_;
  } while (answers_.load(std::memory_order_relaxed) != came);
  return TimeIsUp(step(), missing);
}

void VersionBoard::Interrupt() {
  absl::MutexLock lock(&mu_);
  interrupted_ = true;
}

void VersionBoard::Fail(absl::Status why, absl::string_view culprit) {
  CHECK(!why.ok());
  {
    absl::MutexLock lock(&mu_);
    if (!failure_.ok()) return;
    failure_ = std::move(why);
    culprit_ = std::string(culprit);
    failed_.store(true, std::memory_order_release);
  }
  if (options_.on_failure) options_.on_failure();
}

absl::Status VersionBoard::failure() const {
  if (!failed()) return absl::OkStatus();
  absl::MutexLock lock(&mu_);
  return failure_;
}

std::string VersionBoard::culprit() const {
  absl::MutexLock lock(&mu_);
  return culprit_;
}

// ---------------------------------------------------------------- the communication thread

void VersionBoard::SetConnected() {
  absl::MutexLock lock(&mu_);
  connected_ = true;
}

void VersionBoard::Answered(int parameter, int64_t version) {
  if (!overtaken() && --chunks_behind_[parameter] == 0) {
    chunks_behind_[parameter] = chunks_of_parameter_[parameter];
    absl::MutexLock lock(&mu_);
    // Stored before the parameter's version: a thread that sees a version of every parameter also
    // sees the version of the whole.
    if (--parameters_behind_ == 0) {
      parameters_behind_ = trained_;
      version_.store(version, std::memory_order_release);
    }
    SetParameter(parameter, version);
  }
  answers_.fetch_add(1, std::memory_order_relaxed);
  // A thread that sees that nothing is awaited also sees what was counted above.
  if (chunks_awaited_.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  absl::MutexLock lock(&mu_);  // taking the lock ends waits
}

void VersionBoard::SetParameter(int parameter, int64_t version) {
  parameter_versions_[parameter].store(frozen_[parameter] ? kEveryVersion : version,
                                       std::memory_order_release);
}

void VersionBoard::SetLossScale(int64_t version, float loss_scale) {
  absl::MutexLock lock(&mu_);
  if (loss_scale_version_ >= version) return;
  loss_scale_version_ = version;
  loss_scale_ = loss_scale;
}

void VersionBoard::SetOvertaken() {
  absl::MutexLock lock(&mu_);
  overtaken_.store(true, std::memory_order_release);
}

void VersionBoard::HaveCaughtUp(int64_t version) {
  chunks_behind_ = chunks_of_parameter_;
  parameters_behind_ = trained_;
  absl::MutexLock lock(&mu_);
  for (int p = 0; p < std::ssize(frozen_); ++p) SetParameter(p, version);
  version_.store(version, std::memory_order_release);
  // Stored after the versions: a thread that reads overtaken() as false, without the lock, also
  // sees the versions.
  overtaken_.store(false, std::memory_order_release);
  catching_up_.store(false, std::memory_order_release);
}

}  // namespace muster
