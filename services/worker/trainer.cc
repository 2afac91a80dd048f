#include "services/worker/trainer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "glog/logging.h"
#include "lib/cluster/parameter_table.h"
#include "lib/data/input_use.h"
#include "lib/graph/lowering.h"
#include "lib/status/status.h"

namespace muster {
namespace {

void Observe(prometheus::Histogram& histogram, absl::Duration time) {
  histogram.Observe(absl::ToDoubleSeconds(time));
}

void SetTime(absl::Time time, google::protobuf::Timestamp& to) {
  to.set_seconds(absl::ToUnixSeconds(time));
  to.set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(time - absl::FromUnixSeconds(to.seconds()))));
}

// Takes the times of a start's phases.
class StartPhases {
 public:
  explicit StartPhases(WorkerMetrics* metrics) : metrics_(metrics) {}

  // What happened since the last end was `phase`.
  void End(const std::string& phase) {
    const absl::Time now = absl::Now();
    metrics_->ShowStartPhase(phase, now - last_);
    absl::StrAppend(&text_, text_.empty() ? "" : ", ", phase, " ",
                    absl::FormatDuration(absl::Trunc(now - last_, absl::Milliseconds(1))));
    last_ = now;
  }

  // "1.2s (data 20ms, graph 5ms)"
  std::string Text() const {
    return absl::StrCat(absl::FormatDuration(absl::Trunc(last_ - begin_, absl::Milliseconds(1))),
                        " (", text_, ")");
  }

