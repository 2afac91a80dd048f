// Decides how a job reacts to losses and gradients that are not finite.
#pragma once

#include <optional>
#include <string>

#include "proto/muster/v1/job.pb.h"
#include "services/coordinator/job/recovery/failure_decision.h"
#include "services/coordinator/records/step_aggregator.h"

namespace muster {

// `on_non_finite` of the job file decides about a loss that is not finite. The job fails, or
// returns to its last checkpoint (`rollback`), or continues (`ignore`). If the job's steps are
// judged (StepsAreJudged()), a step with a gradient that is not finite is skipped in any case.
// Pure. Copyable. Not thread-safe.
class NonFiniteWatch {
 public:
  // An event reports this many skipped steps in a row. By then a loss scale that was too high has
  // come down by 2^10, so the cause is another one.
  static constexpr int kSkipsAlarming = 10;
  // After this many skipped steps in a row the job fails, unless it ignores non-finite values.
  static constexpr int kSkipsMax = 1000;
  // How often a job with `rollback` is rolled back before it fails.
  static constexpr int kRollbacksMax = 8;

  // The reason and message of an event, or of the end of the job.
  struct Remark {
    std::string reason;
    std::string message;
  };

  // A generation begins: its first loss that is not finite is reported again.
  void Begin() { noted_ = false; }
  // Restores the state after a restart of the coordinator. `last` is the last known step of the
  // generation.
  void Restore(const StepSummary& last);

  // Handles a step. Call it for each known step, in order. Returns the event to record, or nullopt.
  // Reports only the first such loss of a generation, and only with `ignore`. Reports each series
  // of skipped steps once.
  std::optional<Remark> Take(const StepSummary& step, const v1::Job& record);

  // Returns why the running job must fail: it has skipped kSkipsMax steps in a row. nullopt if it
  // has not, or with `ignore`.
  std::optional<Remark> Failure(const v1::Job& record) const;
  // Returns the reason and message of a job that has made all its steps. If the last loss is not
  // finite, the reason is "NONFINITE_LOSS" and `muster` ends with an error.
  Remark Completion(const v1::Job& record) const;

  // The consequence for the job of a worker that failed at a value that is not finite.
  struct Ruling {
    // Set: the job returns to its last checkpoint, and its record gets this value. nullopt: the job
    // has failed.
    std::optional<v1::JobRecovery> rollback;
    std::string message;
  };
  // `what` says what the worker found.
  static Ruling Rule(const v1::Job& record, const NotFinite& failure, const std::string& what);
  // Whether a recovering job is being rolled back, so that its shards must not continue in place.
  // Its record then leaves out a batch that `plan`, the plan of its last generation, still
  // contains. A restarted coordinator recognizes the rollback by this.
  static bool AwaitsRollback(const v1::Job& record, const v1::JobPlan& plan);

 private:
  std::optional<Remark> TakeLoss(const StepSummary& step, const v1::JobSpec& spec);

  bool noted_ = false;          // a loss was reported in this generation
  bool loss_is_finite_ = true;  // the loss of the last step; true if the step was skipped
  int skips_in_row_ = 0;
};

}  // namespace muster
