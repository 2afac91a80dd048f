#include "services/worker/training/device_lane.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "kernels/byte_values.h"
#include "lib/collective/counted_communicator.h"
#include "lib/concurrency/short_slices.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/data/pipeline/evaluation_stream.h"
#include "lib/data/pipeline/row_layout.h"
#include "lib/engine/backends/backends.h"
#include "lib/status/status.h"

namespace muster {

absl::StatusOr<std::unique_ptr<DeviceLane>> DeviceLane::Create(Options options) {
  auto lane = std::unique_ptr<DeviceLane>(new DeviceLane(std::move(options)));
  ASSIGN_OR_RETURN(lane->device_, CreateDevice(lane->options_.device, lane->options_.threads));
  if (lane->options_.place_nearby) {
    const absl::Status placed = lane->device_->PlaceNearby();
    LOG_IF(WARNING, !placed.ok()) << lane->device_->name()
                                  << ": cannot do all of --place_gpus: " << placed.message();
  }
  // The thread that drives a GPU only waits for values and launches kernels. Short time slices let
  // it run soon after it wakes up.
  if (!lane->device_->is_cpu()) AskForShortSlices();
  return lane;
}

absl::Status DeviceLane::Allocate(const v1::Graph& graph, const GradientLayout& layout) {
  ASSIGN_OR_RETURN(gradients_, TensorSlab::Create(*device_, graph, layout));
  return absl::OkStatus();
}

absl::Status DeviceLane::JoinPeers(NcclGroup& group, const GradientLayout& layout,
                                   float* parameters, Metrics& metrics) {
  RETURN_IF_ERROR(device_->Use());
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> joined, group.Join(options_.index));
  communicator_ =
      std::make_unique<CountedCommunicator>(std::move(joined), CollectiveLibrary::kNccl, metrics);
  peers_ = {.communicator = communicator_.get(),
            .layout = &layout,
            .parameters = parameters,
            .gradients = gradients_->base()};
  return absl::OkStatus();
}

// Destroys the executors first, because they may still use the rows and options replaced below.
void DeviceLane::Reshare(Options options) {
  for (auto* executor : {&rest_evaluator_, &evaluator_, &rest_trainer_, &trainer_}) {
    executor->reset();
  }
  evaluation_rows_.reset();
  given_ = {};
  options_ = std::move(options);
}

int64_t DeviceLane::samples_at_once() const {
  return std::ranges::max(options_.runs, {}, &SampleRange::count).count;
}

Executor& DeviceLane::TrainerOf(int run) {
  return options_.runs[run].count < samples_at_once() ? *rest_trainer_ : *trainer_;
}

int64_t DeviceLane::evaluation_bytes() const {
  const int64_t at_once = std::min(options_.evaluation_at_once, options_.evaluation.count);
  return EvaluationStream::kBatches * BytesOfRows(at_once, row_bytes_);
}

// All ranks of a replica compute the gradients of whole parameters, to the same bits. The first
// rank exports them.
std::vector<float*> DeviceLane::ExportedGradients() const {
  std::vector<float*> gradients = gradients_->pointers();
  const std::vector<ParameterSlice>& slices = options_.graphs->slices;
  if (options_.rank == 0 || slices.empty()) return gradients;
  for (size_t p = 0; p < gradients.size(); ++p) {
    const bool is_whole = slices[p].elements() == std::ssize(gradients_->tensors()[p]);
    if (is_whole) gradients[p] = nullptr;
  }
  return gradients;
}

