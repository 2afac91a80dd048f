#include "lib/shard/core/shard_replication.h"

#include <utility>

#include "lib/shard/replication/shard_replica.h"
#include "lib/transport/core/transport.h"

namespace muster {

ShardReplication::ShardReplication(const v1::JobPlan& plan, ShardIndex shard,
                                   const ChunkStore& store, const ShardVersions& versions,
                                   std::function<void(LocalChunk)> freed)
    : plan_(plan), store_(store), versions_(versions) {
  if (!IsReplicated(plan)) return;
  replicas_ = std::make_unique<ReplicaAgreement>(plan, shard,
                                                 [this](ShardIndex to, const WireHeader& header) {
                                                   output_->SendToShard(to, header, {}, nullptr);
                                                 });
  if (!HasReplica(plan, shard)) return;
  replica_version_ = plan.first_step();
  NumberedVector<LocalChunk, ChunkId> ids;
  for (const LocalChunk chunk : store.chunks()) ids.emplace_back(store.id(chunk));
  feed_ = std::make_unique<ReplicaFeed>(
      plan, shard, std::move(ids),
      [this](const WireHeader& header, absl::Span<const std::byte> payload,
             Transport::SendDone done) {
        output_->SendToReplica(header, payload, std::move(done));
      },
      std::move(freed));
}

// A new sum overwrites the last one, so that must have been sent. The second update overwrites the
// plan's first version, so that must have reached the replica.
bool ShardReplication::Allows(LocalChunk chunk, int64_t step) const {
  if (!is_filled()) return false;
  if (replicas_ != nullptr && !replicas_->Admits(step)) return false;
  const bool overwrites = step > plan_.first_step();
  return !is_forwarding(chunk) &&
         !(feed_ != nullptr && overwrites && feed_->is_sending_state(chunk));
}

// Sends the plan's first version. A chunk may be one step ahead of it, but no more, because its
// second step waits for the replica.
void ShardReplication::ReplicaConnected() {
  if (!feed_->is_filled()) {
    for (const LocalChunk chunk : store_.chunks()) {
      const ChunkStore::Version& first = versions_.At(chunk, plan_.first_step());
      for (int array = 0; array < store_.arrays(); ++array) {
        feed_->SendArray(
            chunk, array,
            {store_.Array(chunk, first, array), static_cast<size_t>(store_.elements(chunk))});
      }
    }
    feed_->SendUpdateState(versions_.UpdateState(plan_.first_step()));
  }
  feed_->Connected();
}

bool ShardReplication::ReplicaHolds(const WireHeader& header) {
  if (feed_ == nullptr || header.step <= replica_version_) return false;
  replica_version_ = header.step;
  return replicas_->OwnHeld(header.step);
}

void ShardReplication::BeginFilling() {
  filling_ = std::make_unique<ReplicaFilling>(store_, plan_.first_step());
}

void ShardReplication::TellHeld() {
  output_->SendTo(Rank(0),
                  {.kind = MessageKind::kHeld,
                   .generation = plan_.generation(),
                   .job = plan_.job_number(),
                   .step = versions_.lowest()},
                  {}, nullptr);
}

}  // namespace muster
