// What a job makes of losses and gradients that are not finite.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/muster/v1/job.pb.h"
#include "services/coordinator/job/recovery/failure_detector.h"
#include "services/coordinator/records/step_aggregator.h"

namespace muster {

// The job's file says what becomes of it (on_non_finite): a worker whose loss is not finite fails,
// or, with `ignore`, goes on. A step whose gradients are not finite is skipped in any case. Pure;
// copyable; not thread-safe.
class NonFiniteWatch {
 public:
  // A loss scale that is too high comes down by 2^10 meanwhile: the cause is another.
  static constexpr int kSkipsAlarming = 10;
  // So many in a row, and no other will be made.
  static constexpr int kSkipsMax = 1000;
  // A job that rolls back where its loss is not finite does so as often as this.
  static constexpr int kRollbacksMax = 8;

  // What an event is to say, or the end of the job.
  struct Remark {
    std::string reason;
    std::string message;
  };

  // A generation begins: what was said of the one before may be said again.
  void Begin() { noted_ = false; }
  // The coordinator was restarted, and this is the last step that is known of the generation.
  void Restore(const StepSummary& last);

  // A step has become known, in order. Nothing: it gives no cause, or has been said of one before:
  // once per generation of losses, once per row of skipped steps.
  std::optional<Remark> Take(const StepSummary& step, const v1::Job& record);

  // Why a job that runs has failed: it skips for ever. Nothing: it does not.
  std::optional<Remark> Failure(const v1::Job& record) const;
  // What is said of a job that has made all its steps. Parameters that are not finite are nobody's
  // success: the reason says so, and `muster` ends with an error.
  Remark Completion(const v1::Job& record) const;

  // Whether a worker that fails with `reason` has met a loss or gradient that is not finite: see
  // Trainer::Step().
  static bool Rules(absl::string_view reason);
  // Rules on a job of which a worker has failed with such a reason.
  struct Ruling {
    // It goes back to its last checkpoint, with this in its record. Nothing: it has failed.
    std::optional<v1::JobRecovery> rollback;
    std::string message;
  };
  static Ruling Rule(const v1::Job& record, const FailureDetector::Decision& decision);
  // A job that recovers is on its way back, without a batch that the plan of its generation still
  // has: what its shards hold is not to go on. A coordinator that was restarted meanwhile knows it
  // by that.
  static bool AwaitsRollback(const v1::Job& record, const v1::JobPlan& plan);

 private:
  std::optional<Remark> TakeLoss(const StepSummary& step, const v1::JobSpec& spec);

  bool noted_ = false;          // in this generation
  bool loss_is_finite_ = true;  // of the last step that was not skipped
  int skips_in_row_ = 0;
};

}  // namespace muster