 private:
  WorkerMetrics* const metrics_;
  const absl::Time begin_ = absl::Now();
  absl::Time last_ = begin_;
  std::string text_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(Options options) {
  auto trainer = std::unique_ptr<Trainer>(new Trainer(std::move(options)));
  RETURN_IF_ERROR(trainer->Open());
  return trainer;
}

Trainer::~Trainer() = default;

absl::Status Trainer::Open() {
  const v1::JobPlan& plan = *options_.plan;
  const v1::PlanWorker& self = plan.workers(options_.rank);
  next_step_ = plan.first_step();
  step_ = plan.first_step();
  StartPhases phases(options_.metrics);
  ASSIGN_OR_RETURN(dataset_, Dataset::Open(plan.spec().data(), plan.graph()));
  counted_evaluation_targets_ = CountEvaluationTargets(*dataset_, plan.graph());
  evaluation_labels_ = CountEvaluationLabels();
  phases.End("data");

  const int devices =
      static_cast<int>(std::min<int64_t>(std::ssize(options_.devices), self.samples()));
  RETURN_IF_ERROR(CheckSynchronised(devices));
  ASSIGN_OR_RETURN(const std::shared_ptr<const LaneGraphs> graphs, LowerGraphs());
  phases.End("graph");

  const SampleRange held_out =
      PartOf({0, dataset_->evaluation_samples()}, options_.rank, plan.workers_size());
  team_ = std::make_unique<DeviceTeam>(devices);
  lanes_.resize(devices);
  RETURN_IF_ERROR(team_->Run([&](int i) {
    absl::StatusOr<std::unique_ptr<DeviceLane>> lane = DeviceLane::Create({
        .index = i,
        .device = options_.devices[i],
        .threads = options_.threads_per_device,
        .graphs = graphs,
        .training = plan.spec().training(),
        .batch_size = plan.spec().data().batch_size(),
        .first_position = self.first_position(),
        .samples = PartOf({0, self.samples()}, i, devices),
        .evaluation = PartOf(held_out, i, devices),
    });
    RETURN_IF_ERROR(lane.status());
    lanes_[i] = *std::move(lane);
    return lanes_[i]->Allocate();
  }));
  ASSIGN_OR_RETURN(parameters_, TensorSlab::Create(lanes_[0]->device(), plan.graph()));
  phases.End("memory");
  const std::vector<float*> parameters = parameters_->pointers();
  RETURN_IF_ERROR(team_->Run([&](int i) { return lanes_[i]->Build(parameters); }));
  phases.End("compile");

  ASSIGN_OR_RETURN(exchange_, GradientExchange::Create({
                                  .plan = options_.plan,
                                  .rank = options_.rank,
                                  .transport = options_.transport,
                                  .parameters = parameters_->tensors(),
                                  .gradients = lanes_[0]->gradients().tensors(),
                                  .parameter_memory = parameters_->memory(),
                                  .gradient_memory = lanes_[0]->gradients().memory(),
                                  .metrics = options_.metrics,
                              }));
  GradientReduction::Options reduction;
  for (const auto& lane : lanes_) reduction.gradients.push_back(lane->gradients().tensors());
  reduction.reduced = [this](int parameter) { return exchange_->Push(parameter, step_); };
  reduction_ = std::make_unique<GradientReduction>(std::move(reduction));
  for (const auto& lane : lanes_) lane->Connect(exchange_.get(), reduction_.get());
  LOG(INFO) << plan.job() << " generation " << plan.generation() << ": ready after "
            << phases.Text() << " on " << devices << " x " << lanes_[0]->device().description();
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const LaneGraphs>> Trainer::LowerGraphs() const {
  const v1::TrainingSpec& training = options_.plan->spec().training();
  const LoweringOptions lowering{.precision = training.precision(),
                                 .recompute = training.recompute()};
  auto graphs = std::make_shared<LaneGraphs>();
  ASSIGN_OR_RETURN(graphs->training, TrainingGraph(options_.plan->graph(), lowering));
  ASSIGN_OR_RETURN(graphs->inference, InferenceGraph(options_.plan->graph(), lowering));
  return graphs;
}

// The devices of a worker run apart: nothing carries a batch's statistics from one to the other.
absl::Status Trainer::CheckSynchronised(int devices) const {
  if (devices == 1) return absl::OkStatus();
  for (const v1::Node& node : options_.plan->graph().nodes()) {
    const auto synchronised = node.attributes().find("synchronised");
    if (synchronised == node.attributes().end() || synchronised->second.i() == 0) continue;
    return WithReason(
        absl::UnimplementedError(absl::StrCat(
            "node '", node.name(), "' (", node.op(), ") is synchronised over the devices of a ",
            "worker, and this worker has ", devices, "; give it one device, or use more workers")),
        "SYNCHRONISED_DEVICES");
  }
  return absl::OkStatus();
}

double Trainer::CountEvaluationLabels() const {
  const v1::Graph& graph = options_.plan->graph();
  const std::vector<InputUse> uses = UsesOfInputs(graph);
  const auto samples = static_cast<double>(dataset_->evaluation_samples());
  for (int i = 0; i < graph.inputs_size(); ++i) {
    if (!uses[i].is_label) continue;
    if (uses[i].ignore_index) return static_cast<double>(counted_evaluation_targets_[i]);
    return samples * static_cast<double>(RowBytes(graph.inputs(i)) / sizeof(int32_t));
  }
  return samples;
}

v1::DatasetFacts Trainer::dataset() const {
  v1::DatasetFacts facts;
  facts.set_samples(dataset_->samples());
  facts.set_evaluation_samples(dataset_->evaluation_samples());
  return facts;
}

absl::Status Trainer::Start(int64_t total_steps) {
  const v1::JobPlan& plan = *options_.plan;
  total_steps_ = total_steps;
  const int64_t batch_size = plan.spec().data().batch_size();
  if (dataset_->samples() < batch_size) {
    return absl::InvalidArgumentError(absl::StrCat("data.batch_size: ", batch_size, " exceeds the ",
                                                   dataset_->samples(), " training samples"));
  }
  pipeline_ = std::make_unique<InputPipeline>(InputPipeline::Options{
      .dataset = dataset_.get(),
      .graph = &plan.graph(),
      .seed = plan.spec().data().seed(),
      .batch_size = batch_size,
      .first_position = plan.workers(options_.rank).first_position(),
      .samples = plan.workers(options_.rank).samples(),
      .first_step = plan.first_step(),
  });
  return exchange_->Connect();
}

absl::Status Trainer::Step(int64_t step) {
  const v1::JobPlan& plan = *options_.plan;
  const int64_t batch_size = plan.spec().data().batch_size();
  const int64_t samples = plan.workers(options_.rank).samples();
  WorkerMetrics& metrics = *options_.metrics;

  const absl::Time begin = absl::Now();
  const InputBatch batch = pipeline_->Next();
  CHECK_EQ(batch.step, step);
  const absl::Time have_data = absl::Now();

  step_ = step;
  std::vector<DeviceLane::StepResult> results(lanes_.size());
  RETURN_IF_ERROR(team_->Run([&](int i) {
    auto result = lanes_[i]->Step(batch);
    if (result.ok()) results[i] = *result;
    return result.status();
  }));
  const absl::Time end = absl::Now();

  // Forward waited for version `step` of every parameter, so that the step before is finished.
  RETURN_IF_ERROR(FinishStep());

  double loss_share = 0;
  absl::Duration wait;
  for (int i = 0; i < std::ssize(lanes_); ++i) {
    loss_share += results[i].loss_share;
    wait = std::max(wait, results[i].wait);
  }
  pending_.emplace();
  pending_->set_step(step);
  pending_->set_loss_share(loss_share);
  pending_->set_learning_rate(LearningRate(plan.spec().training(), step, total_steps_));
  SetTime(end, *pending_->mutable_time());
  pending_->set_step_seconds(absl::ToDoubleSeconds(end - begin));
  pending_->set_wait_seconds(absl::ToDoubleSeconds(wait));
  pending_->set_loss_scale(results[0].loss_scale);

  if (!std::isfinite(loss_share)) {
    metrics.nonfinite_losses.Increment();
    // A judged step is skipped then, and the coordinator tells when that goes on.
    LOG_IF(WARNING, !loss_was_nonfinite_ && !StepsAreJudged(plan.spec().training()))
        << plan.job() << ": the loss of step " << step << " is " << loss_share
        << "; this is said once. A lower learning rate may help.";
    loss_was_nonfinite_ = true;
  }
  metrics.loss.Set(loss_share * batch_size / samples);
  metrics.steps.Increment();
  metrics.samples.Increment(static_cast<double>(samples));
  Observe(metrics.step_duration, end - begin);
  Observe(metrics.data_duration, have_data - begin);
  Observe(metrics.wait_duration, wait);
  Observe(metrics.compute_duration, end - have_data - wait);

  if (step + 1 < total_steps_ && !EvaluationIsDue(step + 1)) return absl::OkStatus();
  RETURN_IF_ERROR(exchange_->AwaitVersion(step + 1));
  return FinishStep();
}

absl::Status Trainer::Drain() {
  RETURN_IF_ERROR(exchange_->AwaitAnswers());
  return FinishStep();
}

absl::Status Trainer::FinishStep() {
  if (!pending_) return absl::OkStatus();
  const int64_t version = pending_->step() + 1;
  CHECK_GE(exchange_->version(), version);
  pending_->set_gradient_norm(exchange_->GradientNorm(version));
  pending_->set_skipped(StepsAreJudged(options_.plan->spec().training()) &&
                        !std::isfinite(pending_->gradient_norm()));
  options_.metrics->loss_scale.Set(pending_->loss_scale());
  if (pending_->skipped()) options_.metrics->skipped_steps.Increment();
  options_.metrics->gradient_norm.Set(pending_->gradient_norm());
  options_.metrics->learning_rate.Set(pending_->learning_rate());
  RETURN_IF_ERROR(options_.log->Append(*std::exchange(pending_, std::nullopt)));
  if (EvaluationIsDue(version)) RETURN_IF_ERROR(Evaluate(version));
  next_step_.store(version, std::memory_order_release);
  return absl::OkStatus();
}

bool Trainer::EvaluationIsDue(int64_t version) const {
  const int64_t every = options_.plan->spec().training().evaluate_every_steps();
  return dataset_->evaluation_samples() > 0 &&
         (version == total_steps_ || (every > 0 && version % every == 0));
}

absl::Status Trainer::Evaluate(int64_t version) {
  const absl::Time begin = absl::Now();
  std::vector<DeviceLane::EvaluationSums> sums(lanes_.size());
  RETURN_IF_ERROR(team_->Run([&](int i) {
    auto evaluated = lanes_[i]->Evaluate(
        {.dataset = dataset_.get(), .counted_targets = counted_evaluation_targets_}, cancelled_);
    if (evaluated.ok()) sums[i] = *evaluated;
    return evaluated.status();
  }));
  v1::EvaluationRecord record;
  record.set_step(version);
  record.set_has_accuracy(!options_.plan->graph().correct().empty());
  // Shares of the whole, times all samples: divided by the samples of all ranks they give the mean
  // over the targets that count.
  const auto all = static_cast<double>(dataset_->evaluation_samples());
  for (int i = 0; i < std::ssize(lanes_); ++i) {
    record.set_loss_sum(record.loss_sum() + sums[i].loss_share * all);
    record.set_correct(record.correct() + sums[i].correct * all / evaluation_labels_);
    record.set_samples(record.samples() + lanes_[i]->evaluation_samples());
  }
  Observe(options_.metrics->evaluate_duration, absl::Now() - begin);
  return options_.log->Append(std::move(record));
}

void Trainer::Cancel(absl::Status why) {
  cancelled_ = true;
  options_.log->Close();
  exchange_->Fail(std::move(why));
}

}  // namespace muster
