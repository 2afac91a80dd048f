// The checkpoints of one job that are being written now, and what became of the others of its
// generation.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/coordinator/checkpoints/checkpoint_round.h"

namespace muster {

// Bookkeeping only: no disk, no clock; not thread-safe. Whoever waits for a round's outcome hears
// it from who calls TakeEnded(): telling it may wait for the disk.
class CheckpointRounds {
 public:
  struct Key {
    int64_t step = 0;
    uint64_t snapshot = 0;  // 0: periodic or final
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Ended {
    std::shared_ptr<CheckpointRound> round;
    absl::Status outcome;
  };

  // A new generation: what the one before committed and gave up says nothing about it.
  void Begin();

  // The open round of `key`, made by `make` where there is none. FAILED_PRECONDITION (reason
  // "CHECKPOINT_ABANDONED") when this generation has given it up.
  absl::StatusOr<std::shared_ptr<CheckpointRound>> Join(
      Key key, const std::function<CheckpointRound::Options()>& make);
  bool IsOpen(const CheckpointRound& round) const;
  bool HasCommitted(int64_t step) const { return committed_.contains(step); }
  // Open ones that are on nobody's demand, of steps before this one.
  std::vector<std::shared_ptr<CheckpointRound>> PeriodicBefore(int64_t step) const;

  // The step's checkpoint is on the disk. A periodic round and one on demand of the same step hold
  // the same bytes, so this answers both.
  void Commit(int64_t step);
  // Ends the round for good, or has it never begin; false if it was given up before, or the step is
  // committed.
  bool Abandon(Key key, const absl::Status& why);
  // Rounds that the job no longer wants (a shard missed the step, or the generation was halted)
  // hold files. 0: those that are on nobody's demand.
  void DropUnwanted(const std::function<bool(uint64_t snapshot)>& wants);
  // The job does not run any more.
  void Clear();

  // Of this generation, from now on: every shard is sent to the coordinator, whatever the job asked
  // for. What was written otherwise came to nothing.
  void StreamOnly() { stream_only_ = true; }
  bool stream_only() const { return stream_only_; }

  // Streams of shards that are open, in all rounds.
  void BeginStream() { ++streams_; }
  void EndStream() { --streams_; }
  bool writing() const { return streams_ > 0; }

  // Rounds that have all of their shards, up to the end of the pruning that follows. None begins
  // once the round is not open any more.
  void BeginCommit() { ++commits_; }
  void EndCommit() { --commits_; }
  bool committing() const { return commits_ > 0; }

  // The rounds that have ended since the last call, with the status with which each shall be
  // resolved.
  std::vector<Ended> TakeEnded() { return std::exchange(ended_, {}); }

 private:
  using Open = absl::btree_map<Key, std::shared_ptr<CheckpointRound>>;
  Open::iterator End(Open::iterator round, absl::Status outcome);

  Open open_;
  absl::btree_set<Key> abandoned_;      // in this generation
  absl::btree_set<int64_t> committed_;  // steps, by this generation
  bool stream_only_ = false;            // in this generation
  int streams_ = 0;
  int commits_ = 0;
  std::vector<Ended> ended_;
};

// The error of a round, or of a shard's stream, that comes too late.
absl::Status CheckpointNotWanted(const CheckpointRound& round);

}  // namespace muster
