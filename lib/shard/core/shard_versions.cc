#include "lib/shard/core/shard_versions.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"

namespace muster {

// A shard without gradients has nothing to wait for.
ShardVersions::ShardVersions(const v1::JobPlan& plan, const ChunkTreatments& chunks, Gate* gate)
    : first_step_(plan.first_step()),
      chunks_(chunks),
      gate_(gate),
      places_(chunks.size()),
      furthest_(first_step_),
      chunks_at_lowest_(TrainedCount(chunks)),
      states_{State{LossScale(plan.spec().training())}, State{LossScale(plan.spec().training())},
              State{LossScale(plan.spec().training())}} {
  lowest_ = chunks_at_lowest_ == 0 ? std::numeric_limits<int64_t>::max() : first_step_;
  highest_ = lowest_;
}

void ShardVersions::TakeUp(const ShardVersions& before) {
  for (const LocalChunk chunk : chunks_.numbers()) {
    const Places& old = before.places_[chunk];
    const bool steps_back = before.HasAsPrevious(chunk, first_step_);
    // A step back is a swap: `current` becomes the version before, and the next update overwrites
    // the newer one.
    places_[chunk].current = steps_back ? old.previous : old.current;
    places_[chunk].previous = steps_back ? old.current : old.previous;
  }
  states_.fill(before.StateOf(first_step_));
}

// ---------------------------------------------------------------- chunks

const ChunkStore::Version& ShardVersions::At(LocalChunk chunk, int64_t version) const {
  return HasAsPrevious(chunk, version) ? previous(chunk) : current(chunk);
}

bool ShardVersions::Advance(LocalChunk chunk, const ChunkStore::Version& next) {
  const int64_t before = version(chunk), lowest_before = lowest_;
  places_[chunk].previous = std::exchange(places_[chunk].current, next);
  gate_->Updated(chunk);
  Count(chunk, before);
  return lowest_ > lowest_before;
}

void ShardVersions::Count(LocalChunk chunk, int64_t before) {
  const int64_t after = version(chunk);
  highest_ = std::max(highest_, after);
  furthest_ = std::max(furthest_, gate_->furthest(chunk));
  // The scan below runs only when the last chunk leaves the lowest version.
  if (after == before || before != lowest_ || --chunks_at_lowest_ > 0) return;
  lowest_ = std::numeric_limits<int64_t>::max();
  for (const LocalChunk other : chunks_.numbers()) {
    if (!chunks_[other].trained || version(other) > lowest_) continue;
    if (version(other) < lowest_) chunks_at_lowest_ = 0;
    lowest_ = version(other);
    ++chunks_at_lowest_;
  }
}

int64_t ShardVersions::UpdatesBefore(LocalChunk chunk) const {
  return first_step_ + gate_->updates(chunk) - StateOf(version(chunk)).skipped;
}

ShardVersions::Range ShardVersions::held() const {
  Range held;
  for (const LocalChunk chunk : chunks_.numbers()) {
    if (!chunks_[chunk].trained) continue;
    held.oldest = std::max(held.oldest, gate_->oldest(chunk));
    held.newest = std::min(held.newest, version(chunk));
  }
  return held;
}

// ---------------------------------------------------------------- update states

v1::UpdateState ShardVersions::UpdateState(int64_t version) const {
  const State& of_version = StateOf(version);
  v1::UpdateState state;
  state.set_updates(first_step_ + gate_->UpdatesUntil(version) - of_version.skipped);
  state.set_loss_scale(of_version.loss_scale.value());
  state.set_clean_steps(of_version.loss_scale.clean_steps());
  return state;
}

float ShardVersions::StepJudged(int64_t step, bool skipped) {
  State next = StateOf(step);
  if (skipped) {
    next.loss_scale.StepOverflowed();
    ++next.skipped;
  } else {
    next.loss_scale.StepWasClean();
  }
  StateOf(step + 1) = next;
  return next.loss_scale.value();
}

// An asynchronous job makes an update for each step of each worker, and none makes more.
absl::Status ShardVersions::Restore(const v1::UpdateState& state) {
  if (state.updates() < 0 || state.updates() > first_step_ * limits::kWorkersMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(state.updates(), " updates in ", first_step_, " steps"));
  }
  for (State& version : states_) {
    version.skipped = first_step_ - state.updates();
    RETURN_IF_ERROR(version.loss_scale.Restore(state));
  }
  return absl::OkStatus();
}

}  // namespace muster
