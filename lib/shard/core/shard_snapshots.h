// The snapshots of a shard: copies of all chunks at one version, for checkpoints.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "lib/plan/numbers.h"
#include "lib/shard/chunks/chunk_store.h"
#include "lib/shard/core/chunk_treatment.h"
#include "lib/shard/core/shard_output.h"
#include "lib/shard/core/shard_versions.h"
#include "lib/shard/core/snapshot_queue.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Copies the chunks that SnapshotQueue asks for into the store's held copies, and hands out a
// snapshot when all are copied. A chunk is copied as soon as it reaches the snapshot's step, or,
// after DeferCopies(), in CopyOne() and at the latest before its next update.
//
// An update of a chunk waits until its step is below Barrier(). A function that may lower a barrier
// says so. Its caller then looks for updates that waited.
//
// Thread-compatible: runs on the shard's thread, has no lock, and never blocks. Time is an
// argument. Only snapshots allocate.
class ShardSnapshots {
 public:
  using Clock = std::chrono::steady_clock;
  // The write of a snapshot delays updates for at most this time. Workers wait twice as long for
  // the values of a step (limits::kAnswerWaitMax).
  static constexpr std::chrono::minutes kWriteHoldsUpMax{5};

  // The arguments must outlive this object.
  ShardSnapshots(const v1::JobPlan& plan, ShardIndex shard, const ChunkTreatments& chunks,
                 ChunkStore& store, const ShardVersions& versions);
  void set_output(ShardOutput* output) { output_ = output; }

  // ---- requests

  // Makes the periodic snapshots and the final one due.
  void Start(int64_t total_steps) { queue_.Start(plan_.first_step(), total_steps); }
  // Requests snapshot `id` > 0 of version `step`. Declines it if a chunk is beyond `step`, if no
  // chunk may stop at `step`, or if `step` is above `last_step`. Returns true if the request was
  // accepted, which may change barriers; false also for a known id.
  bool Request(uint64_t id, int64_t step, int64_t last_step);
  // Begins the next snapshot if it is due and the last one was written.
  void Begin();
  // Returns false if this snapshot is not the current one; else begins the next one. Lowers
  // barriers.
  bool Written(uint64_t id, int64_t step);
  // Returns the lowest step that the chunk must not apply yet.
  int64_t Barrier(LocalChunk chunk) const { return queue_.Barrier(chunk); }
  // The step of the next waiting snapshot; SnapshotQueue::kNoBarrier if none waits.
  int64_t next_step() const { return queue_.next_step(); }

  // ---- copies

  void DeferCopies();
  // Copies one chunk that the current snapshot waits for. Returns false if there is none.
  bool CopyOne();
  // Called before a chunk's next update, when its pushes are here.
  void UpdateIsDue(LocalChunk chunk) {
    if (defers_copies_) Hold(chunk);
  }
  // Called after a chunk's update.
  void Updated(LocalChunk chunk);

  // ---- writes that take too long

  // Returns whether the current snapshot has been written for kWriteHoldsUpMax and some chunk has
  // reached the next one. Calls `clock` once per snapshot, and again while one waits.
  bool IsLate(absl::FunctionRef<Clock::time_point()> clock);
  // Declines the next snapshot with SNAPSHOT_MISSED. Returns false if there is none or if it must
  // not be passed over. Lowers barriers. Requires: IsLate().
  bool PassOver();

  // Returns a snapshot of a version that all chunks hold, without a copy.
  std::shared_ptr<const ShardSnapshot> OfHeld(uint64_t id, int64_t version) const;

 private:
  bool IsWanted(LocalChunk chunk) const;
  bool Hold(LocalChunk chunk);
  void Taken();
  std::shared_ptr<const ShardSnapshot> Make(
      const SnapshotQueue::Request& request, const v1::UpdateState& state,
      absl::FunctionRef<ChunkStore::Version(LocalChunk chunk)> place) const;

  const v1::JobPlan& plan_;
  const ShardIndex shard_;
  const ChunkTreatments& chunks_;
  ChunkStore& store_;
  const ShardVersions& versions_;
  ShardOutput* output_ = nullptr;
  SnapshotQueue queue_;
  v1::UpdateState state_;  // of the current snapshot's step
  // first call of IsLate() since the current snapshot was taken
  std::optional<Clock::time_point> writing_since_;
  bool defers_copies_ = false;
  // Only if copies are deferred: the chunks that have reached the snapshot's step, in this order,
  // and how many of them CopyOne() has seen.
  std::vector<LocalChunk> copies_;
  size_t copies_seen_ = 0;
};

}  // namespace muster
