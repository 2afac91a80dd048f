#include "lib/shard/replication/replica_feed.h"

#include <glog/logging.h>

#include <limits>
#include <utility>

#include "lib/shard/chunks/plan_credentials.h"

namespace muster {
namespace {

template <typename T>
absl::Span<const std::byte> BytesOf(absl::Span<const T> elements) {
  return {reinterpret_cast<const std::byte*>(elements.data()), elements.size() * sizeof(T)};
}

}  // namespace

ReplicaFeed::ReplicaFeed(const v1::JobPlan& plan, ShardIndex shard,
                         NumberedVector<LocalChunk, ChunkId> chunks, Send send,
                         std::function<void(LocalChunk)> sent)
    : header_{.dtype = WireDType::kF32,
              .generation = plan.generation(),
              .job = SessionOfReplica(plan, shard),
              .step = plan.first_step()},
      send_(std::move(send)),
      sent_(std::move(sent)),
      is_filled_(plan.shards(ToInt(shard)).backup().carries()),
      chunks_(chunks.size()) {
  for (const LocalChunk chunk : chunks.numbers()) chunks_[chunk].id = chunks[chunk];
}

void ReplicaFeed::SendArray(LocalChunk chunk, int array, absl::Span<const float> elements) {
  WireHeader header = header_;
  header.kind = MessageKind::kState;
  header.chunk = static_cast<uint32_t>(chunks_[chunk].id);
  header.length = elements.size() * sizeof(float);
  header.scalar = array;
  ++chunks_[chunk].arrays_sending;
  send_(header, BytesOf(elements), [ticket = tickets_.Take(), chunk](const absl::Status&) mutable {
    ReplicaFeed& feed = ticket.owner();
    ticket.GiveBack();
    if (--feed.chunks_[chunk].arrays_sending == 0) feed.sent_(chunk);
  });
}

void ReplicaFeed::SendUpdateState(const v1::UpdateState& state) {
  update_state_ = {static_cast<double>(state.updates()), state.loss_scale(),
                   static_cast<double>(state.clean_steps())};
  WireHeader header = header_;
  header.kind = MessageKind::kState;
  header.dtype = WireDType::kNone;
  header.length = update_state_.size() * sizeof(double);
  header.scalar = kUpdateStateArray;
  send_(header, BytesOf<double>(update_state_),
        [ticket = tickets_.Take()](const absl::Status&) mutable { ticket.GiveBack(); });
}

// Sums that were ready before the replica connected have waited.
void ReplicaFeed::Connected() {
  connected_ = true;
  for (const LocalChunk chunk : chunks_.numbers()) {
    if (chunks_[chunk].sum == SumState::kWaiting) SendSum(chunk);
  }
}

void ReplicaFeed::Forward(LocalChunk chunk, const Sum& sum) {
  CHECK(!is_forwarding(chunk));
  chunks_[chunk].sum = SumState::kWaiting;
  chunks_[chunk].next = sum;
  if (connected_) SendSum(chunk);
}

void ReplicaFeed::SendSum(LocalChunk chunk) {
  Chunk& c = chunks_[chunk];
  WireHeader header = header_;
  header.kind = MessageKind::kPush;
  header.step = c.next.step;
  header.chunk = static_cast<uint32_t>(c.id);
  header.length = c.next.elements.size() * sizeof(float);
  if (c.next.elements.empty()) header.dtype = WireDType::kNone;
  header.scalar = c.next.rate_or_trust;
  // The replica must apply exactly what the shard applied; NaN stands for a skipped step.
  header.loss_scale =
      c.next.skipped ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(c.next.factor);
  c.sum = SumState::kSending;
  send_(header, BytesOf(c.next.elements),
        [ticket = tickets_.Take(), chunk](const absl::Status&) mutable {
          ReplicaFeed& feed = ticket.owner();
          ticket.GiveBack();
          feed.chunks_[chunk].sum = SumState::kNone;
          feed.sent_(chunk);
        });
}

}  // namespace muster
