// Which versions of a job's parameters are here, and who waits for them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
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

// Stands between the communication thread of an exchange, which writes up what has come, and the
// threads that wait for it. What the functions mean to those who wait is said at GradientExchange.
//
// Whoever waits brings a function that names what is missing. It is called on the waiting thread,
// once its time is up and under no lock, for the message of the DEADLINE_EXCEEDED (reason
// STEP_TIMEOUT): "step 7: <what is missing> for 10m".
class VersionBoard {
 public:
  struct Options {
    bool overlap = true;  // false: no parameter has a version before all have it
    absl::Duration answer_timeout = limits::kAnswerWaitMax;
  };
  using Missing = absl::FunctionRef<std::string()>;

  // Nothing is here yet: all chunks of the plan are awaited at plan.first_step.
  VersionBoard(const v1::JobPlan& plan, Options options);

  // ---- any thread

  // One atomic load, with overlap. A frozen parameter that is here has every version.
  bool HasParameter(int parameter, int64_t version) const {
    const int64_t has = parameter_versions_[parameter].load(std::memory_order_acquire);
    if (has != version && has != kEveryVersion) return false;
    return options_.overlap || this->version() >= version;
  }
  int64_t version() const { return version_.load(std::memory_order_acquire); }
  // The first step whose answers are not all in.
  int64_t step() const { return std::max(version(), first_version_); }
  bool frozen(int parameter) const { return frozen_[parameter]; }
  // What the values of the parameter's chunks must have for it to have `version`: frozen ones come
  // once.
  int64_t ChunkVersionFor(int parameter, int64_t version) const {
    return frozen_[parameter] ? first_version_ : version;
  }

  absl::Status AwaitParameter(int parameter, int64_t version, Missing missing)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status AwaitVersion(int64_t version, Missing missing) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<float> AwaitLossScale(int64_t version, Missing missing) ABSL_LOCKS_EXCLUDED(mu_);

  // `chunks` more are pushed or fetched; each is followed by Answered().
  void Expect(int64_t chunks) { chunks_awaited_.fetch_add(chunks, std::memory_order_relaxed); }
  int64_t chunks_awaited() const { return chunks_awaited_.load(std::memory_order_acquire); }
  // Until none is awaited; for as long as it takes once it is interrupted: who else has paused may
  // owe an answer for ever.
  absl::Status AwaitAnswers(Missing missing) ABSL_LOCKS_EXCLUDED(mu_);

  // For what an exchange knows besides and has threads wait for: `change` is made, and `reached` is
  // looked at, under the board's lock, so that whoever waits sees every change. They call nothing
  // here that takes it. The wait ends with a failure, or when its time is up, and not with
  // Interrupt().
  void Change(absl::FunctionRef<void()> change) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status AwaitChange(absl::FunctionRef<bool()> reached, Missing missing)
      ABSL_LOCKS_EXCLUDED(mu_);

  // False: neither was SetConnected() called nor did anything fail for `timeout`.
  bool AwaitConnected(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);

  // Values beyond the awaited version have come.
  bool overtaken() const { return overtaken_.load(std::memory_order_acquire); }
  // From BeginCatchUp() to HaveCaughtUp().
  bool catching_up() const { return catching_up_.load(std::memory_order_acquire); }
  void BeginCatchUp() { catching_up_.store(true, std::memory_order_release); }
  // Its time is up when no answer at all came for so long: one who is slow catches up in many
  // rounds.
  absl::Status AwaitCaughtUp(Missing missing) ABSL_LOCKS_EXCLUDED(mu_);

  // Ends the waits for versions and loss scales, now and from now on.
  void Interrupt() ABSL_LOCKS_EXCLUDED(mu_);
  // Ends every wait. Only the first failure counts. `culprit`: the member to blame; "" for none.
  void Fail(absl::Status why, absl::string_view culprit) ABSL_LOCKS_EXCLUDED(mu_);
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  absl::Status failure() const ABSL_LOCKS_EXCLUDED(mu_);  // OK when there is none
  std::string culprit() const ABSL_LOCKS_EXCLUDED(mu_);

  // ---- the communication thread

  void SetConnected() ABSL_LOCKS_EXCLUDED(mu_);
  // A chunk of `parameter` that was awaited has `version`, the next one of all its chunks. While
  // overtaken nothing is counted but that an answer came: see HaveCaughtUp().
  void Answered(int parameter, int64_t version) ABSL_LOCKS_EXCLUDED(mu_);
  // Values of `version` came with it. It is the same in all values of a version: the first counts.
  void SetLossScale(int64_t version, float loss_scale) ABSL_LOCKS_EXCLUDED(mu_);
  void SetOvertaken() ABSL_LOCKS_EXCLUDED(mu_);
  // All parameters have `version`, and nothing is awaited.
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

  // The communication thread's.
  std::vector<int> chunks_behind_;  // by parameter
  int parameters_behind_;           // that do not have the version after version() yet

  // What waits wait for changes under `mu_`, or that is taken afterwards: only then do they look.
  std::vector<std::atomic<int64_t>> parameter_versions_;
  std::atomic<int64_t> version_;
  std::atomic<int64_t> chunks_awaited_;
  std::atomic<int64_t> answers_ = 0;  // that have come
  std::atomic<bool> overtaken_ = false;
  std::atomic<bool> catching_up_ = false;
  std::atomic<bool> failed_ = false;

  mutable absl::Mutex mu_;
  bool connected_ ABSL_GUARDED_BY(mu_) = false;
  float loss_scale_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t loss_scale_version_ ABSL_GUARDED_BY(mu_);  // whose it is
  bool interrupted_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  std::string culprit_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
