#include "services/coordinator/job/non_finite_watch.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/job/resource_name.h"
#include "lib/plan/batch_order.h"
#include "services/coordinator/job/last_checkpoint.h"

namespace muster {
namespace {

constexpr char kTrainMoreGently[] =
    "Try a lower learning rate, a longer warm-up or clip: {global_norm: 1}";

// Returns the advice, a sentence without its period.
std::string AdviceOn(const NotFinite& failure) {
  return failure.because_of_data ? "Correct that row" : kTrainMoreGently;
}

// Returns where the user finds the row if bad data caused the skipped steps. The workers of these
// steps continue, and only log the row.
std::string WhereTheDataAreNamed(const v1::Job& record) {
  return absl::StrCat(". If the data are the cause, `muster logs ", JobIdOf(record.name()),
                      "` names the row");
}

}  // namespace

void NonFiniteWatch::Restore(const StepSummary& last) {
  noted_ = last.loss && !std::isfinite(*last.loss) && !last.skipped;
  loss_is_finite_ = !noted_;
}

std::optional<NonFiniteWatch::Remark> NonFiniteWatch::Take(const StepSummary& step,
                                                           const v1::Job& record) {
  std::optional<Remark> remark = TakeLoss(step, record.spec());
  skips_in_row_ = step.skipped ? skips_in_row_ + 1 : 0;
  if (skips_in_row_ != kSkipsAlarming) return remark;
  const std::string what = absl::StrCat("steps ", step.step - kSkipsAlarming + 1, " to ", step.step,
                                        " were skipped: their gradients were not finite");
  const std::string rest = absl::StrCat(WhereTheDataAreNamed(record), AdviceToResume(record));
  if (record.spec().training().precision() == v1::FP16) {
    return Remark{"LOSS_SCALE_ALARM",
                  absl::StrCat(what, " even with the loss scale at ", step.loss_scale,
                               ". Try precision: bf16, a lower learning rate, a longer warm-up or "
                               "clip: {global_norm: 1}",
                               rest)};
  }
  return Remark{"STEPS_SKIPPED",
                absl::StrCat(what, ". Try a lower learning rate or a longer warm-up", rest)};
}

// Reports only the first loss that is not finite, because the later ones mostly are not either.
std::optional<NonFiniteWatch::Remark> NonFiniteWatch::TakeLoss(const StepSummary& step,
                                                               const v1::JobSpec& spec) {
  if (spec.on_non_finite() != v1::NON_FINITE_IGNORE) return std::nullopt;  // the worker fails
  if (!step.loss && !step.skipped) return std::nullopt;  // the last known loss still counts
  loss_is_finite_ = step.skipped || std::isfinite(*step.loss);
  if (loss_is_finite_ || std::exchange(noted_, true)) return std::nullopt;
  return Remark{"NONFINITE_LOSS", absl::StrCat("the loss of step ", step.step, " is ", *step.loss)};
}

std::optional<NonFiniteWatch::Remark> NonFiniteWatch::Failure(const v1::Job& record) const {
  if (skips_in_row_ < kSkipsMax || record.spec().on_non_finite() == v1::NON_FINITE_IGNORE) {
    return std::nullopt;
  }
  return Remark{
      "STEPS_SKIPPED",
      absl::StrCat("the last ", skips_in_row_,
                   " steps were skipped: their gradients were not finite, and nothing has been "
                   "trained since. Try precision: bf16, a lower learning rate or a longer warm-up "
                   "(on_non_finite: ignore goes on for ever)",
                   WhereTheDataAreNamed(record), AdviceToResume(record))};
}

NonFiniteWatch::Remark NonFiniteWatch::Completion(const v1::Job& record) const {
  const std::string trained = absl::StrCat("trained ", record.progress().total_steps(), " steps");
  if (loss_is_finite_) return {.reason = "COMPLETED", .message = trained};
  return {"NONFINITE_LOSS",
          absl::StrCat(trained, ", and the last loss is ", record.progress().loss(),
                       ": the parameters are of no use. Look for the first NONFINITE_LOSS among "
                       "the events. ",
                       kTrainMoreGently, ", from a checkpoint before it if there is one",
                       WhereTheDataAreNamed(record))};
}

bool NonFiniteWatch::AwaitsRollback(const v1::Job& record, const v1::JobPlan& plan) {
  return record.recovery().left_out_batches_size() > plan.left_out_batches_size();
}

// The last checkpoint is good, because no checkpoint has values that are not finite
// (SnapshotWriter). The steps from there would repeat exactly and fail again, so the batch of this
// step is left out.
NonFiniteWatch::Ruling NonFiniteWatch::Rule(const v1::Job& record, const NotFinite& failure,
                                            const std::string& what) {
  if (record.spec().on_non_finite() != v1::NON_FINITE_ROLLBACK) {
    return {.message = absl::StrCat(what, ". ", AdviceOn(failure),
                                    ", or leave the batch out with on_non_finite: rollback",
                                    AdviceToResume(record))};
  }
  v1::JobRecovery recovery = record.recovery();
  if (recovery.rollbacks() >= kRollbacksMax) {
    return {.message = absl::StrCat(what, "; it was rolled back ", kRollbacksMax,
                                    " times for that, each time without the samples of such a "
                                    "step. ",
                                    AdviceOn(failure), AdviceToResume(record))};
  }
  recovery.set_rollbacks(recovery.rollbacks() + 1);
  recovery.clear_resumed_step();
  std::string left_out;
  if (failure.step >= CommittedStep(record)) {
    auto& batches = *recovery.mutable_left_out_batches();
    const int64_t batch = BatchOfStep(failure.step, batches);
    batches.Add(batch);
    std::ranges::sort(batches);
    left_out = absl::StrCat(", without batch ", batch, " of the data");
  }
  return {.rollback = std::move(recovery),
          .message = absl::StrCat(what, "; goes back to ", WhereItGoesOn(record), left_out)};
}

}  // namespace muster
