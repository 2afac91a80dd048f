#include "lib/shard/replication/replica_agreement.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "lib/shard/chunks/gradient_squares.h"
#include "lib/shard/chunks/plan_credentials.h"
#include "lib/shard/replication/shard_replica.h"

namespace muster {

namespace {

constexpr int64_t kAnyVersion = std::numeric_limits<int64_t>::max();

// Returns the version that each shard's replica holds at the start. A shard that never reports gets
// the highest number, so that the minimum ignores it.
NumberedVector<ShardIndex, int64_t> HeldAtFirst(const v1::JobPlan& plan) {
  NumberedVector<ShardIndex, int64_t> held;
  for (const ShardIndex shard : NumbersBelow<ShardIndex>(plan.shards_size())) {
    const bool reports =
        HasReplica(plan, shard) && !GradientSquares::ChunksWithGradients(plan, shard).empty();
    held.emplace_back(reports ? plan.first_step() : kAnyVersion);
  }
  return held;
}

}  // namespace

ReplicaAgreement::ReplicaAgreement(const v1::JobPlan& plan, ShardIndex shard, Send send)
    : shard_(shard),
      header_{.kind = MessageKind::kHeld,
              .generation = plan.generation(),
              .job = SessionOf(plan, kFirstShard),
              .rank = static_cast<uint32_t>(shard)},
      send_(std::move(send)),
      held_(HeldAtFirst(plan)),
      everywhere_(*std::ranges::min_element(held_)) {}

WireHeader ReplicaAgreement::Held(int64_t version) const {
  WireHeader header = header_;
  header.step = version;
  return header;
}

bool ReplicaAgreement::OwnHeld(int64_t version) {
  if (shard_ == kFirstShard) return Count(kFirstShard, version);
  send_(kFirstShard, Held(version));
  return false;
}

bool ReplicaAgreement::Arrived(const WireHeader& header) {
  if (shard_ == kFirstShard) return Count(ShardIndex(header.rank), header.step);
  if (header.step <= everywhere_) return false;
  everywhere_ = header.step;
  return true;
}

// Messages may overtake each other, so an older report is ignored.
bool ReplicaAgreement::Count(ShardIndex shard, int64_t version) {
  if (!held_.Has(shard) || held_[shard] >= version) return false;
  held_[shard] = version;
  const int64_t everywhere = *std::ranges::min_element(held_);
  if (everywhere <= everywhere_) return false;
  everywhere_ = everywhere;
  for (const ShardIndex other : held_.numbers()) {
    if (other != kFirstShard) send_(other, Held(everywhere));
  }
  return true;
}

}  // namespace muster
