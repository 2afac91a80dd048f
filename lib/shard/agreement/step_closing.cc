#include "lib/shard/agreement/step_closing.h"

#include <algorithm>
#include <bit>

#include "glog/logging.h"
#include "lib/shard/gate/rank_set.h"

namespace muster {

StepClosing::StepClosing(const v1::JobPlan& plan, const NumberedVector<ShardIndex, bool>& shards)
    : ranks_(plan.workers_size()),
      wanted_(plan.workers_size() - plan.spec().sync().backup_workers()),
      step_(plan.first_step()),
      parts_(plan.shards_size()),
      complete_(RankSet::WordsFor(plan.workers_size())),
      set_(RankSet::WordsFor(plan.workers_size())) {
  for (const ShardIndex shard : parts_.numbers()) {
    parts_[shard].awaited = shards[shard];
    parts_[shard].message.resize(set_.size());
    parts_[shard].arrived.resize(set_.size());
  }
  order_.reserve(ranks_);
}

NumberedVector<ShardIndex, absl::Span<std::byte>> StepClosing::places() {
  NumberedVector<ShardIndex, absl::Span<std::byte>> places(parts_.size());
  for (const ShardIndex shard : parts_.numbers()) {
    if (!parts_[shard].awaited) continue;
    std::vector<uint64_t>& message = parts_[shard].message;
    places[shard] = {reinterpret_cast<std::byte*>(message.data()),
                     message.size() * sizeof(uint64_t)};
  }
  return places;
}

void StepClosing::Accept(ShardIndex shard, int64_t step) {
  Part& part = parts_[shard];
  CHECK(part.awaited);
  if (step != step_) return;
  for (size_t word = 0; word < set_.size(); ++word) {
    part.arrived[word] |= part.message[word];
    uint64_t everywhere = ~uint64_t{0};
    for (const Part& other : parts_) {
      if (other.awaited) everywhere &= other.arrived[word];
    }
    // Each iteration takes the lowest bit of the newly complete ranks.
    for (uint64_t fresh = everywhere & ~complete_[word]; fresh != 0; fresh &= fresh - 1) {
      const int rank = static_cast<int>(word) * 64 + std::countr_zero(fresh);
      if (rank < ranks_) order_.push_back(Rank(rank));
    }
    complete_[word] |= everywhere;
  }
}

absl::Span<const uint64_t> StepClosing::Close() {
  CHECK(can_close());
  std::fill(set_.begin(), set_.end(), 0);
  for (int i = 0; i < wanted_; ++i) RankSet::Add(absl::MakeSpan(set_), order_[i]);
  order_.clear();
  std::fill(complete_.begin(), complete_.end(), 0);
  for (Part& part : parts_) std::fill(part.arrived.begin(), part.arrived.end(), 0);
  ++step_;
  return set_;
}

}  // namespace muster
