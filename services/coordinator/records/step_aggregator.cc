#include "services/coordinator/records/step_aggregator.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "google/protobuf/util/message_differencer.h"
#include "lib/limits/limits.h"
#include "lib/text/known_loss.h"
#include "services/coordinator/common/proto_time.h"

namespace muster {
namespace {

constexpr double kSmoothingSeconds = 3;
constexpr size_t kMetricsMax = 32;  // of a step, and of an evaluation
constexpr size_t kMetricNameBytesMax = 64;

template <typename T>
bool AllPresent(const std::vector<std::optional<T>>& parts) {
  return std::ranges::all_of(parts, [](const auto& part) { return part.has_value(); });
}

// Whether a metric may be kept beside those in `known`, a map by name. A program names them.
template <typename Map>
bool TakesMetric(const std::string& name, const Map& known) {
  return known.contains(name) ||
         (known.size() < kMetricsMax && name.size() <= kMetricNameBytesMax && !name.empty());
}

template <typename Parts>
void DropOldest(std::map<int64_t, Parts>& by_step) {
  while (by_step.size() > limits::kStepRecordsHeldMax) by_step.erase(by_step.begin());
}

}  // namespace

void StepAggregator::Begin(const v1::JobPlan& plan, int64_t next_step) {
  const bool were_durable = all_durable();
  batch_size_ = plan.spec().data().batch_size();
  is_external_ = plan.spec().model().has_external();
  batch_shares_.clear();
  for (const v1::PlanWorker& worker : plan.workers()) {
    batch_shares_.push_back(static_cast<double>(worker.samples()) / batch_size_);
  }
  finished_.assign(batch_shares_.size(), -1);
  steps_before_ = next_step;
  lost_.clear();
  excused_ = {};
  steps_.clear();
  evaluations_.clear();
  steps_again_.clear();
  evaluations_again_.clear();
  last_time_ = absl::InfinitePast();
  if (were_durable) durable_ = known();
}

void StepAggregator::SetDurable(const RecordsBefore& durable) {
  durable_ = {.steps = std::max(durable_.steps, durable.steps),
              .evaluations = std::max(durable_.evaluations, durable.evaluations)};
}

bool StepAggregator::Repeats(const v1::JobReport& report) const {
  return (!report.steps().empty() && report.steps(0).step() < durable_.steps) ||
         (!report.evaluations().empty() && report.evaluations(0).step() < durable_.evaluations);
}

void StepAggregator::SkipStepsBefore(int64_t step) {
  if (step <= steps_before_) return;
  gap_ = {.first = gap_ ? gap_->first : steps_before_, .last = step - 1};
  steps_.erase(steps_.begin(), steps_.lower_bound(step));
  steps_before_ = step;
}

void StepAggregator::SkipEvaluationsWithout(int rank, int64_t before) {
  std::erase_if(evaluations_, [&](const auto& evaluation) {
    return evaluation.first < before && !evaluation.second[rank];
  });
}

void StepAggregator::Take(int rank, const v1::JobReport& report) {
  if (!report.steps().empty()) SkipStepsBefore(report.steps(0).step());
  if (!is_external_ && !report.evaluations().empty()) {
    SkipEvaluationsWithout(rank, report.evaluations(0).step());
  }
  for (const v1::StepRecord& record : report.steps()) {
    if (record.step() - steps_before_ >= limits::kStepRecordsHeldMax) continue;
    const bool is_known = record.step() < steps_before_;
    TakeStep(rank, record, (is_known ? steps_again_ : steps_)[record.step()]);
  }
  for (const v1::EvaluationRecord& record : report.evaluations()) {
    if (evaluations_.size() >= limits::kStepRecordsHeldMax) break;
    if (IsPartOfResult(record)) continue;
    // The program evaluates the same version again, so the known result is out of date.
    if (result_ && record.step() == result_->step) result_.reset();
    const bool is_known = record.step() < evaluations_before_;
    EvaluationParts& parts = (is_known ? evaluations_again_ : evaluations_)[record.step()];
    parts.resize(batch_shares_.size());
    parts[rank] = record;
  }
  // Set after this report's own evaluations were taken.
  for (const v1::StepRecord& record : report.steps()) {
    finished_[rank] = std::max(finished_[rank], record.step());
  }
  // A record that only one rank repeats never becomes complete.
  DropOldest(steps_again_);
  DropOldest(evaluations_again_);
}

// A worker that missed the step knows neither its loss nor its gradient norm. A worker that was
// overtaken in the step does not know the norm. Repeated records are equal.
void StepAggregator::TakeStep(int rank, const v1::StepRecord& record, StepParts& parts) const {
  parts.loss_shares.resize(batch_shares_.size());
  const bool told_no_loss = record.missed() || record.has_no_loss();
  if (!parts.loss_shares[rank] && !told_no_loss) parts.batch_share += batch_shares_[rank];
  if (!parts.loss_shares[rank]) TakeMetrics(rank, record, parts);
  parts.loss_shares[rank] = record.has_no_loss() ? 0 : record.loss_share();
  parts.learning_rate = record.learning_rate();
  parts.time = std::max(parts.time, FromProto(record.time()));
  parts.some_told_no_loss |= told_no_loss;
  if (record.missed()) return;
  // All ranks have the same norm, except if each gradient is an update of its own.
  if (rank <= parts.norm_rank && !std::isnan(record.gradient_norm())) {
    parts.gradient_norm = record.gradient_norm();
    parts.norm_rank = rank;
  }
  parts.loss_scale = record.loss_scale();
  parts.skipped |= record.skipped();
  parts.step_seconds = std::max(parts.step_seconds, record.step_seconds());
}

void StepAggregator::TakeMetrics(int rank, const v1::StepRecord& record, StepParts& parts) const {
  for (const auto& [name, share] : record.metric_shares()) {
    if (!TakesMetric(name, parts.metrics)) continue;
    MetricParts& metric = parts.metrics[name];
    metric.shares[rank] = share;
    metric.batch_share += batch_shares_[rank];
  }
}

// A generation's first step selects kernels and touches memory for the first time. It is shown, but
// the mean does not start with it. Until the mean covers three seconds, every step is weighted by
// its time.
double StepAggregator::Smooth(const StepParts& parts) {
  const bool is_first = last_time_ == absl::InfinitePast();
  const double elapsed =
      is_first ? parts.step_seconds : absl::ToDoubleSeconds(parts.time - last_time_);
  last_time_ = parts.time;
  if (elapsed > 0 && !is_first) {
    smoothed_seconds_ += elapsed;
    const double weight =
        std::max(1 - std::exp(-elapsed / kSmoothingSeconds), elapsed / smoothed_seconds_);
    seconds_per_step_ += weight * (elapsed - seconds_per_step_);
  }
  if (seconds_per_step_ > 0) return batch_size_ / seconds_per_step_;
  return elapsed > 0 ? batch_size_ / elapsed : 0;
}

// Stops waiting for lost workers in every step before the newest one: their parts count as missed.
// Such a step is over, because a worker has reported a later one.
void StepAggregator::LeaveOutTheLost() {
  if (lost_.empty() || steps_.empty()) return;
  const int64_t newest = steps_.rbegin()->first;
  for (auto& [step, parts] : steps_) {
    if (step == newest) return;
    for (const int rank : lost_) {
      if (parts.loss_shares[rank]) continue;
      parts.loss_shares[rank] = 0;
      parts.some_told_no_loss = true;
    }
  }
}

std::vector<StepSummary> StepAggregator::TakeSteps(bool may_be_given_up) {
  LeaveOutTheLost();
  std::vector<StepSummary> complete;
  for (auto it = steps_.begin(); it != steps_.end() && it->first == steps_before_;
       it = steps_.erase(it), ++steps_before_) {
    const StepParts& parts = it->second;
    if (!AllPresent(parts.loss_shares)) break;
    // If no worker knows the norm of the newest step, the step may be made again. An earlier step
    // was made, because a worker has reported a later one.
    const bool is_newest = std::next(it) == steps_.end();
    if (may_be_given_up && is_newest && std::isnan(parts.gradient_norm)) break;
    complete.push_back(SummaryOf(it->first, parts));
  }
  return complete;
}

StepSummary StepAggregator::SummaryOf(int64_t step, const StepParts& parts) {
  StepSummary summary;
  summary.step = step;
  if (parts.batch_share > 0) {
    double loss = 0;
    for (const auto& share : parts.loss_shares) loss += *share;
    summary.loss = parts.some_told_no_loss ? loss / parts.batch_share : loss;
  }
  for (const auto& [name, metric] : parts.metrics) {
    double sum = 0;
    for (const auto& [rank, share] : metric.shares) sum += share;
    const bool by_all = metric.shares.size() == batch_shares_.size();
    summary.metrics[name] = by_all ? sum : sum / metric.batch_share;
  }
  summary.gradient_norm = parts.gradient_norm;
  summary.learning_rate = parts.learning_rate;
  summary.samples_per_second = Smooth(parts);
  summary.loss_scale = parts.loss_scale;
  summary.skipped = parts.skipped;
  if (parts.time > absl::UnixEpoch()) summary.time = parts.time;  // otherwise no worker reported it
  return summary;
}

std::optional<StepSummary> StepAggregator::TakeStepMadeAgain() {
  std::optional<StepSummary> newest;
  for (auto it = steps_again_.begin(); it != steps_again_.end();) {
    if (!AllPresent(it->second.loss_shares)) {
      ++it;
      continue;
    }
    newest = SummaryOf(it->first, it->second);
    it = steps_again_.erase(steps_again_.begin(), std::next(it));
  }
  return newest;
}

std::vector<EvaluationSummary> StepAggregator::TakeEvaluations() {
  std::vector<EvaluationSummary> complete;
  while (!evaluations_.empty() &&
         IsComplete(evaluations_.begin()->first, evaluations_.begin()->second)) {
    auto& [step, parts] = *evaluations_.begin();
    evaluations_before_ = step + 1;
    if (auto summary = Complete(step, parts)) complete.push_back(*std::move(summary));
    evaluations_.erase(evaluations_.begin());
  }
  return complete;
}

std::optional<EvaluationSummary> StepAggregator::TakeEvaluationMadeAgain() {
  std::optional<EvaluationSummary> newest;
  for (auto it = evaluations_again_.begin(); it != evaluations_again_.end();) {
    if (!IsComplete(it->first, it->second)) {
      ++it;
      continue;
    }
    if (auto summary = Complete(it->first, it->second)) newest = std::move(summary);
    it = evaluations_again_.erase(evaluations_again_.begin(), std::next(it));
  }
  return newest;
}

// Records of one step belong to different evaluations if they are not equal. A restored result has
// no records, so the record's time decides. The log has rounded the time of the result.
bool StepAggregator::IsPartOfResult(const v1::EvaluationRecord& record) const {
  if (!is_external_) return false;
  const bool is_of_its_step = result_ && record.step() == result_->step;
  if (is_of_its_step && result_lacks_parts_) return true;  // too late, so it gets this result
  if (result_parts_.empty()) {
    return is_of_its_step && FromProto(record.time()) <= result_->time + absl::Milliseconds(1);
  }
  return std::ranges::any_of(result_parts_, [&](const auto& part) {
    return google::protobuf::util::MessageDifferencer::Equals(*part, record);
  });
}

bool StepAggregator::IsComplete(int64_t step, const EvaluationParts& parts) const {
  for (int rank = 0; rank < std::ssize(parts); ++rank) {
    const bool is_excused = step <= excused_.step && excused_.ranks.contains(rank);
    // A program evaluates before its worker records the step. So a worker with the record sends no
    // part any more: its program was replaced, or the worker missed the step.
    const bool is_past = is_external_ && step <= finished_[rank];
    if (!parts[rank] && !is_excused && !is_past) return false;
  }
  return true;
}

std::optional<EvaluationSummary> StepAggregator::Complete(int64_t step, EvaluationParts& parts) {
  const bool lacks_parts = !AllPresent(parts);
  for (std::optional<v1::EvaluationRecord>& record : parts) {
    if (!record) record.emplace();
  }
  std::optional<EvaluationSummary> summary = SummaryOf(step, parts);
  if (!is_external_) return summary;
  result_ = summary.value_or(EvaluationSummary{.step = step});
  result_parts_ = parts;
  result_lacks_parts_ = lacks_parts;
  result_is_new_ = true;
  return summary;
}

// Returns nullopt for an evaluation without samples.
std::optional<EvaluationSummary> StepAggregator::SummaryOf(int64_t step,
                                                           const EvaluationParts& parts) const {
  double loss_sum = 0, correct = 0;
  int64_t samples = 0;
  MetricMeans metric_sums;
  bool has_accuracy = false;
  absl::Time time = absl::InfinitePast();
  for (const auto& record : parts) {
    if (record->has_time()) time = std::max(time, FromProto(record->time()));
    loss_sum += record->loss_sum();
    correct += record->correct();
    samples += std::max<int64_t>(0, record->samples());
    for (const auto& [name, sum] : record->metric_sums()) {
      if (TakesMetric(name, metric_sums)) metric_sums[name] += sum;
    }
    has_accuracy |= record->has_accuracy();
  }
  if (samples <= 0) return std::nullopt;
  EvaluationSummary summary{.step = step, .time = time, .samples = samples};
  const double count = static_cast<double>(samples);
  for (const auto& [name, sum] : metric_sums) summary.metrics[name] = sum / count;
  // A program tells a loss among its metrics, or not at all.
  if (!is_external_ || loss_sum != 0) summary.loss = loss_sum / count;
  if (const auto loss = summary.metrics.find("loss"); loss != summary.metrics.end()) {
    summary.loss = loss->second;
  } else if (is_external_ && summary.loss) {
    summary.metrics["loss"] = *summary.loss;
  }
  if (has_accuracy) summary.accuracy = correct / count;
  return summary;
}

std::vector<StepSummary> StepAggregator::CloseSteps(int64_t step) {
  std::vector<StepSummary> closed;
  while (steps_before_ < step) {
    const auto told = steps_.find(steps_before_);
    if (told == steps_.end()) {
      SkipStepsBefore(steps_before_ + 1);
      continue;
    }
    for (std::optional<double>& share : told->second.loss_shares) {
      if (share) continue;
      share = 0;
      told->second.some_told_no_loss = true;
    }
    for (StepSummary& summary : TakeSteps()) closed.push_back(std::move(summary));
  }
  return closed;
}

std::vector<EvaluationSummary> StepAggregator::CloseEvaluations(int64_t step) {
  if (!is_external_) evaluations_.erase(evaluations_.lower_bound(step), evaluations_.end());
  std::vector<EvaluationSummary> closed;
  for (auto& [version, parts] : evaluations_) {
    evaluations_before_ = version + 1;
    if (auto summary = Complete(version, parts)) closed.push_back(*std::move(summary));
  }
  evaluations_.clear();
  return closed;
}

void ApplyStep(const StepSummary& step, int64_t batch_size, absl::Time now,
               v1::JobProgress& progress) {
  if (step.loss) {
    if (!progress.has_update_time() || !HasLoss(progress)) progress.set_first_loss(*step.loss);
    progress.set_loss(*step.loss);
  }
  progress.mutable_metrics()->clear();
  progress.mutable_metrics()->insert(step.metrics.begin(), step.metrics.end());
  ApplyPosition(step.step + 1, progress);
  progress.set_learning_rate(step.learning_rate);
  progress.set_gradient_norm(step.gradient_norm);
  progress.set_samples_per_second(step.samples_per_second);
  *progress.mutable_update_time() = ToProto(now);
  if (progress.total_steps() <= 0) return;
  const double left = static_cast<double>(progress.total_steps() - progress.step());
  if (step.samples_per_second > 0) {
    *progress.mutable_remaining() =
        ToProto(absl::Seconds(left * batch_size / step.samples_per_second));
  }
}

void ApplyEvaluation(const EvaluationSummary& evaluation, v1::JobProgress& progress) {
  progress.clear_evaluation_loss();
  progress.clear_evaluation_accuracy();
  if (evaluation.loss) {
    if (!progress.has_first_evaluation_loss()) progress.set_first_evaluation_loss(*evaluation.loss);
    progress.set_evaluation_loss(*evaluation.loss);
  }
  progress.set_evaluation_step(evaluation.step);
  if (evaluation.accuracy) progress.set_evaluation_accuracy(*evaluation.accuracy);
}

void ApplyPosition(int64_t step, v1::JobProgress& progress) {
  progress.set_step(step);
  if (progress.evaluation_step() > step) {
    progress.clear_evaluation_loss();
    progress.clear_evaluation_accuracy();
    progress.clear_evaluation_step();
  }
  if (progress.total_steps() <= 0) return;
  progress.set_progress_percentage(100.0 * static_cast<double>(step) /
                                   static_cast<double>(progress.total_steps()));
}

}  // namespace muster
