// Which snapshots a shard owes, and which pushes have to wait for them.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "lib/plan/numbers.h"
#include "lib/shard/gate/round_schedule.h"

namespace muster {

// A snapshot is an exact cut: a chunk of it is made of every push of the steps before its step, and
// of no other. So a chunk is copied when its version is that step, and until then it must not see a
// push of that step or a later one (Barrier).
//
// There is memory for one copy: requests are served by step, and the next one begins when the last
// was written. Periodic snapshots and the final one come by themselves; one on demand waits until a
// newer demand supersedes it. All but the final one may be passed over. Thread-compatible.
class SnapshotQueue {
 public:
  struct Request {
    uint64_t id = 0;  // 0: periodic or final
    int64_t step = 0;
  };
  static constexpr int64_t kNoBarrier = std::numeric_limits<int64_t>::max();

  // every_steps 0: no periodic ones.
  SnapshotQueue(int chunks, int64_t every_steps) : due_{.every = every_steps}, held_(chunks) {}

  // The periodic ones after first_step and the final one are owed from here on.
  void Start(int64_t first_step, int64_t total_steps);

  // Asked for before, under this id.
  bool Knows(uint64_t id) const;
  // id > 0, not known.
  void Demand(uint64_t id, int64_t step);
  // Will not be taken; not known.
  void Decline(uint64_t id) { last_answered_ = id; }

  // The first step whose pushes chunk `index` may not see yet.
  int64_t Barrier(LocalChunk index) const;
  // Begins with the next one if the last was written and some chunk, at version `highest`, has come
  // to it. True if it did.
  bool Begin(int64_t highest);
  // Between Begin() and Written().
  const std::optional<Request>& current() const { return current_; }
  // Whether the chunk, at this version, is to be copied now.
  bool Wants(LocalChunk index, int64_t version) const;
  // It was copied. True when it was the last.
  bool Held(LocalChunk index);
  // All chunks are held: what remains is to write.
  bool taken() const { return current_ && chunks_held_ == held_.size(); }
  // The step of the next one that waits; kNoBarrier: none does.
  int64_t next_step() const;
  // The next one, to whose step some chunk, at version `highest`, has come, is not taken after all,
  // while the one before is being written. Nothing: none has to wait for that, or it is the final
  // one.
  std::optional<Request> PassOver(int64_t highest);
  // The snapshot that was taken is not needed any more. False when it is another one.
  bool Written(uint64_t id, int64_t step);

 private:
  void Plan(int64_t after);
  // Those on demand first: a user waits.
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
