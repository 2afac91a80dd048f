#include "services/coordinator/checkpoints/shard_restore.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/types/span.h"
#include "lib/limits/limits.h"
#include "lib/plan/parameter_table.h"
#include "lib/status/status.h"
#include "lib/transport/core/crc32c.h"

namespace muster {
namespace {

constexpr int64_t kSliceElements = limits::kSliceBytesMax / sizeof(float);

std::vector<std::string> SlotsOf(const v1::JobPlan& plan) {
  std::vector<std::string> slots = OptimizerSlotNames(plan.spec().training().optimizer());
  slots.insert(slots.begin(), "");
  return slots;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShardRestore>> ShardRestore::Open(
    std::shared_ptr<const v1::JobPlan> plan, const std::string& directory, int shard) {
  auto reader = CheckpointReader::Open(directory);
  if (absl::IsNotFound(reader.status())) {  // it was there when the plan was made
    return WithReason(absl::DataLossError(reader.status().message()), "CHECKPOINT_DAMAGED");
  }
  // This process lacks descriptors, because many shards open files at once. A later attempt may
  // succeed.
  if (absl::IsResourceExhausted(reader.status())) {
    return WithReason(absl::UnavailableError(reader.status().message()), "STORAGE_FAILED");
  }
  RETURN_IF_ERROR(reader.status());
  RETURN_IF_ERROR((*reader)->CheckFits(plan->graph()));
  return std::unique_ptr<ShardRestore>(
      new ShardRestore(std::move(plan), *std::move(reader), shard));
}

ShardRestore::ShardRestore(std::shared_ptr<const v1::JobPlan> plan,
                           std::unique_ptr<const CheckpointReader> reader, int shard)
    : plan_(std::move(plan)), reader_(std::move(reader)), shard_(shard), slots_(SlotsOf(*plan_)) {
  SkipForeignChunks();
}

void ShardRestore::SkipForeignChunks() {
  while (chunk_ < plan_->chunks_size() && plan_->chunks(chunk_).shard() != shard_) ++chunk_;
  if (chunk_ < plan_->chunks_size()) slot_ = SlotsOfChunk(*plan_, plan_->chunks(chunk_)).first;
}

absl::StatusOr<std::optional<v1::ShardSlice>> ShardRestore::Next() {
  if (chunk_ == plan_->chunks_size()) return std::nullopt;
  const v1::PlanChunk& chunk = plan_->chunks(chunk_);
  const int64_t elements = std::min(kSliceElements, chunk.elements() - offset_);
  v1::ShardSlice slice;
  slice.set_chunk(chunk_);
  slice.set_slot(slot_);
  slice.set_offset_bytes(offset_ * static_cast<int64_t>(sizeof(float)));
  std::vector<float> values(elements);
  RETURN_IF_ERROR(reader_->Read(plan_->graph().parameters(chunk.parameter()).name(), slots_[slot_],
                                chunk.offset() + offset_, absl::MakeSpan(values)));
  if (!state_sent_ && reader_->manifest().update_state) {
    *slice.mutable_update_state() = *reader_->manifest().update_state;
  }
  state_sent_ = true;
  const auto bytes = std::as_bytes(std::span(values));
  slice.set_crc32c(Crc32c(bytes));
  slice.set_data(bytes.data(), bytes.size());

  offset_ += elements;
  if (offset_ == chunk.elements()) {
    offset_ = 0;
    if (++slot_ > SlotsOfChunk(*plan_, chunk).last) {
      ++chunk_;
      SkipForeignChunks();
    }
  }
  return slice;
}

}  // namespace muster
