#include "services/worker/device_lane.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "glog/logging.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/engine/backends.h"
#include "lib/status/status.h"

namespace muster {
namespace {

int64_t SamplesOfLargest(int64_t samples, int parts) { return (samples + parts - 1) / parts; }

}  // namespace

SampleRange PartOf(SampleRange range, int index, int parts) {
  const int64_t each = range.count / parts;
  const int64_t larger = range.count % parts;  // parts that have one more
  return {range.first + index * each + std::min<int64_t>(index, larger),
          each + (index < larger ? 1 : 0)};
}

absl::StatusOr<std::unique_ptr<DeviceLane>> DeviceLane::Create(Options options) {
  auto lane = std::unique_ptr<DeviceLane>(new DeviceLane(std::move(options)));
  ASSIGN_OR_RETURN(lane->device_, CreateDevice(lane->options_.device, lane->options_.threads));
  return lane;
}

absl::Status DeviceLane::Allocate(const GradientLayout& layout) {
  ASSIGN_OR_RETURN(gradients_, TensorSlab::Create(*device_, options_.graphs->training, layout));
  return absl::OkStatus();
}

absl::Status DeviceLane::JoinPeers(NcclGroup& group, const GradientLayout& layout,
                                   float* parameters) {
  RETURN_IF_ERROR(device_->Use());
  ASSIGN_OR_RETURN(communicator_, group.Join(options_.index));
  peers_ = {.communicator = communicator_.get(),
            .layout = &layout,
            .parameters = parameters,
            .gradients = gradients_->base()};
  return absl::OkStatus();
}

// As few as the limit allows, as even as possible: of at most two sizes.
int DeviceLane::micro_batches() const {
  const int64_t limit = options_.training.micro_batch_size();
  if (limit == 0) return 1;
  return static_cast<int>((options_.samples.count + limit - 1) / limit);
}

absl::Status DeviceLane::Build(absl::Span<float* const> parameters) {
  const LaneGraphs& graphs = *options_.graphs;
  const std::vector<float*> gradients = gradients_->pointers();
  const int64_t samples = SamplesOfLargest(options_.samples.count, micro_batches());
  ASSIGN_OR_RETURN(trainer_, MakeExecutor(graphs.training, samples, parameters, gradients));
  if (options_.samples.count % micro_batches() != 0) {
    ASSIGN_OR_RETURN(rest_trainer_,
                     MakeExecutor(graphs.training, samples - 1, parameters, gradients));
  }
  if (options_.evaluation.count >= samples) {
    ASSIGN_OR_RETURN(evaluator_, MakeExecutor(graphs.inference, samples, parameters, {}));
  }
  if (const int64_t rest = options_.evaluation.count % samples; rest > 0) {
    ASSIGN_OR_RETURN(rest_evaluator_, MakeExecutor(graphs.inference, rest, parameters, {}));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Executor>> DeviceLane::MakeExecutor(
    const v1::Graph& graph, int64_t samples, absl::Span<float* const> parameters,
    absl::Span<float* const> gradients) {
  const v1::TrainingSpec& training = options_.training;
  return CreateExecutor(graph,
                        {.batch = samples,
                         .device = device_.get(),
                         .parameters = parameters,
                         .gradients = gradients,
                         .micro_batches = !gradients.empty() && micro_batches() > 1,
                         .tf32 = training.precision() == v1::TF32,
                         .deterministic = !training.has_deterministic() || training.deterministic(),
                         .peers = peers_ ? &*peers_ : nullptr});
}

void DeviceLane::Connect(GradientExchange* exchange, GradientReduction* reduction) {
  exchange_ = exchange;
  reduction_ = reduction;
}

absl::StatusOr<DeviceLane::StepResult> DeviceLane::Step(const InputBatch& batch) {
  const v1::Graph& graph = options_.graphs->training;
  const int parts = micro_batches();
  step_ = batch.step;
  wait_ = absl::ZeroDuration();
  const absl::Duration start = SteadyNow();
  last_asked_ = start;
  waited_before_ = absl::ZeroDuration();
  StepResult result;
  // A wait that is cut short (ABORTED) is so for all devices, before any of them contributes: what
  // one has, all have.
  auto failed = [&](const absl::Status& status) {
    if (!absl::IsAborted(status)) reduction_->Abort(status);
    return status;
  };
  const bool traced = tracing();
  const int64_t begin = traced ? Trace::Now() : 0;
  forward_end_ = 0;
  auto loss_scale = AwaitLossScale(batch.step);
  if (!loss_scale.ok()) return failed(loss_scale.status());
  result.loss_scale = *loss_scale;
  for (int part = 0; part < parts; ++part) {
    const auto [first, count] = PartOf(options_.samples, part, parts);
    Executor& trainer =
        count < SamplesOfLargest(options_.samples.count, parts) ? *rest_trainer_ : *trainer_;
    for (int i = 0; i < graph.inputs_size(); ++i) {
      const int64_t bytes = RowBytes(graph.inputs(i));
      const absl::Span<std::byte> to = trainer.input(graph.inputs(i).name());
      CHECK_EQ(to.size(), count * bytes);
      std::memcpy(to.data(), batch.rows[i].subspan(first * bytes, count * bytes).data(), to.size());
    }
    const absl::Status run =
        trainer.Run({.loss_scale = result.loss_scale > 0 ? result.loss_scale : 1,
                     .batch = options_.batch_size,
                     .first_position = options_.first_position + first,
                     .counted_targets = batch.counted_targets,
                     .seed = options_.training.seed(),
                     .step = batch.step,
                     .is_first_micro_batch = part == 0,
                     .is_last_micro_batch = part == parts - 1},
                    this);
    if (!run.ok()) return failed(run);
    const auto loss = trainer.output(graph.loss());
    if (!loss.ok()) return failed(loss.status());
    result.loss_share += loss->at(0);
  }
  result.wait = wait_;
  if (device_->is_cpu() && parts == 1) result.forward = last_asked_ - start - waited_before_;
  if (traced) TraceStep(begin);
  return result;
}

// The last of the parameters that were waited for is where forward is nearly over: what follows,
// the head and the loss, counts as backward.
void DeviceLane::TraceStep(int64_t begin) const {
  const int64_t turn = std::max(begin, forward_end_);
  options_.trace->Span(options_.index, "forward", begin, turn, {{{"step", step_}}});
  options_.trace->Span(options_.index, "backward", turn, Trace::Now(), {{{"step", step_}}});
}

absl::StatusOr<float> DeviceLane::AwaitLossScale(int64_t step) {
  if (options_.training.precision() != v1::FP16) return 0.0f;
  const absl::Duration begin = SteadyNow();
  absl::StatusOr<float> scale = exchange_->AwaitLossScale(step);
  wait_ += SteadyNow() - begin;
  return scale;
}

absl::Status DeviceLane::AwaitParameter(int p) {
  absl::Status awaited;
  if (!exchange_->HasParameter(p, step_)) {
    const absl::Duration begin = SteadyNow();
    {
      const TraceSpan span(options_.trace, options_.index, "wait",
                           {{{"step", step_}, {"parameter", p}}});
      awaited = exchange_->AwaitParameter(p, step_);
    }
    wait_ += SteadyNow() - begin;
  }
  const bool is_trained = !options_.graphs->training.parameters(p).has_statistic_momentum();
  if (is_trained && tracing()) forward_end_ = Trace::Now();
  if (is_trained) {
    last_asked_ = SteadyNow();
    waited_before_ = wait_;
  }
  return awaited;
}

absl::Status DeviceLane::GradientReady(int p) {
  return reduction_->Contribute(options_.index, p, step_);
}

absl::Status DeviceLane::SliceReduced(int bucket) {
  return reduction_->SliceReduced(options_.index, bucket, step_);
}

absl::StatusOr<DeviceLane::EvaluationSums> DeviceLane::Evaluate(
    const EvaluationWhole& whole, const std::atomic<bool>& cancelled) {
  const v1::Graph& graph = options_.graphs->inference;
  const int64_t at_once = SamplesOfLargest(options_.samples.count, micro_batches());
  EvaluationSums sums;
  for (int64_t done = 0; done < options_.evaluation.count;) {
    if (cancelled) return absl::CancelledError("the job was released");
    const int64_t count = std::min(at_once, options_.evaluation.count - done);
    Executor& evaluator = count == at_once ? *evaluator_ : *rest_evaluator_;
    std::vector<absl::Span<std::byte>> rows;
    for (const v1::GraphInput& input : graph.inputs()) {
      rows.push_back(evaluator.input(input.name()));
    }
    const int64_t first = options_.evaluation.first + done;
    whole.dataset->ReadEvaluation(first, count, rows);
    RETURN_IF_ERROR(evaluator.Run({.batch = whole.dataset->evaluation_samples(),
                                   .first_position = first,
                                   .counted_targets = whole.counted_targets},
                                  /*flow=*/nullptr));
    ASSIGN_OR_RETURN(const absl::Span<const float> loss, evaluator.output(graph.loss()));
    sums.loss_share += loss.at(0);
    if (!graph.correct().empty()) {
      ASSIGN_OR_RETURN(const absl::Span<const float> correct, evaluator.output(graph.correct()));
      sums.correct += correct.at(0);
    }
    done += count;
  }
  return sums;
}

}  // namespace muster
