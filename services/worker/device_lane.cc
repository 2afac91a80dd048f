#include "services/worker/device_lane.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/time/clock.h"
#include "glog/logging.h"
#include "lib/status/status.h"

namespace muster {
namespace {

const v1::GraphInput& InputOf(const v1::Graph& graph, const std::string& name) {
  const auto input = std::ranges::find(graph.inputs(), name, &v1::GraphInput::name);
  CHECK(input != graph.inputs().end()) << graph.name() << " has no input '" << name << "'";
  return *input;
}

int64_t ElementsOfSample(const v1::GraphInput& input) {
  int64_t elements = 1;
  for (int d = 1; d < input.shape_size(); ++d) elements *= input.shape(d);
  return elements;
}

void CopyRows(absl::Span<const std::byte> rows, absl::Span<std::byte> to) {
  CHECK_EQ(rows.size(), to.size());
  std::memcpy(to.data(), rows.data(), rows.size());
}

}  // namespace

SampleRange PartOf(SampleRange range, int index, int parts) {
  const int64_t each = range.count / parts;
  const int64_t larger = range.count % parts;  // parts that have one more
  return {range.first + index * each + std::min<int64_t>(index, larger),
          each + (index < larger ? 1 : 0)};
}

int64_t SampleBytes(const v1::Graph& graph, const std::string& name) {
  return ElementsOfSample(InputOf(graph, name)) * 4;
}

absl::StatusOr<std::unique_ptr<DeviceLane>> DeviceLane::Create(Options options) {
  auto lane = std::unique_ptr<DeviceLane>(new DeviceLane(std::move(options)));
  ASSIGN_OR_RETURN(lane->device_, Device::Create(lane->options_.device, lane->options_.threads));
  return lane;
}

absl::Status DeviceLane::Build(absl::Span<float* const> parameters) {
  ASSIGN_OR_RETURN(gradients_, TensorSlab::Create(*device_, *options_.forward));
  const std::vector<float*> gradients = gradients_->pointers();
  ASSIGN_OR_RETURN(trainer_, Executor::Create(*options_.training, {.batch = options_.samples.count,
                                                                   .device = device_.get(),
                                                                   .parameters = parameters,
                                                                   .gradients = gradients}));
  const int64_t rest = options_.evaluation.count % options_.samples.count;
  if (options_.evaluation.count >= options_.samples.count) {
    ASSIGN_OR_RETURN(evaluator_, MakeEvaluator(parameters, options_.samples.count));
  }
  if (rest > 0) {
    ASSIGN_OR_RETURN(rest_evaluator_, MakeEvaluator(parameters, rest));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Executor>> DeviceLane::MakeEvaluator(
    absl::Span<float* const> parameters, int64_t samples) {
  return Executor::Create(*options_.forward,
                          {.batch = samples, .device = device_.get(), .parameters = parameters});
}

void DeviceLane::Connect(GradientExchange* exchange, GradientReduction* reduction) {
  exchange_ = exchange;
  reduction_ = reduction;
}

absl::StatusOr<DeviceLane::StepResult> DeviceLane::Step(int64_t step, int64_t batch_size,
                                                        absl::Span<const std::byte> input,
                                                        absl::Span<const std::byte> target) {
  const int64_t input_bytes = SampleBytes(*options_.forward, "input");
  const int64_t target_bytes = SampleBytes(*options_.forward, "target");
  const auto [first, count] = options_.samples;
  CopyRows(input.subspan(first * input_bytes, count * input_bytes), trainer_->input("input"));
  CopyRows(target.subspan(first * target_bytes, count * target_bytes), trainer_->input("target"));
  step_ = step;
  wait_ = absl::ZeroDuration();
  const auto loss_scale = static_cast<float>(static_cast<double>(count) / batch_size);
  if (absl::Status run = trainer_->Run(loss_scale, this); !run.ok()) {
    reduction_->Abort(run);
    return run;
  }
  device_->Synchronize();
  return StepResult{.loss = trainer_->output(options_.training->loss()).at(0), .wait = wait_};
}

absl::Status DeviceLane::AwaitParameter(int p) {
  if (exchange_->HasParameter(p, step_)) return absl::OkStatus();
  const absl::Time begin = absl::Now();
  absl::Status awaited = exchange_->AwaitParameter(p, step_);
  wait_ += absl::Now() - begin;
  return awaited;
}

absl::Status DeviceLane::GradientReady(int p) { return reduction_->Contribute(options_.index, p); }

absl::StatusOr<DeviceLane::EvaluationSums> DeviceLane::Evaluate(
    const Dataset& dataset, const std::atomic<bool>& cancelled) {
  const std::string& correct = options_.forward->correct();
  const auto targets = ElementsOfSample(InputOf(*options_.forward, "target"));
  EvaluationSums sums;
  for (int64_t done = 0; done < options_.evaluation.count;) {
    if (cancelled) return absl::CancelledError("the job was released");
    const int64_t left = options_.evaluation.count - done;
    const int64_t count = std::min(options_.samples.count, left);
    Executor& evaluator = count == options_.samples.count ? *evaluator_ : *rest_evaluator_;
    dataset.ReadEvaluation(options_.evaluation.first + done, count, evaluator.input("input"),
                           evaluator.input("target"));
    RETURN_IF_ERROR(evaluator.Run(/*loss_scale=*/1, /*flow=*/nullptr));
    device_->Synchronize();
    sums.loss += static_cast<double>(evaluator.output(options_.forward->loss()).at(0)) * count;
    if (!correct.empty()) {
      sums.correct += static_cast<double>(evaluator.output(correct).at(0)) / targets;
    }
    done += count;
  }
  return sums;
}

}  // namespace muster
