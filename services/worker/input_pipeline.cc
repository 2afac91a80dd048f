#include "services/worker/input_pipeline.h"

#include <algorithm>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "lib/data/sample_order.h"
#include "lib/engine/host_memory.h"
#include "lib/plan/batch_order.h"

namespace muster {
namespace {

constexpr int64_t kCountedAtOnce = 1024;  // held-out samples

bool MayNotCount(const InputUse& use) { return use.ignore_index.has_value(); }

// Adds those among `rows` to `counted`, both by graph input.
void AddCounted(const std::vector<InputUse>& uses,
                absl::Span<const absl::Span<const std::byte>> rows, std::vector<int64_t>& counted) {
  for (size_t i = 0; i < uses.size(); ++i) {
    if (MayNotCount(uses[i])) counted[i] += CountTargets(uses[i], rows[i]);
  }
}

// Rows of `samples` samples for the inputs that are `wanted`, none for the others.
template <typename Buffer>
void Allocate(const v1::Graph& graph, int64_t samples, absl::FunctionRef<bool(int)> wanted,
              Buffer& buffer) {
  for (int i = 0; i < graph.inputs_size(); ++i) {
    auto& memory = buffer.memory.emplace_back(wanted(i) ? samples * RowBytes(graph.inputs(i)) : 0);
    buffer.rows.push_back(absl::MakeSpan(memory));
    buffer.contents.push_back(memory);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<InputPipeline>> InputPipeline::Create(Options options) {
  int64_t bytes = 0;
  for (const v1::GraphInput& input : options.graph->inputs()) {
    bytes += options.batches * options.samples * RowBytes(input);
  }
  const int64_t available = AvailableHostBytes();
  if (bytes <= available) return std::make_unique<InputPipeline>(std::move(options));
  return MemoryExhausted(
      absl::StrCat(options.batches, " batches of ", options.samples, " samples, read ahead,"),
      bytes, "the machine's memory", available);
}

InputPipeline::InputPipeline(Options options)
    : options_(std::move(options)),
      uses_(UsesOfInputs(*options_.graph)),
      buffers_(options_.batches),
      read_before_(options_.first_step),
      used_before_(options_.first_step),
      next_step_(options_.first_step) {
  CHECK_GE(options_.batches, 2);
  const bool some_may_not_count = std::ranges::any_of(uses_, MayNotCount);
  for (Buffer& buffer : buffers_) {
    Allocate(
        *options_.graph, options_.samples, [](int) { return true; }, buffer);
    if (some_may_not_count) buffer.counted_targets.resize(uses_.size());
  }
  if (some_may_not_count && options_.samples < options_.batch_size) {
    Allocate(
        *options_.graph, options_.batch_size, [this](int i) { return MayNotCount(uses_[i]); },
        whole_targets_);
  }
  reader_ = std::jthread([this] { Read(); });
}

InputPipeline::~InputPipeline() {
  absl::MutexLock lock(&mu_);
  closed_ = true;
}

InputBatch InputPipeline::Next() {
  const int64_t step = next_step_++;
  absl::MutexLock lock(&mu_);
  used_before_ = step;
  auto read = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return read_before_ > step; };
  mu_.Await(absl::Condition(&read));
  const Buffer& buffer = BufferOf(step);
  return {step, buffer.contents, buffer.counted_targets};
}

void InputPipeline::Read() {
  for (int64_t step = options_.first_step;; ++step) {
    {
      absl::MutexLock lock(&mu_);
      auto room = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return closed_ || step < used_before_ + options_.batches;
      };
      mu_.Await(absl::Condition(&room));
      if (closed_) return;
    }
    ReadBatch(BatchOfStep(step, options_.left_out), BufferOf(step));
    absl::MutexLock lock(&mu_);
    read_before_ = step + 1;
  }
}

void InputPipeline::ReadBatch(int64_t batch, Buffer& buffer) {
  const BatchShare share =
      SamplesOfStep(options_.seed, options_.dataset->samples(), options_.batch_size, batch,
                    options_.first_position, options_.samples);
  options_.dataset->Read(share.epoch, share.samples, buffer.rows);
  if (!buffer.counted_targets.empty()) CountTargetsOf(batch, buffer);
}

void InputPipeline::CountTargetsOf(int64_t batch, Buffer& buffer) {
  std::ranges::fill(buffer.counted_targets, 0);
  if (options_.samples == options_.batch_size) {
    return AddCounted(uses_, buffer.contents, buffer.counted_targets);
  }
  const BatchShare whole = SamplesOfStep(options_.seed, options_.dataset->samples(),
                                         options_.batch_size, batch, 0, options_.batch_size);
  options_.dataset->Read(whole.epoch, whole.samples, whole_targets_.rows);
  AddCounted(uses_, whole_targets_.contents, buffer.counted_targets);
}

std::vector<int64_t> CountEvaluationTargets(const Dataset& dataset, const v1::Graph& graph) {
  const std::vector<InputUse> uses = UsesOfInputs(graph);
  if (std::ranges::none_of(uses, MayNotCount)) return {};
  std::vector<int64_t> counted(uses.size());
  std::vector<std::vector<std::byte>> memory(uses.size());
  for (int64_t first = 0; first < dataset.evaluation_samples(); first += kCountedAtOnce) {
    const int64_t count = std::min(kCountedAtOnce, dataset.evaluation_samples() - first);
    std::vector<absl::Span<std::byte>> rows(uses.size());
    for (size_t i = 0; i < uses.size(); ++i) {
      if (!MayNotCount(uses[i])) continue;
      memory[i].resize(count * RowBytes(graph.inputs(static_cast<int>(i))));
      rows[i] = absl::MakeSpan(memory[i]);
    }
    dataset.ReadEvaluation(first, count, rows);
    AddCounted(uses, std::vector<absl::Span<const std::byte>>(rows.begin(), rows.end()), counted);
  }
  return counted;
}

}  // namespace muster
