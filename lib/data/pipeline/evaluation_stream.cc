#include "lib/data/pipeline/evaluation_stream.h"

#include <algorithm>
#include <utility>

#include "lib/data/pipeline/row_layout.h"
#include "lib/data/stage_times.h"
#include "lib/status/status.h"

namespace muster {

EvaluationStream::EvaluationStream(Options options)
    : options_(std::move(options)),
      run_(RowsOfRun(*options_.dataset, options_.row_bytes)),
      buffers_(kBatches),
      ring_({.pool = options_.pool,
             .slots = kBatches,
             .first = 0,
             .end = CeilDiv(options_.count, options_.at_once),
             .begin = [this](int64_t batch) { return Begin(batch); },
             .read = [this](int64_t batch, int64_t part) { return ReadPart(batch, part); }}) {}

absl::StatusOr<absl::Span<const absl::Span<const std::byte>>> EvaluationStream::Next() {
  RETURN_IF_ERROR(ring_.Next());
  return absl::MakeConstSpan(buffers_[(ring_.next() - 1) % kBatches].contents);
}

int64_t EvaluationStream::SamplesOf(int64_t batch) const {
  return std::min(options_.at_once, options_.count - batch * options_.at_once);
}

int64_t EvaluationStream::Begin(int64_t batch) {
  Buffer& buffer = buffers_[batch % kBatches];
  std::byte* const memory =
      options_.memory + batch % kBatches * BytesOfRows(options_.at_once, options_.row_bytes);
  buffer.rows = PlaceRows(memory, SamplesOf(batch), options_.row_bytes);
  buffer.contents.assign(buffer.rows.begin(), buffer.rows.end());
  return CeilDiv(SamplesOf(batch), run_);
}

absl::Status EvaluationStream::ReadPart(int64_t batch, int64_t part) {
  if (*options_.cancelled) return absl::CancelledError("the job was released");
  const int64_t first = part * run_;
  const int64_t count = std::min(run_, SamplesOf(batch) - first);
  RETURN_IF_ERROR(options_.dataset->ReadEvaluation(
      options_.first + batch * options_.at_once + first, count,
      SubRows(buffers_[batch % kBatches].rows, options_.row_bytes, first, count)));
  CountReadSamples(count);
  return absl::OkStatus();
}

}  // namespace muster
