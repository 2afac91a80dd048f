// The snapshots that a shard owes, and the pushes that must wait for them.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "lib/plan/numbers.h"
#include "lib/shard/gate/round_schedule.h"

namespace muster {

// A snapshot is an exact cut: each chunk contains every push of the steps before the snapshot's
// step, and no other. So a chunk is copied when its version equals that step. Until then it must
// not take a push of that step or a later one (Barrier).
//
// There is memory for one copy. Snapshots are taken in the order of their steps, and the next one
// begins when the last was written. Periodic snapshots and the final one need no request. A new
// request supersedes one that still waits. All except the final one may be passed over.
// Thread-compatible.
class SnapshotQueue {
 public:
  struct Request {
    uint64_t id = 0;  // 0: periodic or final
    int64_t step = 0;
  };
  static constexpr int64_t kNoBarrier = std::numeric_limits<int64_t>::max();

  // `every_steps` 0: no periodic snapshots.
  SnapshotQueue(int chunks, int64_t every_steps) : due_{.every = every_steps}, held_(chunks) {}

  // Makes the periodic snapshots after first_step and the final one due.
  void Start(int64_t first_step, int64_t total_steps);

  // Returns whether the snapshot `id` waits, is the current one, or was the last to be written or
  // declined.
  bool Knows(uint64_t id) const;
  // Requests a snapshot. Requires: id > 0 and !Knows(id).
  void Demand(uint64_t id, int64_t step);
  // Records that the snapshot will not be taken. Requires: !Knows(id).
  void Decline(uint64_t id) { last_answered_ = id; }

  // Returns the first step that chunk `index` must not take pushes of yet.
  int64_t Barrier(LocalChunk index) const;
  // Begins the next snapshot if the last was written and some chunk has reached its step. `highest`
  // is the highest version of all chunks. Returns true if a snapshot began.
  bool Begin(int64_t highest);
  // The snapshot between Begin() and Written().
  const std::optional<Request>& current() const { return current_; }
  // Returns whether the chunk, at this version, must be copied now.
  bool Wants(LocalChunk index, int64_t version) const;
  // Records that the chunk was copied. Returns true if it was the last one.
  bool Held(LocalChunk index);
  // True if all chunks are copied, so that only the write remains.
  bool taken() const { return current_ && chunks_held_ == held_.size(); }
  // The step of the next waiting snapshot; kNoBarrier if none waits.
  int64_t next_step() const;
  // Drops the next snapshot while the one before is being written, if some chunk (`highest` is the
  // highest version) has reached its step. Returns the dropped request, or nullopt if no chunk
  // waits for it or if it is the final one.
  std::optional<Request> PassOver(int64_t highest);
  // Frees the copy of the snapshot that was taken. Returns false if it is another snapshot.
  bool Written(uint64_t id, int64_t step);

 private:
  void Plan(int64_t after);
  // The order of snapshots. At the same step a requested one comes first, because a user waits for
  // it.
  static bool Before(const Request& a, const Request& b) {
    return a.step != b.step ? a.step < b.step : a.id > b.id;
  }

  RoundSchedule due_;  // the periodic ones and the final one
  absl::InlinedVector<Request, 8> waiting_;
  std::optional<Request> current_;
  NumberedVector<LocalChunk, char> held_;  // copied for current_
  int chunks_held_ = 0;
  uint64_t last_answered_ = 0;
};

}  // namespace muster
