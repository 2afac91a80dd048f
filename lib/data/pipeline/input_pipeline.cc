#include "lib/data/pipeline/input_pipeline.h"

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "lib/data/order/sample_order.h"
#include "lib/log/log_scope.h"
#include "lib/plan/batch_order.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kCountedAtOnce = 1024;  // held-out samples read per pass
// Size of the smallest part that has a thread of its own. Starting a thread takes about 20 us;
// copying this many bytes takes about 200 us.
constexpr int64_t kPartBytesMin = int64_t{2} << 20;

bool MayNotCount(const InputUse& use) { return use.ignore_index.has_value(); }

// Adds the targets in `rows` that count to `counted`. Both are indexed by graph input.
void AddCounted(const std::vector<InputUse>& uses,
                absl::Span<const absl::Span<const std::byte>> rows, std::vector<int64_t>& counted) {
  for (size_t i = 0; i < uses.size(); ++i) {
    if (MayNotCount(uses[i])) counted[i] += CountTargets(uses[i], rows[i]);
  }
}

int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

int64_t BytesOfRows(int64_t samples, absl::Span<const int64_t> row_bytes) {
  int64_t bytes = 0;
  for (int64_t row : row_bytes) bytes += Aligned(samples * row);
  return bytes;
}

std::vector<absl::Span<std::byte>> PlaceRows(std::byte* memory, int64_t samples,
                                             absl::Span<const int64_t> row_bytes) {
  std::vector<absl::Span<std::byte>> rows;
  for (int64_t row : row_bytes) {
    rows.emplace_back(memory, static_cast<size_t>(samples * row));
    memory += Aligned(samples * row);
  }
  return rows;
}

absl::StatusOr<std::unique_ptr<InputPipeline>> InputPipeline::Create(Options options) {
  const std::vector<int64_t> row_bytes = RowBytes(*options.dataset, *options.graph);
  ASSIGN_OR_RETURN(
      Device::Memory memory,
      options.device->Allocate(
          static_cast<size_t>(options.batches * BytesOfRows(options.samples, row_bytes)),
          absl::StrCat(options.batches, " batches of ", options.samples, " samples, read ahead,")));
  std::vector<int64_t> target_bytes = row_bytes;  // 0 except for targets that may not count
  const std::vector<InputUse> uses = UsesOfInputs(*options.graph);
  for (size_t i = 0; i < uses.size(); ++i) {
    if (!MayNotCount(uses[i])) target_bytes[i] = 0;
  }
  Device::Memory whole_memory(nullptr, nullptr);
  const int64_t whole_bytes = BytesOfRows(options.order.batch_size(), target_bytes);
  if (whole_bytes > 0 && options.samples < options.order.batch_size()) {
    ASSIGN_OR_RETURN(whole_memory, options.device->Allocate(
                                       static_cast<size_t>(whole_bytes),
                                       absl::StrCat("targets of a batch of ",
                                                    options.order.batch_size(), " samples")));
  }
  auto pipeline = absl::WrapUnique(new InputPipeline(std::move(options), std::move(memory)));
  pipeline->Place(row_bytes, target_bytes, std::move(whole_memory));
  pipeline->reader_ = std::jthread([p = pipeline.get(), fields = LogScope::Current()] {
    const LogScope scope(fields);
    p->Read();
  });
  return pipeline;
}

InputPipeline::InputPipeline(Options options, Device::Memory memory)
    : options_(std::move(options)),
      row_bytes_(RowBytes(*options_.dataset, *options_.graph)),
      uses_(UsesOfInputs(*options_.graph)),
      memory_(std::move(memory)),
      buffers_(options_.batches),
      read_before_(options_.first_step),
      used_before_(options_.first_step),
      next_step_(options_.first_step) {
  CHECK_GE(options_.batches, 2);
  CHECK_GE(options_.threads, 1);
}

void InputPipeline::Place(absl::Span<const int64_t> row_bytes,
                          absl::Span<const int64_t> target_bytes, Device::Memory whole_memory) {
  const auto place = [](Buffer& buffer, std::byte* at, int64_t samples,
                        absl::Span<const int64_t> bytes) {
    buffer.rows = PlaceRows(at, samples, bytes);
    buffer.contents.assign(buffer.rows.begin(), buffer.rows.end());
  };
  std::byte* at = memory_.get();
  for (Buffer& buffer : buffers_) {
    place(buffer, at, options_.samples, row_bytes);
    at += BytesOfRows(options_.samples, row_bytes);
    if (std::ranges::any_of(uses_, MayNotCount)) buffer.counted_targets.resize(uses_.size());
  }
  whole_memory_ = std::move(whole_memory);
  if (whole_memory_ == nullptr) return;
  place(whole_targets_, whole_memory_.get(), options_.order.batch_size(), target_bytes);
}

