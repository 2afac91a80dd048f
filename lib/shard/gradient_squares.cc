#include "lib/shard/gradient_squares.h"

#include <iterator>

#include "glog/logging.h"
#include "lib/plan/parameter_group.h"

namespace muster {

std::vector<int> GradientSquares::ChunksWithGradients(const v1::JobPlan& plan, int shard) {
  std::vector<int> chunks;
  for (int id = 0; id < plan.chunks_size(); ++id) {
    const v1::PlanChunk& chunk = plan.chunks(id);
    if (chunk.shard() != shard) continue;
    const v1::Parameter& parameter = plan.graph().parameters(chunk.parameter());
    if (!TreatmentOf(plan.spec().training(), parameter).frozen) chunks.push_back(id);
  }
  return chunks;
}

GradientSquares::GradientSquares(const v1::JobPlan& plan, int sums_per_chunk)
    : parts_(plan.shards_size()), place_of_chunk_(plan.chunks_size(), kNowhere) {
  for (int shard = 0; shard < plan.shards_size(); ++shard) {
    const std::vector<int> chunks = ChunksWithGradients(plan, shard);
    if (chunks.empty()) continue;
    const size_t first = messages_.size();
    messages_.resize(first + chunks.size() * sums_per_chunk);
    parts_[shard] = {PartState::kIn, first, (messages_.size() - first) * sizeof(double)};
    for (size_t i = 0; i < chunks.size(); ++i) {
      place_of_chunk_[chunks[i]] = first + i * sums_per_chunk;
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

std::vector<absl::Span<std::byte>> GradientSquares::places() {
  std::vector<absl::Span<std::byte>> places(parts_.size());
  for (size_t shard = 0; shard < parts_.size(); ++shard) {
    const Part& part = parts_[shard];
    if (part.state == PartState::kNone) continue;
    places[shard] = {reinterpret_cast<std::byte*>(&messages_[part.first]), part.bytes};
  }
  return places;
}

bool GradientSquares::Wants(int64_t step, int shard) const {
  return step == step_ && shard >= 0 && shard < std::ssize(parts_) &&
         parts_[shard].state == PartState::kAwaited;
}

bool GradientSquares::Accept(int shard) {
  CHECK(parts_[shard].state == PartState::kAwaited);
  parts_[shard].state = PartState::kIn;
  return --parts_missing_ == 0;
}

double GradientSquares::Sum(int chunk, int which) const {
  CHECK(complete());
  const size_t place = place_of_chunk_[chunk];
  return place == kNowhere ? 0 : messages_[place + which];
}

double GradientSquares::Total(int which) const {
  double total = 0;
  for (size_t chunk = 0; chunk < place_of_chunk_.size(); ++chunk) {
    total += Sum(static_cast<int>(chunk), which);
  }
  return total;
}

}  // namespace muster
