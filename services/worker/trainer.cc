#include "services/worker/trainer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "glog/logging.h"
#include "lib/cluster/parameter_table.h"
#include "lib/graph/autodiff.h"
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
  ASSIGN_OR_RETURN(dataset_, Dataset::Open(plan.spec().data(), plan.graph()));
  ASSIGN_OR_RETURN(v1::Graph training, Differentiate(plan.graph()));
  training_graph_ = std::make_shared<const v1::Graph>(std::move(training));

  const int devices =
      static_cast<int>(std::min<int64_t>(std::ssize(options_.devices), self.samples()));
  const SampleRange held_out =
      PartOf({0, dataset_->evaluation_samples()}, options_.rank, plan.workers_size());
  team_ = std::make_unique<DeviceTeam>(devices);
  lanes_.resize(devices);
  RETURN_IF_ERROR(team_->Run([&](int i) {
    absl::StatusOr<std::unique_ptr<DeviceLane>> lane = DeviceLane::Create({
        .index = i,
        .device = options_.devices[i],
        .threads = options_.threads_per_device,
        .forward = std::shared_ptr<const v1::Graph>(options_.plan, &plan.graph()),
        .training = training_graph_,
        .samples = PartOf({0, self.samples()}, i, devices),
        .evaluation = PartOf(held_out, i, devices),
    });
    if (lane.ok()) lanes_[i] = *std::move(lane);
    return lane.status();
  }));
  ASSIGN_OR_RETURN(parameters_, TensorSlab::Create(lanes_[0]->device(), plan.graph()));
  const std::vector<float*> parameters = parameters_->pointers();
  RETURN_IF_ERROR(team_->Run([&](int i) { return lanes_[i]->Build(parameters); }));

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
  return absl::OkStatus();
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
      .seed = plan.spec().data().seed(),
      .batch_size = batch_size,
      .first_position = plan.workers(options_.rank).first_position(),
      .samples = plan.workers(options_.rank).samples(),
      .first_step = plan.first_step(),
      .input_bytes = SampleBytes(plan.graph(), "input"),
      .target_bytes = SampleBytes(plan.graph(), "target"),
  });
  return exchange_->Connect();
}

absl::Status Trainer::Step(int64_t step) {
  const v1::JobPlan& plan = *options_.plan;
  const int64_t batch_size = plan.spec().data().batch_size();
  const int64_t samples = plan.workers(options_.rank).samples();
  WorkerMetrics& metrics = *options_.metrics;

  const absl::Time begin = absl::Now();
  const InputPipeline::Batch batch = pipeline_->Next();
  CHECK_EQ(batch.step, step);
  const absl::Time have_data = absl::Now();

  step_ = step;
  std::vector<DeviceLane::StepResult> results(lanes_.size());
  RETURN_IF_ERROR(team_->Run([&](int i) {
    auto result = lanes_[i]->Step(step, batch_size, batch.input, batch.target);
    if (result.ok()) results[i] = *result;
    return result.status();
  }));
  const absl::Time end = absl::Now();

  // Forward waited for version `step` of every parameter, so that the step before is finished.
  RETURN_IF_ERROR(FinishStep());

  double loss_share = 0;
  absl::Duration wait;
  for (int i = 0; i < std::ssize(lanes_); ++i) {
    loss_share += results[i].loss * lanes_[i]->samples() / batch_size;
    wait = std::max(wait, results[i].wait);
  }
  pending_.emplace();
  pending_->set_step(step);
  pending_->set_loss_share(loss_share);
  pending_->set_learning_rate(LearningRate(plan.spec().training(), step, total_steps_));
  SetTime(end, *pending_->mutable_time());
  pending_->set_step_seconds(absl::ToDoubleSeconds(end - begin));
  pending_->set_wait_seconds(absl::ToDoubleSeconds(wait));

  if (!std::isfinite(loss_share)) {
    metrics.nonfinite_losses.Increment();
    LOG_IF(WARNING, !loss_was_nonfinite_)
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
    auto evaluated = lanes_[i]->Evaluate(*dataset_, cancelled_);
    if (evaluated.ok()) sums[i] = *evaluated;
    return evaluated.status();
  }));
  v1::EvaluationRecord record;
  record.set_step(version);
  record.set_has_accuracy(!options_.plan->graph().correct().empty());
  for (int i = 0; i < std::ssize(lanes_); ++i) {
    record.set_loss_sum(record.loss_sum() + sums[i].loss);
    record.set_correct(record.correct() + sums[i].correct);
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