absl::Status DeviceLane::Build(absl::Span<float* const> parameters,
                               const std::vector<bool>& narrow_parameters) {
  const auto make = [&](const v1::Graph& graph, int64_t samples,
                        absl::Span<float* const> gradients) {
    return MakeExecutor(graph, samples, parameters, narrow_parameters, gradients);
  };
  const LaneGraphs& graphs = *options_.graphs;
  const std::vector<float*> gradients = ExportedGradients();
  const int64_t samples = samples_at_once(), evaluated = options_.evaluation_at_once;
  if (options_.evaluation.count > 0) {
    const int64_t at_once = std::min(evaluated, options_.evaluation.count);
    ASSIGN_OR_RETURN(evaluation_rows_,
                     device_->Allocate(static_cast<size_t>(evaluation_bytes()),
                                       absl::StrCat(EvaluationStream::kBatches, " batches of ",
                                                    at_once, " held-out samples")));
  }
  ASSIGN_OR_RETURN(trainer_, make(graphs.training, samples, gradients));
  const int64_t smallest = std::ranges::min(options_.runs, {}, &SampleRange::count).count;
  CHECK(smallest >= samples - 1) << smallest << ", " << samples;
  if (smallest < samples) {
    ASSIGN_OR_RETURN(rest_trainer_, make(graphs.training, smallest, gradients));
  }
  if (options_.evaluation.count == 0) return absl::OkStatus();
  if (options_.evaluation.count >= evaluated) {
    ASSIGN_OR_RETURN(evaluator_, make(graphs.inference, evaluated, {}));
  }
  if (const int64_t rest = options_.evaluation.count % evaluated; rest > 0) {
    ASSIGN_OR_RETURN(rest_evaluator_, make(graphs.inference, rest, {}));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Executor>> DeviceLane::MakeExecutor(
    const v1::Graph& graph, int64_t samples, absl::Span<float* const> parameters,
    const std::vector<bool>& narrow_parameters, absl::Span<float* const> gradients) {
  const v1::TrainingSpec& training = options_.training;
  std::vector<absl::Span<const kernels::ByteValues>> row_values;
  for (int i = 0; i < graph.inputs_size(); ++i) {
    row_values.push_back(options_.dataset->row_values(i));
  }
  return CreateExecutor(
      graph, {.batch = samples,
              .device = device_.get(),
              .parameters = parameters,
              .narrow_parameters = narrow_parameters,
              .gradients = gradients,
              .slices = options_.graphs->slices,
              .row_values = row_values,
              .micro_batches = !gradients.empty() && runs() > 1 && !options_.contributes_each_run,
              .tf32 = training.precision() == v1::TF32,
              .deterministic = !training.has_deterministic() || training.deterministic(),
              .peers = peers_ ? &*peers_ : nullptr,
              .synchronised_devices = options_.replicas});
}

void DeviceLane::Connect(GradientExchange* exchange, GradientReduction* reduction) {
  exchange_ = exchange;
  reduction_ = reduction;
  given_ = {};  // the same step of another generation may have another batch
}

absl::Status DeviceLane::GiveRows(const InputBatch& batch, int run) {
  const auto [first, count] = options_.runs[run];
  std::vector<absl::Span<const std::byte>> rows;
  for (size_t i = 0; i < row_bytes_.size(); ++i) {
    rows.push_back(batch.rows[i].subspan(first * row_bytes_[i], count * row_bytes_[i]));
  }
  RETURN_IF_ERROR(TrainerOf(run).TakeRows(rows));
  given_ = {batch.step, run};
  return absl::OkStatus();
}

absl::Status DeviceLane::RowsMayCome() {
  if (run_ + 1 < runs()) return GiveRows(*batch_, run_ + 1);
  const std::optional<InputBatch> next = input_->Peek();
  return next ? GiveRows(*next, 0) : absl::OkStatus();
}

absl::StatusOr<DeviceLane::StepResult> DeviceLane::Step(const InputBatch& batch,
                                                        const InputPipeline& input) {
  const v1::Graph& graph = options_.graphs->training;
  const bool contributes_each = options_.contributes_each_run;
  step_ = batch.step;
  batch_ = &batch;
  input_ = &input;
  wait_ = absl::ZeroDuration();
  const absl::Duration start = SteadyNow();
  last_asked_ = start;
  waited_before_ = absl::ZeroDuration();
  StepResult result;
  const bool traced = tracing();
  const int64_t begin = traced ? Trace::Now() : 0;
  forward_end_ = 0;
  if (ranks_ != nullptr) ranks_->TakeTime();
  ASSIGN_OR_RETURN(result.loss_scale, AwaitLossScale(batch.step));
  for (run_ = 0; run_ < runs(); ++run_) {
    // All values arrive during the first run and gradients leave during the last one. In between
    // only this check notices that the generation was halted.
    if (run_ > 0 && exchange_->failed()) {
      absl::Status why = exchange_->AwaitParameter(0, step_);
      // Peers may already wait for a collective operation that this device will not start.
      if (communicator_ != nullptr) communicator_->Leave(absl::AbortedError(why.message()));
      return why;
    }
    Executor& trainer = TrainerOf(run_);
    if (given_ != Run{batch.step, run_}) RETURN_IF_ERROR(GiveRows(batch, run_));
    RETURN_IF_ERROR(
        trainer.Run({.loss_scale = result.loss_scale > 0 ? result.loss_scale : 1,
                     .batch = options_.batch_size,
                     .first_position = options_.first_position + options_.runs[run_].first,
                     .counted_targets = batch.counted_targets,
                     .seed = options_.training.seed(),
                     .step = batch.step,
                     .is_first_micro_batch = contributes_each || run_ == 0,
                     .is_last_micro_batch = contributes_each || run_ == runs() - 1,
                     .communicator = norms_ != nullptr ? norms_.get() : communicator_.get(),
                     .tensor_parallel = ranks_.get()},
                    this));
    ASSIGN_OR_RETURN(const absl::Span<const float> loss, trainer.output(graph.loss()));
    result.loss_share += loss.at(0);
    // Other devices may still read this run's gradients, which the next one overwrites.
    if (contributes_each && run_ < runs() - 1) {
      RETURN_IF_ERROR(reduction_->AwaitAnnounced(round()));
    }
  }
  result.wait = wait_;
  if (ranks_ != nullptr) result.tensor_parallel = ranks_->TakeTime();
  if (device_->is_cpu() && runs() == 1) result.forward = last_asked_ - start - waited_before_;
  if (traced) TraceStep(begin);
  return result;
}

// The trace ends forward when the last parameter arrives. The rest of forward, which is the head
// and the loss, counts as backward.
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
  return reduction_->Contribute(options_.replica, p, round());
}

absl::Status DeviceLane::SliceReduced(int bucket) {
  return reduction_->SliceReduced(options_.index, bucket, round());
}

absl::StatusOr<DeviceLane::EvaluationSums> DeviceLane::Evaluate(
    absl::Span<const int64_t> counted_targets, DecodePool& readers,
    const std::atomic<bool>& cancelled) {
  const v1::Graph& graph = options_.graphs->inference;
  const int64_t at_once = options_.evaluation_at_once;
  EvaluationSums sums;
  if (options_.evaluation.count == 0) return sums;
  EvaluationStream stream({.dataset = options_.dataset,
                           .pool = &readers,
                           .cancelled = &cancelled,
                           .memory = evaluation_rows_.get(),
                           .row_bytes = row_bytes_,
                           .first = options_.evaluation.first,
                           .count = options_.evaluation.count,
                           .at_once = std::min(at_once, options_.evaluation.count)});
  for (int64_t done = 0; done < options_.evaluation.count;) {
    if (cancelled) return absl::CancelledError("the job was released");
    const int64_t count = std::min(at_once, options_.evaluation.count - done);
    Executor& evaluator = count == at_once ? *evaluator_ : *rest_evaluator_;
    ASSIGN_OR_RETURN(const auto rows, stream.Next());
    RETURN_IF_ERROR(evaluator.TakeRows(rows));
    RETURN_IF_ERROR(evaluator.Run({.batch = options_.dataset->evaluation_samples(),
                                   .first_position = options_.evaluation.first + done,
                                   .counted_targets = counted_targets,
                                   .tensor_parallel = ranks_.get()},
                                  /*flow=*/nullptr));
    ASSIGN_OR_RETURN(const absl::Span<const float> loss, evaluator.output(graph.loss()));
    sums.loss_share += loss.at(0);
    if (!graph.correct().empty()) {
      ASSIGN_OR_RETURN(const absl::Span<const float> correct, evaluator.output(graph.correct()));
      sums.correct += correct.at(0);
    }
    done += count;
  }
  sums.samples = options_.evaluation.count;
  return sums;
}

}  // namespace muster
