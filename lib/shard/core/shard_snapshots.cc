#include "lib/shard/core/shard_snapshots.h"

#include <glog/logging.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "lib/log/log_scope.h"
#include "lib/shard/gate/round_schedule.h"

namespace muster {

ShardSnapshots::ShardSnapshots(const v1::JobPlan& plan, ShardIndex shard,
                               const ChunkTreatments& chunks, ChunkStore& store,
                               const ShardVersions& versions)
    : plan_(plan),
      shard_(shard),
      chunks_(chunks),
      store_(store),
      versions_(versions),
      queue_(store.size(), plan.spec().checkpoint().every_steps()) {}

// ---------------------------------------------------------------- requests

bool ShardSnapshots::Request(uint64_t id, int64_t step, int64_t last_step) {
  if (queue_.Knows(id)) return false;
  auto decline = [&](v1::SnapshotOutcome outcome, const std::string& why) {
    queue_.Decline(id);
    output_->SnapshotDeclined(id, step, outcome, why);
    return false;
  };
  // A chunk beyond the step contains pushes that the snapshot must not have.
  if (versions_.furthest() > step) {
    return decline(v1::SNAPSHOT_MISSED,
                   absl::StrCat("shard ", ToInt(shard_), " is at version ", versions_.furthest()));
  }
  if (!versions_.IsVersion(step)) {
    return decline(v1::SNAPSHOT_MISSED,
                   absl::StrCat("no average is made at step ", step, ", only every ",
                                RoundSchedule::Of(plan_).every));
  }
  if (step > last_step) {
    return decline(v1::SNAPSHOT_FAILED, absl::StrCat("version ", step, " of ", last_step));
  }
  queue_.Demand(id, step);
  Begin();
  return true;
}

void ShardSnapshots::Begin() {
  if (!queue_.Begin(versions_.highest())) return;
  writing_since_.reset();
  // No chunk is beyond the step yet, so its state is still there. Frozen chunks may be copied steps
  // later.
  state_ = versions_.UpdateState(queue_.current()->step);
  if (chunks_.empty()) return Taken();
  copies_.clear();
  copies_seen_ = 0;
  for (const LocalChunk chunk : chunks_.numbers()) {
    if (!defers_copies_) {
      Hold(chunk);
    } else if (IsWanted(chunk)) {
      copies_.push_back(chunk);
    }
  }
}

bool ShardSnapshots::Written(uint64_t id, int64_t step) {
  if (!queue_.Written(id, step)) return false;
  Begin();
  return true;
}

// ---------------------------------------------------------------- copies

void ShardSnapshots::DeferCopies() {
  defers_copies_ = true;
  copies_.reserve(chunks_.size());
}

bool ShardSnapshots::CopyOne() {
  while (copies_seen_ < copies_.size()) {
    if (Hold(copies_[copies_seen_++])) return true;
  }
  return false;
}

void ShardSnapshots::Updated(LocalChunk chunk) {
  if (!queue_.current()) {
    Begin();
  } else if (!defers_copies_) {
    Hold(chunk);
  } else if (IsWanted(chunk)) {
    copies_.push_back(chunk);
  }
}

// Returns whether the current snapshot wants the chunk at its present version.
bool ShardSnapshots::IsWanted(LocalChunk chunk) const {
  if (!queue_.current()) return false;
  const int64_t version =
      chunks_[chunk].trained ? versions_.version(chunk) : queue_.current()->step;
  return queue_.Wants(chunk, version);
}

bool ShardSnapshots::Hold(LocalChunk chunk) {
  if (!IsWanted(chunk)) return false;
  store_.Copy(chunk, versions_.current(chunk), ChunkStore::kHeld);
  if (queue_.Held(chunk)) Taken();
  return true;
}

void ShardSnapshots::Taken() {
  output_->SnapshotTaken(
      Make(*queue_.current(), state_, [](LocalChunk) { return ChunkStore::kHeld; }));
}

// ---------------------------------------------------------------- writes that take too long

bool ShardSnapshots::IsLate(absl::FunctionRef<Clock::time_point()> clock) {
  if (!queue_.taken()) return false;
  if (!writing_since_) writing_since_ = clock();
  return next_step() <= versions_.highest() && clock() - *writing_since_ >= kWriteHoldsUpMax;
}

bool ShardSnapshots::PassOver() {
  const std::optional<SnapshotQueue::Request> passed = queue_.PassOver(versions_.highest());
  if (!passed) return false;
  const std::string why =
      absl::StrCat("passed over because training would wait for it: the snapshot of step ",
                   queue_.current()->step, " is still being written after ",
                   absl::FormatDuration(absl::FromChrono(kWriteHoldsUpMax)), " (the limit)");
  const LogScope scope({.job = plan_.job(), .generation = plan_.generation()});
  LOG(WARNING) << plan_.job() << ", shard " << shard_ << ": the snapshot of step " << passed->step
               << " is " << why;
  output_->SnapshotDeclined(passed->id, passed->step, v1::SNAPSHOT_MISSED, why);
  return true;
}

// ---------------------------------------------------------------- snapshots

std::shared_ptr<const ShardSnapshot> ShardSnapshots::OfHeld(uint64_t id, int64_t version) const {
  return Make({.id = id, .step = version}, versions_.UpdateState(version),
              [&](LocalChunk chunk) { return versions_.At(chunk, version); });
}

std::shared_ptr<const ShardSnapshot> ShardSnapshots::Make(
    const SnapshotQueue::Request& request, const v1::UpdateState& state,
    absl::FunctionRef<ChunkStore::Version(LocalChunk chunk)> place) const {
  auto snapshot = std::make_shared<ShardSnapshot>(ShardSnapshot{
      .shard = shard_, .id = request.id, .step = request.step, .memory = store_.slab()});
  snapshot->update_state = state;
  for (const LocalChunk chunk : chunks_.numbers()) {
    const ChunkStore::Version from = place(chunk);
    for (int array = 0; array < store_.arrays(); ++array) {
      snapshot->pieces.push_back(
          {store_.id(chunk),
           store_.SlotOf(chunk, array),
           {store_.Array(chunk, from, array), static_cast<size_t>(store_.elements(chunk))}});
    }
  }
  return snapshot;
}

}  // namespace muster
