#include "lib/shard/replication/replica_filling.h"

#include <cmath>
#include <optional>
#include <utility>

#include "lib/plan/numbers.h"
#include "lib/shard/replication/replica_feed.h"

namespace muster {

ReplicaFilling::ReplicaFilling(const ChunkStore& store, int64_t first_step)
    : store_(store),
      first_step_(first_step),
      pieces_(size_t{1} * store.size() * store.arrays() + 1),
      missing_(pieces_.size()) {
  size_t next = 0;
  for (const LocalChunk chunk : store.chunks()) {
    for (int array = 0; array < store.arrays(); ++array) {
      float* const elements = store.Array(chunk, ChunkStore::Version(), array);
      pieces_[next++].memory = {reinterpret_cast<std::byte*>(elements),
                                store.elements(chunk) * sizeof(float)};
    }
  }
  pieces_[next].memory = {reinterpret_cast<std::byte*>(update_state_.data()),
                          sizeof(update_state_)};
}

ReplicaFilling::Piece* ReplicaFilling::Find(const WireHeader& header) {
  if (header.step != first_step_) return nullptr;
  if (header.scalar == kUpdateStateArray) return &pieces_.back();
  const std::optional<LocalChunk> chunk = store_.Find(ChunkId(header.chunk));
  if (!chunk) return nullptr;
  for (int array = 0; array < store_.arrays(); ++array) {
    if (header.scalar == array) return &pieces_[ToInt(*chunk) * store_.arrays() + array];
  }
  return nullptr;
}

absl::Span<std::byte> ReplicaFilling::Place(const WireHeader& header) {
  Piece* const piece = Find(header);
  if (piece == nullptr || piece->is_in || piece->receiving) return {};
  if (header.length != piece->memory.size()) return {};
  piece->receiving = tickets_.Take();
  return piece->memory;
}

void ReplicaFilling::Arrived(const WireHeader& header) {
  Piece& piece = *Find(header);
  if (!piece.receiving) return;  // AllLost() gave it up
  piece.receiving.GiveBack();
  piece.is_in = true;
  --missing_;
}

void ReplicaFilling::Lost(const WireHeader& header) { Find(header)->receiving.GiveBack(); }

void ReplicaFilling::AllLost() {
  for (Piece& piece : pieces_) piece.receiving.GiveBack();
}

v1::UpdateState ReplicaFilling::update_state() const {
  v1::UpdateState state;
  // The numbers come from a peer: a double outside the exact range of int64_t must not be
  // converted.
  const auto whole = [](double number) {
    return std::abs(number) < 1e15 ? static_cast<int64_t>(number) : int64_t{-1};
  };
  state.set_updates(whole(update_state_[0]));
  state.set_loss_scale(update_state_[1]);
  state.set_clean_steps(whole(update_state_[2]));
  return state;
}

}  // namespace muster
