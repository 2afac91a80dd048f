#include "services/ps/gradient_squares.h"

#include <iterator>

#include "glog/logging.h"

namespace muster {
namespace {

constexpr size_t kTokenDoubles = GradientSquares::kTokenBytes / sizeof(double);

}  // namespace

GradientSquares::GradientSquares(const v1::JobPlan& plan)
    : parts_(plan.shards_size()), place_of_chunk_(plan.chunks_size()), step_(plan.first_step()) {
  for (const v1::PlanChunk& chunk : plan.chunks()) {
    Part& part = parts_[chunk.shard()];
    part.state = PartState::kAwaited;
    part.bytes += sizeof(double);
  }
  for (Part& part : parts_) {
    if (part.state == PartState::kNone) continue;
    ++parts_missing_;
    part.first = messages_.size();
    part.bytes += kTokenBytes;
    messages_.resize(messages_.size() + part.bytes / sizeof(double));
  }
  std::vector<size_t> next(parts_.size());
  for (int chunk = 0; chunk < plan.chunks_size(); ++chunk) {
    const int shard = plan.chunks(chunk).shard();
    place_of_chunk_[chunk] = parts_[shard].first + kTokenDoubles + next[shard]++;
  }
}

absl::Span<std::byte> GradientSquares::Place(int64_t step, int shard, uint64_t bytes) {
  if (step != step_ || shard < 0 || shard >= std::ssize(parts_)) return {};
  Part& part = parts_[shard];
  if (part.state != PartState::kAwaited || bytes != part.bytes) return {};
  part.state = PartState::kPlacing;
  return {reinterpret_cast<std::byte*>(&messages_[part.first]), part.bytes};
}

void GradientSquares::Reject(int shard) {
  CHECK(parts_[shard].state == PartState::kPlacing);
  parts_[shard].state = PartState::kAwaited;
}

bool GradientSquares::Accept(int shard) {
  CHECK(parts_[shard].state == PartState::kPlacing);
  parts_[shard].state = PartState::kIn;
  return --parts_missing_ == 0;
}

double GradientSquares::TakeTotal() {
  CHECK_EQ(parts_missing_, 0);
  double total = 0;
  for (const size_t place : place_of_chunk_) total += messages_[place];
  for (Part& part : parts_) {
    if (part.state == PartState::kNone) continue;
    part.state = PartState::kAwaited;
    ++parts_missing_;
  }
  ++step_;
  return total;
}

}  // namespace muster