InputPipeline::~InputPipeline() {
  absl::MutexLock lock(&mu_);
  closed_ = true;
}

absl::StatusOr<InputBatch> InputPipeline::Next() {
  absl::MutexLock lock(&mu_);
  const int64_t step = next_step_;
  used_before_ = step;
  auto read = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return read_before_ > step || !failure_.ok();
  };
  mu_.Await(absl::Condition(&read));
  if (read_before_ <= step) return failure_;
  ++next_step_;
  return BatchOf(step);
}

std::optional<InputBatch> InputPipeline::Peek() const {
  absl::MutexLock lock(&mu_);
  if (read_before_ <= next_step_) return std::nullopt;
  return BatchOf(next_step_);
}

InputBatch InputPipeline::BatchOf(int64_t step) const {
  const Buffer& buffer = buffers_[BufferOf(step)];
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
    const absl::Status read =
        ReadBatch(BatchOfStep(step, options_.left_out), buffers_[BufferOf(step)]);
    absl::MutexLock lock(&mu_);
    if (!read.ok()) {
      failure_ = read;
      return;
    }
    read_before_ = step + 1;
  }
}

absl::Status InputPipeline::ReadBatch(int64_t batch, Buffer& buffer) {
  const std::vector<SampleRef> share =
      options_.order.SamplesOfStep(batch, options_.first_position, options_.samples);
  const int64_t bytes = BytesOfRows(options_.samples, row_bytes_);
  const int64_t parts = std::clamp<int64_t>(bytes / kPartBytesMin, 1,
                                            std::min<int64_t>(options_.threads, options_.samples));
  const auto first = [&](int64_t part) { return part * options_.samples / parts; };
  std::vector<absl::Status> read(parts);
  {
    std::vector<std::jthread> others;  // joined at the end of this block, so the batch is complete
    for (int64_t part = 1; part < parts; ++part) {
      others.emplace_back([&, part] {
        read[part] =
            ReadPart(absl::MakeSpan(share).subspan(first(part), first(part + 1) - first(part)),
                     first(part), buffer);
      });
    }
    read[0] = ReadPart(absl::MakeSpan(share).first(first(1)), 0, buffer);
  }
  for (const absl::Status& status : read) RETURN_IF_ERROR(status);
  return buffer.counted_targets.empty() ? absl::OkStatus() : CountTargetsOf(batch, buffer);
}

absl::Status InputPipeline::ReadPart(absl::Span<const SampleRef> samples, int64_t first,
                                     const Buffer& buffer) const {
  const auto count = static_cast<int64_t>(samples.size());
  std::vector<absl::Span<std::byte>> rows;
  for (size_t i = 0; i < buffer.rows.size(); ++i) {
    rows.push_back(buffer.rows[i].subspan(first * row_bytes_[i], count * row_bytes_[i]));
  }
  return options_.dataset->Read(samples, rows);
}

absl::Status InputPipeline::CountTargetsOf(int64_t batch, Buffer& buffer) {
  std::ranges::fill(buffer.counted_targets, 0);
  if (options_.samples == options_.order.batch_size()) {
    AddCounted(uses_, buffer.contents, buffer.counted_targets);
    return absl::OkStatus();
  }
  const std::vector<SampleRef> whole =
      options_.order.SamplesOfStep(batch, 0, options_.order.batch_size());
  RETURN_IF_ERROR(options_.dataset->Read(whole, whole_targets_.rows));
  AddCounted(uses_, whole_targets_.contents, buffer.counted_targets);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> CountEvaluationTargets(const Dataset& dataset,
                                                            const v1::Graph& graph) {
  const std::vector<InputUse> uses = UsesOfInputs(graph);
  if (std::ranges::none_of(uses, MayNotCount)) return std::vector<int64_t>();
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
    RETURN_IF_ERROR(dataset.ReadEvaluation(first, count, rows));
    AddCounted(uses, std::vector<absl::Span<const std::byte>>(rows.begin(), rows.end()), counted);
  }
  return counted;
}

}  // namespace muster
