// The versions of a shard: where each chunk's two versions are, and the update state of each
// version.
#pragma once

#include <array>
#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "lib/plan/numbers.h"
#include "lib/shard/chunks/chunk_store.h"
#include "lib/shard/chunks/loss_scale.h"
#include "lib/shard/core/chunk_treatment.h"
#include "lib/shard/gate/gate.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// A version is counted in steps: version s contains the updates of all steps before s. The gate
// counts the version of each chunk. This class knows the buffers of the current version and of the
// one before, and tracks the lowest and the highest version of the chunks with gradients.
//
// A version has an update state besides values and slots: the loss scale and the number of updates.
// Every step is an update unless it was skipped.
//
// Thread-compatible: runs on the shard's thread, has no lock, and never blocks. Nothing is
// allocated after construction.
class ShardVersions {
 public:
  struct Range {
    int64_t oldest = 0;
    int64_t newest = std::numeric_limits<int64_t>::max();
  };

  // Every chunk has version plan.first_step. The arguments must outlive this object.
  ShardVersions(const v1::JobPlan& plan, const ChunkTreatments& chunks, Gate* gate);

  // Continues at plan.first_step with the buffers and the state of an earlier generation, which has
  // the same chunks. Requires: `before` holds that version.
  void TakeUp(const ShardVersions& before);

  // ---- one chunk

  int64_t version(LocalChunk chunk) const { return gate_->version(chunk); }
  const ChunkStore::Version& current(LocalChunk chunk) const { return places_[chunk].current; }
  const ChunkStore::Version& previous(LocalChunk chunk) const { return places_[chunk].previous; }
  // Returns the buffers of a version. Requires: held() contains it.
  const ChunkStore::Version& At(LocalChunk chunk, int64_t version) const;
  // Records that the gate's next update of the chunk was written to `next`, which becomes the
  // current version. Returns true if the lowest version has risen.
  bool Advance(LocalChunk chunk, const ChunkStore::Version& next);
  // Returns whether a chunk may stop at this version.
  bool IsVersion(int64_t version) const { return gate_->IsVersion(version); }
  // Returns the number of updates of the job before the chunk's next one.
  int64_t UpdatesBefore(LocalChunk chunk) const;

  // ---- all chunks with gradients

  // INT64_MAX if there are none.
  int64_t lowest() const { return lowest_; }
  int64_t highest() const { return highest_; }
  // One past the last step that has a push in a chunk.
  int64_t furthest() const { return furthest_; }
  // The versions that each of them can provide; all versions if there are none.
  Range held() const;

  // ---- update states; each is kept until two versions later

  // 0: the job has no loss scale.
  float loss_scale(int64_t version) const { return StateOf(version).loss_scale.value(); }
  v1::UpdateState UpdateState(int64_t version) const;
  // Derives the state of version `step` + 1 from that of `step`. Returns its loss scale.
  float StepJudged(int64_t step, bool skipped);
  // Sets the state of all versions. Returns INVALID_ARGUMENT for numbers that no job can have
  // written.
  absl::Status Restore(const v1::UpdateState& state);

 private:
  struct Places {
    ChunkStore::Version current;
    ChunkStore::Version previous = {.values = 1, .slots = 1};
  };
  struct State {
    LossScale loss_scale;
    int64_t skipped = 0;  // skipped steps before the version
  };

  bool HasAsPrevious(LocalChunk chunk, int64_t version) const {
    return chunks_[chunk].trained && gate_->version(chunk) != version;
  }
  void Count(LocalChunk chunk, int64_t before);
  State& StateOf(int64_t version) { return states_[version % states_.size()]; }
  const State& StateOf(int64_t version) const { return states_[version % states_.size()]; }

  const int64_t first_step_;
  const ChunkTreatments& chunks_;
  Gate* const gate_;
  NumberedVector<LocalChunk, Places> places_;
  int64_t lowest_;
  int64_t highest_;
  int64_t furthest_;
  int chunks_at_lowest_;
  std::array<State, 3> states_;  // of the previous, current and next version: [version % 3]
};

}  // namespace muster
