// Combines the reports of a job's workers. A step or an evaluation is known when every rank has
// reported its part.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/time/time.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/job.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Means by name, of a program outside of Muster.
using MetricMeans = std::map<std::string, double>;

struct StepSummary {
  int64_t step = 0;
  // The mean over the samples of the workers that told a loss. nullopt: no worker told one.
  std::optional<double> loss;
  double gradient_norm = 0;
  double learning_rate = 0;
  double samples_per_second = 0;  // smoothed over about three seconds
  double loss_scale = 0;          // fp16: of this step
  bool skipped = false;           // the step changed no parameter
  // When it ended, by the clock of the last worker. InfinitePast() if no worker reported it.
  absl::Time time = absl::InfinitePast();
  MetricMeans metrics;  // over the same samples as the loss, each over the workers that told it
};

struct EvaluationSummary {
  int64_t step = 0;            // version that was evaluated
  std::optional<double> loss;  // mean over the held-out samples; nullopt: the program told none
  std::optional<double> accuracy;
  absl::Time time = absl::InfinitePast();  // as in StepSummary
  int64_t samples = 0;                     // 0 if it was read from a log
  MetricMeans metrics;
};

// All step records before step `steps`, and all evaluation records before step `evaluations`.
struct RecordsBefore {
  int64_t steps = 0;
  int64_t evaluations = 0;
  friend bool operator==(const RecordsBefore&, const RecordsBefore&) = default;
};

// Steps [first, last] that will never have a known loss.
struct StepGap {
  int64_t first = 0;
  int64_t last = 0;
};

// Adds parts in rank order, so that sums do not depend on the order of reports. Records that a
// worker sends again are recognized by their step and not counted twice. Pure. Not thread-safe.
class StepAggregator {
 public:
  // Starts a generation with the workers of `plan`. Its first step is `next_step`. Drops parts of
  // older generations.
  void Begin(const v1::JobPlan& plan, int64_t next_step);

  // Treats evaluations of steps < `step` as known: they are in the metrics log.
  void SkipEvaluationsBefore(int64_t step) { evaluations_before_ = step; }
  // Treats steps < `step` as known. Must be called before the next Begin().
  void SkipKnownStepsBefore(int64_t step) { steps_before_ = std::max(steps_before_, step); }

  // Takes a report. It holds, in order, all records that the worker may not drop yet. So records
  // before its first one that are unknown here are lost, and are skipped.
  void Take(int rank, const v1::JobReport& report);

  // Returns the steps and evaluations that have become complete, in order, each once. With
  // `may_be_given_up` the newest step is held back if no worker knows its norm: it may be made
  // again, and is left to CloseSteps().
  std::vector<StepSummary> TakeSteps(bool may_be_given_up = false);
  std::vector<EvaluationSummary> TakeEvaluations();
  // Returns the newest already known step, or evaluation, that every rank has reported again. A job
  // that went back makes steps again. They are shown but not recorded twice.
  std::optional<StepSummary> TakeStepMadeAgain();
  std::optional<EvaluationSummary> TakeEvaluationMadeAgain();
  // Returns the last complete evaluation of a program outside of Muster. The workers wait for it.
  // nullopt while the same version is evaluated again. It may have no samples.
  const std::optional<EvaluationSummary>& result() const { return result_; }
  // Returns whether result() has changed to another evaluation since the last call.
  bool TakeResultIsNew() { return std::exchange(result_is_new_, false); }
  // Takes an evaluation of an earlier process from the metrics log as the result.
  void RestoreResult(EvaluationSummary evaluation) { result_ = std::move(evaluation); }

  // Evaluations of `step` by a program do not wait for these ranks. They join at this step, so they
  // begin to train it at once, while the other workers may wait for a result. Lasts until the next
  // Begin().
  void ExcuseFromEvaluation(int64_t step, absl::btree_set<int> ranks) {
    excused_ = {.step = step, .ranks = std::move(ranks)};
  }

  // Marks a worker as lost: completed steps do not wait for its part. Lasts until the next Begin().
  void Lose(int rank) { lost_.insert(rank); }

  // Ends the generation; the next one begins at `step`. No more reports of earlier steps will come.
  // A step that only some workers reported has the mean loss of those. A step without reports is
  // skipped. Evaluations of `step` and later ones are made again, except those of a program. They
  // get the mean of the known parts, because workers wait for it.
  std::vector<StepSummary> CloseSteps(int64_t step);
  std::vector<EvaluationSummary> CloseEvaluations(int64_t step);
  // Returns the steps skipped since the last call.
  std::optional<StepGap> TakeGap() { return std::exchange(gap_, std::nullopt); }

