#include "lib/shard/agreement/closing_exchange.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lib/shard/chunks/gradient_squares.h"
#include "lib/shard/gate/rank_set.h"

namespace muster {
namespace {

absl::Span<const std::byte> BytesOf(const std::vector<uint64_t>& ranks) {
  return {reinterpret_cast<const std::byte*>(ranks.data()), ranks.size() * sizeof(uint64_t)};
}

// Returns for each shard whether gradients are pushed to it.
NumberedVector<ShardIndex, bool> ShardsWithGradients(const v1::JobPlan& plan) {
  NumberedVector<ShardIndex, bool> shards;
  for (const ShardIndex shard : NumbersBelow<ShardIndex>(plan.shards_size())) {
    shards.emplace_back(!GradientSquares::ChunksWithGradients(plan, shard).empty());
  }
  return shards;
}

}  // namespace

ClosingExchange::ClosingExchange(const v1::JobPlan& plan, ShardIndex shard, BackupGate* gate,
                                 ShardAssembly::Send send, std::function<void()> closed)
    : shard_(shard),
      gate_(gate),
      closed_(std::move(closed)),
      has_gradients_(!GradientSquares::ChunksWithGradients(plan, shard).empty()),
      arrived_(RankSet::WordsFor(plan.workers_size())),
      set_(arrived_.size()) {
  ShardAssembly::Options options{.report = MessageKind::kArrived,
                                 .decision = MessageKind::kClosed,
                                 .send = std::move(send),
                                 .arrived =
                                     [this](ShardIndex from, int64_t step) {
                                       closing_->Accept(from, step);
                                       CloseIfPossible();
                                     },
                                 .reported = [this] { TellArrived(); },
                                 .told = [this] { CloseIfPossible(); }};
  if (shard == kFirstShard) {
    closing_ = std::make_unique<StepClosing>(plan, ShardsWithGradients(plan));
    options.places = closing_->places();
  }
  assembly_ = std::make_unique<ShardAssembly>(plan, shard, std::move(options));
}

void ClosingExchange::TellArrived() {
  // Reports only news: a new step with arrived ranks, or more ranks of the same step.
  if (assembly_->reporting() || gate_->closed()) return;
  const absl::Span<const uint64_t> arrived = gate_->arrived();
  const bool step_is_new = arrived_step_ != gate_->open_step();
  if (step_is_new ? RankSet(arrived).size() == 0 : arrived == absl::MakeSpan(arrived_)) return;
  arrived_step_ = gate_->open_step();
  std::copy(arrived.begin(), arrived.end(), arrived_.begin());
  assembly_->Report(arrived_step_, BytesOf(arrived_));
}

absl::Span<std::byte> ClosingExchange::Place(const WireHeader& header) {
  if (closing_ == nullptr || !closing_->Wants(header.step)) return {};
  return assembly_->Place(ShardIndex(header.rank), header.length);
}

void ClosingExchange::Arrived(const WireHeader& header) {
  assembly_->Arrived(ShardIndex(header.rank), header.step);
}

void ClosingExchange::Lost(const WireHeader& header) { assembly_->Lost(ShardIndex(header.rank)); }

void ClosingExchange::CloseIfPossible() {
  if (retired_ || assembly_->telling() || !closing_->can_close()) return;
  const int64_t step = closing_->step();
  const absl::Span<const uint64_t> ranks = closing_->Close();
  // Copied, because Tell() needs the ranks until they are sent, and the next Close() overwrites
  // them.
  std::copy(ranks.begin(), ranks.end(), set_.begin());
  assembly_->Tell(step, /*scalar=*/0, BytesOf(set_));
  if (has_gradients_) CHECK(gate_->Close(step, ranks));
  closed_();
}

RefusalReason ClosingExchange::StepClosed(const WireHeader& header,
                                          absl::Span<const std::byte> ranks) {
  if (shard_ == kFirstShard) return RefusalReason::kWrongStep;
  if (ranks.size() != set_.size() * sizeof(uint64_t)) return RefusalReason::kWrongLength;
  std::memcpy(set_.data(), ranks.data(), ranks.size());
  if (!gate_->Close(header.step, set_)) return RefusalReason::kWrongStep;
  closed_();
  return RefusalReason::kNone;
}

}  // namespace muster
