// Tracks which versions of a job's parameters are here, for the threads that wait for them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lib/limits/limits.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Connects the communication thread of an exchange, which records arrivals, with the threads that
// wait for them. GradientExchange documents the functions for waiting threads.
//
// A waiting thread passes a function that names the missing chunk. It is called on that thread
// after the timeout, without a lock, for the message of DEADLINE_EXCEEDED (reason STEP_TIMEOUT):
// "step 7: <what is missing> for 10m".
class VersionBoard {
 public:
  struct Options {
    bool overlap = true;  // false: no parameter has a version before all have it
    absl::Duration answer_timeout = limits::kAnswerWaitMax;  // may be infinite
    // Called after the first failure, on the thread that found it, without a lock. May be null.
    std::function<void()> on_failure = nullptr;
  };
  using Missing = absl::FunctionRef<std::string()>;

  // Nothing is here at the start: all chunks of the plan are awaited at plan.first_step.
  VersionBoard(const v1::JobPlan& plan, Options options);

  // ---- any thread

  // Costs one atomic load, with overlap. A frozen parameter that is here has every version.
  bool HasParameter(int parameter, int64_t version) const {
    const int64_t has = parameter_versions_[parameter].load(std::memory_order_acquire);
    if (has != version && has != kEveryVersion) return false;
    return options_.overlap || this->version() >= version;
  }
  int64_t version() const { return version_.load(std::memory_order_acquire); }
  // The first step with missing answers.
  int64_t step() const { return std::max(version(), first_version_); }
  bool frozen(int parameter) const { return frozen_[parameter]; }
  // Returns the version that the parameter's chunks need, so that it has `version`. Frozen chunks
  // come only once.
  int64_t ChunkVersionFor(int parameter, int64_t version) const {
    return frozen_[parameter] ? first_version_ : version;
  }

  absl::Status AwaitParameter(int parameter, int64_t version, Missing missing)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status AwaitVersion(int64_t version, Missing missing) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<float> AwaitLossScale(int64_t version, Missing missing) ABSL_LOCKS_EXCLUDED(mu_);

  // Announces `chunks` more pushes or fetches. Each is followed by Answered().
  void Expect(int64_t chunks) { chunks_awaited_.fetch_add(chunks, std::memory_order_relaxed); }
  int64_t chunks_awaited() const { return chunks_awaited_.load(std::memory_order_acquire); }
  // Blocks until no answer is awaited. After Interrupt() there is no timeout, because another
  // paused worker may never send what an answer needs.
  absl::Status AwaitAnswers(Missing missing) ABSL_LOCKS_EXCLUDED(mu_);

  // Guards state that an exchange has besides versions, and that threads wait for. `change` is made
  // and `reached` is evaluated under the board's lock, so that waiting threads see every change.
  // They must not call functions here that take the lock. The wait ends with a failure or the
  // timeout, but not with Interrupt().
  void Change(absl::FunctionRef<void()> change) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status AwaitChange(absl::FunctionRef<bool()> reached, Missing missing)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Returns false if neither SetConnected() nor a failure came within `timeout`.
  bool AwaitConnected(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);

  // True if values beyond the awaited version have arrived since the last HaveCaughtUp().
  bool overtaken() const { return overtaken_.load(std::memory_order_acquire); }
  // True from BeginCatchUp() to HaveCaughtUp().
  bool catching_up() const { return catching_up_.load(std::memory_order_acquire); }
  void BeginCatchUp() { catching_up_.store(true, std::memory_order_release); }
  // Blocks until HaveCaughtUp() after BeginCatchUp(), or until a failure. Times out only if no
  // answer at all arrives for the length of the timeout, because a slow worker needs many rounds to
  // catch up.
  absl::Status AwaitCaughtUp(Missing missing) ABSL_LOCKS_EXCLUDED(mu_);

  // Ends the waits for versions and loss scales, now and from now on.
  void Interrupt() ABSL_LOCKS_EXCLUDED(mu_);
  // Ends every wait. Only the first failure counts. `culprit` is the member at fault, or "".
  void Fail(absl::Status why, absl::string_view culprit) ABSL_LOCKS_EXCLUDED(mu_);
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  absl::Status failure() const ABSL_LOCKS_EXCLUDED(mu_);  // OK if there is none
  std::string culprit() const ABSL_LOCKS_EXCLUDED(mu_);

  // ---- the communication thread

  void SetConnected() ABSL_LOCKS_EXCLUDED(mu_);
  // Records that an awaited chunk of `parameter` has `version`, the next version of all its chunks.
  // While overtaken, only counts that an answer came; see HaveCaughtUp().
  void Answered(int parameter, int64_t version) ABSL_LOCKS_EXCLUDED(mu_);
  // Records the loss scale that came with values of `version`. All values of a version have the
  // same one, so only the first counts.
  void SetLossScale(int64_t version, float loss_scale) ABSL_LOCKS_EXCLUDED(mu_);
  void SetOvertaken() ABSL_LOCKS_EXCLUDED(mu_);
  // Records that all parameters have `version` and nothing is awaited.
  void HaveCaughtUp(int64_t version) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  static constexpr int64_t kEveryVersion = std::numeric_limits<int64_t>::max();

  void SetParameter(int parameter, int64_t version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Await(absl::FunctionRef<bool()> reached, int64_t version, Missing missing)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status TimeIsUp(int64_t version, Missing missing) const ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  const int64_t first_version_;
  std::vector<bool> frozen_;  // by parameter; const from here on
  std::vector<int> chunks_of_parameter_;
  int trained_ = 0;  // parameters that are not frozen

  // Used only by the communication thread.
  std::vector<int> chunks_behind_;  // by parameter
  int parameters_behind_;           // that lack the version after version()

  // Waiting threads evaluate these only after `mu_` was taken, so changes are made under it or
  // followed by taking it.
  std::vector<std::atomic<int64_t>> parameter_versions_;
  std::atomic<int64_t> version_;
  std::atomic<int64_t> chunks_awaited_;
  std::atomic<int64_t> answers_ = 0;  // answers that have arrived
  std::atomic<bool> overtaken_ = false;
  std::atomic<bool> catching_up_ = false;
  std::atomic<bool> failed_ = false;

  mutable absl::Mutex mu_;
  bool connected_ ABSL_GUARDED_BY(mu_) = false;
  float loss_scale_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t loss_scale_version_ ABSL_GUARDED_BY(mu_);  // the version of loss_scale_
  bool interrupted_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  std::string culprit_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