  // Everything before these has been taken or skipped.
  int64_t steps_before() const { return steps_before_; }
  int64_t evaluations_before() const { return evaluations_before_; }
  RecordsBefore known() const { return {steps_before_, evaluations_before_}; }

  // ---- durable records

  // Marks records as durable; this is never undone. If all_durable() is true, Begin() keeps it
  // true.
  void SetDurable(const RecordsBefore& durable);
  const RecordsBefore& durable() const { return durable_; }
  bool all_durable() const { return durable_ == known(); }
  // Returns true if a report repeats records that are durable: its worker may drop them but does
  // not know it yet.
  bool Repeats(const v1::JobReport& report) const;

 private:
  // A metric's shares. Ranks add up in their order.
  struct MetricParts {
    std::map<int, double> shares;  // by rank
    double batch_share = 0;        // of these ranks
  };
  struct StepParts {
    std::vector<std::optional<double>> loss_shares;  // by rank; 0 if it told no loss
    bool some_told_no_loss = false;
    double batch_share = 0;  // of the workers that told a loss
    std::map<std::string, MetricParts> metrics;
    double gradient_norm = std::numeric_limits<double>::quiet_NaN();
    int norm_rank = std::numeric_limits<int>::max();  // the lowest rank that knows the norm
    double learning_rate = 0;
    double loss_scale = 0;
    bool skipped = false;
    double step_seconds = 0;  // of the slowest worker
    absl::Time time = absl::InfinitePast();
  };
  using EvaluationParts = std::vector<std::optional<v1::EvaluationRecord>>;  // by rank

  void SkipStepsBefore(int64_t step);
  void SkipEvaluationsWithout(int rank, int64_t before);
  void TakeStep(int rank, const v1::StepRecord& record, StepParts& parts) const;
  void TakeMetrics(int rank, const v1::StepRecord& record, StepParts& parts) const;
  bool IsPartOfResult(const v1::EvaluationRecord& record) const;
  bool IsComplete(int64_t step, const EvaluationParts& parts) const;
  // Parts that are missing count as empty.
  std::optional<EvaluationSummary> Complete(int64_t step, EvaluationParts& parts);
  StepSummary SummaryOf(int64_t step, const StepParts& parts);
  std::optional<EvaluationSummary> SummaryOf(int64_t step, const EvaluationParts& parts) const;
  double Smooth(const StepParts& parts);
  void LeaveOutTheLost();

  std::vector<double> batch_shares_;  // by rank
  std::vector<int64_t> finished_;     // by rank: the last step with a record; -1: none
  int64_t batch_size_ = 0;
  bool is_external_ = false;  // a program outside of Muster computes the model
  int64_t steps_before_ = 0;
  int64_t evaluations_before_ = 0;
  RecordsBefore durable_;
  absl::btree_set<int> lost_;  // ranks
  std::map<int64_t, StepParts> steps_;
  std::map<int64_t, EvaluationParts> evaluations_;
  std::map<int64_t, StepParts> steps_again_;  // steps before steps_before_
  std::map<int64_t, EvaluationParts> evaluations_again_;
  std::optional<StepGap> gap_;
  std::optional<EvaluationSummary> result_;
  EvaluationParts result_parts_;     // none if the result was restored
  bool result_lacks_parts_ = false;  // a worker may still send its part
  bool result_is_new_ = false;
  struct {
    int64_t step = -1;
    absl::btree_set<int> ranks;
  } excused_;
  absl::Time last_time_ = absl::InfinitePast();
  double seconds_per_step_ = 0;  // smoothed; 0: unknown
  double smoothed_seconds_ = 0;  // the time that the mean covers
};

// Updates the progress that GetJob shows. Keeps the last known loss if the step has none. The
// estimate requires `progress.total_steps`.
void ApplyStep(const StepSummary& step, int64_t batch_size, absl::Time now,
               v1::JobProgress& progress);
void ApplyEvaluation(const EvaluationSummary& evaluation, v1::JobProgress& progress);
// Moves the progress to a step without new records: the job went back, or makes steps again.
// Removes an evaluation of a later step, which does not belong to the present run.
void ApplyPosition(int64_t step, v1::JobProgress& progress);

}  // namespace muster
