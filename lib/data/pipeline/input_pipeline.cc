#include "lib/data/pipeline/input_pipeline.h"

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "lib/data/order/sample_order.h"
#include "lib/data/pipeline/row_layout.h"
#include "lib/data/stage_times.h"
#include "lib/plan/batch_order.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int64_t kCountedAtOnce = 1024;  // samples whose targets a part counts

// The ids of batches in a trace, apart from those of the chunks that a worker sends.
constexpr int64_t kFirstTraceId = int64_t{1} << 62;

bool MayNotCount(const InputUse& use) { return use.ignore_index.has_value(); }

// Adds the targets in `rows` that count to `counted`. Both are indexed by graph input.
void AddCounted(const std::vector<InputUse>& uses,
                absl::Span<const absl::Span<const std::byte>> rows, std::vector<int64_t>& counted) {
  for (size_t i = 0; i < uses.size(); ++i) {
    if (MayNotCount(uses[i])) counted[i] += CountTargets(uses[i], rows[i]);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<InputPipeline>> InputPipeline::Create(Options options) {
  const std::vector<int64_t> row_bytes = RowBytes(*options.dataset, *options.graph);
  ASSIGN_OR_RETURN(
      Device::Memory memory,
      options.device->Allocate(
          static_cast<size_t>(options.batches * BytesOfRows(options.samples, row_bytes)),
          absl::StrCat(options.batches, " batches of ", options.samples, " samples, read ahead,")));
  return absl::WrapUnique(new InputPipeline(std::move(options), std::move(memory)));
}

InputPipeline::InputPipeline(Options options, Device::Memory memory)
    : options_(std::move(options)),
      row_bytes_(RowBytes(*options_.dataset, *options_.graph)),
      uses_(UsesOfInputs(*options_.graph)),
      counts_(std::ranges::any_of(uses_, MayNotCount)),
      run_(RowsOfRun(*options_.dataset, row_bytes_)),
      parts_(CeilDiv(options_.samples, run_)),
      memory_(std::move(memory)),
      buffers_(PlaceBuffers()),
      pool_(options_.threads, options_.nice),
      ring_({.pool = &pool_,
             .slots = options_.batches,
             .first = options_.first_step,
             .begin = [this](int64_t step) { return Begin(step); },
             .read = [this](int64_t step, int64_t part) { return ReadPart(step, part); },
             .ended = [this](int64_t step) { TraceEnd(step); }}) {
  CHECK_GE(options_.batches, 2);
}

std::vector<InputPipeline::Buffer> InputPipeline::PlaceBuffers() const {
  std::vector<Buffer> buffers(options_.batches);
  std::byte* at = memory_.get();
  for (Buffer& buffer : buffers) {
    buffer.rows = PlaceRows(at, options_.samples, row_bytes_);
    buffer.contents.assign(buffer.rows.begin(), buffer.rows.end());
    if (counts_) buffer.counted_targets.resize(uses_.size());
    at += BytesOfRows(options_.samples, row_bytes_);
  }
  return buffers;
}

absl::StatusOr<InputBatch> InputPipeline::Next() {
  RETURN_IF_ERROR(ring_.Next());
  return BatchOf(ring_.next() - 1);
}

std::optional<InputBatch> InputPipeline::Peek() const {
  if (!ring_.is_read()) return std::nullopt;
  return BatchOf(ring_.next());
}

v1::InputTiming InputPipeline::timing() const {
  const DecodePool::Usage usage = pool_.usage();
  const auto seconds = [&](InputStage stage) {
    return 1e-9 * static_cast<double>(usage.times.nanoseconds[static_cast<int>(stage)]);
  };
  v1::InputTiming timing;
  timing.set_samples(usage.times.samples);
  timing.set_open_seconds(seconds(InputStage::kOpen));
  timing.set_read_seconds(seconds(InputStage::kRead));
  timing.set_decode_seconds(seconds(InputStage::kDecode));
  timing.set_resample_seconds(seconds(InputStage::kResample));
  timing.set_augment_seconds(seconds(InputStage::kAugment));
  // A thread has nothing to read if every batch is ready or is being read.
  timing.set_room_seconds(absl::ToDoubleSeconds(usage.idle));
  timing.set_threads(pool_.threads());
  timing.set_read_bytes(usage.times.read_bytes);
  return timing;
}

// No thread changes the counts of a batch that is read.
InputBatch InputPipeline::BatchOf(int64_t step) const {
  const Buffer& buffer = buffers_[step % buffers_.size()];
  return {step, buffer.contents, buffer.counted_targets};
}

void InputPipeline::TraceEnd(int64_t step) {
  Trace* const trace = options_.trace;
  if (trace == nullptr || !trace->on()) return;
  trace->End(options_.track, "read batch", kFirstTraceId + step, {{{"step", step}}});
}

int64_t InputPipeline::Begin(int64_t step) {
  if (Trace* const trace = options_.trace; trace != nullptr && trace->on()) {
    trace->Begin(options_.track, "read batch", kFirstTraceId + step, {{{"step", step}}});
  }
  absl::MutexLock lock(&mu_);
  std::ranges::fill(BufferOf(step).counted_targets, 0);
  const int64_t others = counts_ ? options_.order.batch_size() - options_.samples : 0;
  return parts_ + CeilDiv(others, kCountedAtOnce);
}

absl::Status InputPipeline::ReadPart(int64_t step, int64_t part) {
  if (options_.cancelled != nullptr && *options_.cancelled) {
    return absl::CancelledError("the job was released");
  }
  const int64_t batch = BatchOfStep(step, options_.left_out);
  Buffer& buffer = BufferOf(step);
  if (part < parts_) {
    const int64_t first = part * run_;
    return ReadRows(batch, first, std::min(run_, options_.samples - first), buffer);
  }
  const int64_t first = (part - parts_) * kCountedAtOnce;
  const int64_t others = options_.order.batch_size() - options_.samples;
  return CountOthers(batch, first, std::min(kCountedAtOnce, others - first), buffer);
}

absl::Status InputPipeline::ReadRows(int64_t batch, int64_t first, int64_t count, Buffer& buffer) {
  const std::vector<SampleRef> samples =
      options_.order.SamplesOfStep(batch, options_.first_position + first, count);
  const std::vector<absl::Span<std::byte>> rows = SubRows(buffer.rows, row_bytes_, first, count);
  AskAhead(batch, first, count);
  RETURN_IF_ERROR(options_.dataset->ReadInOrder(batch, samples, rows));
  CountReadSamples(count);
  if (!counts_) return absl::OkStatus();
  std::vector<int64_t> counted(uses_.size());
  AddCounted(uses_, std::vector<absl::Span<const std::byte>>(rows.begin(), rows.end()), counted);
  AddTo(buffer, counted);
  return absl::OkStatus();
}

// Asks the storage for the next window of a block shuffle while this one is decoded. One sample of
// each run finds the blocks of that window, because they have many more samples than a run.
void InputPipeline::AskAhead(int64_t batch, int64_t first, int64_t count) const {
  const int64_t steps = options_.order.window_steps();
  if (steps == 0) return;
  const int64_t position = options_.first_position + first + batch % count;
  const int64_t later = batch + steps;
  options_.dataset->WillRead(later, options_.order.SamplesOfStep(later, position, 1));
}

// Counts the targets at `count` positions of the other shares, which have the numbers from 0 on.
absl::Status InputPipeline::CountOthers(int64_t batch, int64_t first, int64_t count,
                                        Buffer& buffer) {
  const auto samples_at = [&](int64_t position, int64_t positions) {
    return options_.order.SamplesOfStep(batch, position, positions);
  };
  const int64_t before = std::clamp<int64_t>(options_.first_position - first, 0, count);
  std::vector<SampleRef> samples = samples_at(first, before);
  const std::vector<SampleRef> behind =
      samples_at(first + before + options_.samples, count - before);
  samples.insert(samples.end(), behind.begin(), behind.end());

  std::vector<int64_t> counted(uses_.size());
  for (size_t i = 0; i < uses_.size(); ++i) {
    if (!MayNotCount(uses_[i])) continue;
    ASSIGN_OR_RETURN(
        counted[i],
        options_.dataset->CountTargets(
            {.graph = options_.graph, .input = static_cast<int>(i), .use = uses_[i]}, samples));
  }
  AddTo(buffer, counted);
  return absl::OkStatus();
}

void InputPipeline::AddTo(Buffer& buffer, absl::Span<const int64_t> counted) {
  absl::MutexLock lock(&mu_);
  for (size_t i = 0; i < counted.size(); ++i) buffer.counted_targets[i] += counted[i];
}

absl::StatusOr<std::vector<int64_t>> CountEvaluationTargets(const Dataset& dataset,
                                                            const v1::Graph& graph) {
  const std::vector<InputUse> uses = UsesOfInputs(graph);
  if (std::ranges::none_of(uses, MayNotCount)) return std::vector<int64_t>();
  std::vector<int64_t> counted(uses.size());
  for (size_t i = 0; i < uses.size(); ++i) {
    if (!MayNotCount(uses[i])) continue;
    ASSIGN_OR_RETURN(counted[i],
                     dataset.CountEvaluationTargets(
                         {.graph = &graph, .input = static_cast<int>(i), .use = uses[i]},
                         /*first=*/0, dataset.evaluation_samples()));
  }
  return counted;
}

}  // namespace muster
