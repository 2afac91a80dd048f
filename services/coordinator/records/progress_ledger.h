// Adds up what the workers of a job report: a step or an evaluation is known once every rank has
// told its part.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/time/time.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/job.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

struct StepSummary {
  int64_t step = 0;
  double loss = 0;  // mean over the global batch, or over what the workers computed of it
  double gradient_norm = 0;
  double learning_rate = 0;
  double samples_per_second = 0;  // smoothed over about three seconds
  double loss_scale = 0;          // fp16: that of the step
  bool skipped = false;           // it changed nothing
  // When it ended, on the clock of the worker that was last; InfinitePast(): nobody has told.
  absl::Time time = absl::InfinitePast();
};

struct EvaluationSummary {
  int64_t step = 0;  // version evaluated
  double loss = 0;   // mean over the held-out samples
  std::optional<double> accuracy;
  absl::Time time = absl::InfinitePast();  // likewise
};

// The records of all steps, and of all evaluations, before these.
struct RecordsBefore {
  int64_t steps = 0;
  int64_t evaluations = 0;
  friend bool operator==(const RecordsBefore&, const RecordsBefore&) = default;
};

// Steps of which no loss will ever be known, [first, last].
struct StepGap {
  int64_t first = 0;
  int64_t last = 0;
};

// Pure; not thread-safe. Parts are added in rank order, so that sums do not depend on who reported
// first. What a worker sends again is recognised by its step and not counted twice.
class ProgressLedger {
 public:
  // A new generation with the workers of `plan`, the first of whose steps is `next_step`. Parts of
  // older generations are dropped.
  void Begin(const v1::JobPlan& plan, int64_t next_step);

  // As if evaluations of steps < `step` were known already (they are in the metrics log).
  void SkipEvaluationsBefore(int64_t step) { evaluations_before_ = step; }
  // The same of steps, before the next Begin().
  void SkipKnownStepsBefore(int64_t step) { steps_before_ = std::max(steps_before_, step); }

  // A report holds, in order, all records that the worker has not been told to forget. So what
  // comes before its first one, and is not known here, is lost: it is skipped.
  void Take(int rank, const v1::JobReport& report);

  // The steps and evaluations that have become complete, in order, each once. `may_be_given_up`:
  // the newest one, if nobody knows its norm. It may be made again, and is left to CloseSteps().
  std::vector<StepSummary> TakeSteps(bool may_be_given_up = false);
  std::vector<EvaluationSummary> TakeEvaluations();
  // The newest step, and the newest evaluation, before the known ones that every rank has told of
  // again: a job that went back makes them again. They are shown, and not recorded a second time.
  std::optional<StepSummary> TakeStepMadeAgain();
  std::optional<EvaluationSummary> TakeEvaluationMadeAgain();
  // This worker is lost: what it has not told of steps that were made is not waited for. Until the
  // next Begin().
  void Lose(int rank) { lost_.insert(rank); }

  // The generation is over, and the next one begins at `step`: what was told of the steps before is
  // all that will ever be. The loss of a step that not every worker told of is the mean of those
  // who did; one that nobody told of is skipped. Evaluations of `step` and later ones are made
  // again.
  std::vector<StepSummary> CloseSteps(int64_t step);
  std::vector<EvaluationSummary> CloseEvaluations(int64_t step);
  // What was skipped since it was last asked for.
  std::optional<StepGap> TakeGap() { return std::exchange(gap_, std::nullopt); }

  // What has been taken, or skipped.
  int64_t steps_before() const { return steps_before_; }
  int64_t evaluations_before() const { return evaluations_before_; }
  RecordsBefore known() const { return {steps_before_, evaluations_before_}; }

  // ---- what of that is on the disk
  // So much of it is, and stays so. Where all of it is, a generation that begins further on has
  // left nothing to be stored.
  void SetDurable(const RecordsBefore& durable);
  const RecordsBefore& durable() const { return durable_; }
  bool all_durable() const { return durable_ == known(); }
  // Whether a report has what is durable already: its worker may forget it, and has not been told.
  bool Repeats(const v1::JobReport& report) const;

 private:
  struct StepParts {
    std::vector<std::optional<double>> loss_shares;  // by rank
    bool is_missed_by_some = false;
    double batch_share = 0;  // of the others
    double gradient_norm = std::numeric_limits<double>::quiet_NaN();
    int norm_rank = std::numeric_limits<int>::max();  // the lowest that knows the norm
    double learning_rate = 0;
    double loss_scale = 0;
    bool skipped = false;
    double step_seconds = 0;  // of the slowest
    absl::Time time = absl::InfinitePast();
  };
  struct EvaluationParts {
    std::vector<std::optional<v1::EvaluationRecord>> ranks;
  };

  void SkipStepsBefore(int64_t step);
  void SkipEvaluationsWithout(int rank, int64_t before);
  void TakeStep(int rank, const v1::StepRecord& record, StepParts& parts) const;
  void TakeEvaluation(int rank, const v1::EvaluationRecord& record, EvaluationParts& parts) const;
  StepSummary SummaryOf(int64_t step, const StepParts& parts);
  static std::optional<EvaluationSummary> SummaryOf(int64_t step, const EvaluationParts& parts);
  double Smooth(const StepParts& parts);
  void LeaveOutTheLost();

  std::vector<double> batch_shares_;  // by rank
  int64_t batch_size_ = 0;
  int64_t steps_before_ = 0;
  int64_t evaluations_before_ = 0;
  RecordsBefore durable_;
  absl::btree_set<int> lost_;  // ranks
  std::map<int64_t, StepParts> steps_;
  std::map<int64_t, EvaluationParts> evaluations_;
  std::map<int64_t, StepParts> steps_again_;  // before steps_before_
  std::map<int64_t, EvaluationParts> evaluations_again_;
  std::optional<StepGap> gap_;
  absl::Time last_time_ = absl::InfinitePast();
  double seconds_per_step_ = 0;  // smoothed; 0: unknown
  double smoothed_seconds_ = 0;  // that it is made of
};

// What GetJob shows, brought up to date. `progress.total_steps` must be known already for the
// estimate.
void ApplyStep(const StepSummary& step, int64_t batch_size, absl::Time now,
               v1::JobProgress& progress);
void ApplyEvaluation(const EvaluationSummary& evaluation, v1::JobProgress& progress);
// The job has come to this step, of which nothing new is known: it has gone back, or makes steps
// again. An evaluation of a later step is not the present run's.
void ApplyPosition(int64_t step, v1::JobProgress& progress);

}  // namespace muster
