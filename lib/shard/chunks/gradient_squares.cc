#include "lib/shard/chunks/gradient_squares.h"

#include "glog/logging.h"
#include "lib/plan/parameter_group.h"
#include "lib/plan/parameter_table.h"

namespace muster {

NumberedVector<TrainedChunk, ChunkId> GradientSquares::ChunksWithGradients(const v1::JobPlan& plan,
                                                                           ShardIndex shard) {
  NumberedVector<TrainedChunk, ChunkId> chunks;
  for (const ChunkId id : ChunksOfShard(plan, shard)) {
    const v1::Parameter& parameter = plan.graph().parameters(plan.chunks(ToInt(id)).parameter());
    if (!TreatmentOf(plan.spec().training(), parameter).frozen) chunks.emplace_back(id);
  }
  return chunks;
}

GradientSquares::GradientSquares(const v1::JobPlan& plan, int sums_per_chunk)
    : parts_(plan.shards_size()), place_of_chunk_(plan.chunks_size(), kNowhere) {
  for (const ShardIndex shard : parts_.numbers()) {
    const NumberedVector<TrainedChunk, ChunkId> chunks = ChunksWithGradients(plan, shard);
    if (chunks.empty()) continue;
    const size_t first = messages_.size();
    messages_.resize(first + chunks.size() * sums_per_chunk);
    parts_[shard] = {PartState::kIn, first, (messages_.size() - first) * sizeof(double)};
    for (const TrainedChunk chunk : chunks.numbers()) {
      place_of_chunk_[chunks[chunk]] = first + ToInt(chunk) * sums_per_chunk;
    }
  }
}

void GradientSquares::Await(int64_t step) {
  CHECK(complete());
  for (Part& part : parts_) {
    if (part.state == PartState::kNone) continue;
    part.state = PartState::kAwaited;
    ++parts_missing_;
  }
  step_ = step;
}

NumberedVector<ShardIndex, absl::Span<std::byte>> GradientSquares::places() {
  NumberedVector<ShardIndex, absl::Span<std::byte>> places(parts_.size());
  for (const ShardIndex shard : parts_.numbers()) {
    const Part& part = parts_[shard];
    if (part.state == PartState::kNone) continue;
    places[shard] = {reinterpret_cast<std::byte*>(&messages_[part.first]), part.bytes};
  }
  return places;
}

bool GradientSquares::Wants(int64_t step, ShardIndex shard) const {
  return step == step_ && parts_.Has(shard) && parts_[shard].state == PartState::kAwaited;
}

bool GradientSquares::Accept(ShardIndex shard) {
  CHECK(parts_[shard].state == PartState::kAwaited);
  parts_[shard].state = PartState::kIn;
  return --parts_missing_ == 0;
}

double GradientSquares::Sum(ChunkId chunk, int which) const {
  CHECK(complete());
  const size_t place = place_of_chunk_[chunk];
  return place == kNowhere ? 0 : messages_[place + which];
}

double GradientSquares::Total(int which) const {
  double total = 0;
  for (const ChunkId chunk : place_of_chunk_.numbers()) total += Sum(chunk, which);
  return total;
}

}  // namespace muster
