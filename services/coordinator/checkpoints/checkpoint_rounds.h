// The open checkpoint rounds of a job, and the outcomes of earlier rounds of its generation.
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

// Bookkeeping only: no disk, no clock. The caller of TakeEnded() resolves the rounds, because this
// wakes waiting calls that may use the disk. Not thread-safe.
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

  // Starts a new generation, and forgets what the previous one committed and abandoned.
  void Begin();

  // Returns the open round of `key`; `make` creates it if there is none. Returns
  // FAILED_PRECONDITION (reason "CHECKPOINT_ABANDONED") if this generation has abandoned it.
  absl::StatusOr<std::shared_ptr<CheckpointRound>> Join(
      Key key, const std::function<CheckpointRound::Options()>& make);
  bool IsOpen(const CheckpointRound& round) const;
  bool HasCommitted(int64_t step) const { return committed_.contains(step); }
  // Returns the open periodic and final rounds of earlier steps.
  std::vector<std::shared_ptr<CheckpointRound>> PeriodicBefore(int64_t step) const;

  // Records that the step's checkpoint is on the disk. A periodic round and one on demand of the
  // same step contain the same bytes, so this ends both.
  void Commit(int64_t step);
  // Ends a round permanently, or prevents its start. Returns false if it was abandoned before, or
  // the step is committed.
  bool Abandon(Key key, const absl::Status& why);
  // Ends rounds that the job no longer needs (a shard missed the step, or the generation was
  // halted), because they hold files. `wants` gets the snapshot; 0 means periodic or final.
  void DropUnwanted(const std::function<bool(uint64_t snapshot)>& wants);
  // Ends all rounds, because the job does not run any more.
  void Clear();

  // Makes every shard of this generation go through the coordinator, whatever the job asked for,
  // because a direct write failed.
  void StreamOnly() { stream_only_ = true; }
  bool stream_only() const { return stream_only_; }

  // Counts the open shard streams of all rounds.
  void BeginStream() { ++streams_; }
  void EndStream() { --streams_; }
  bool writing() const { return streams_ > 0; }

  // Counts the rounds that commit: from the arrival of the last shard to the end of the pruning
  // after the commit. An ended round does not begin to commit.
  void BeginCommit() { ++commits_; }
  void EndCommit() { --commits_; }
  bool committing() const { return commits_ > 0; }

  // Returns the rounds that have ended since the last call, with the status to resolve each.
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

// The error for a round, or a shard's stream, that comes too late.
absl::Status CheckpointNotWanted(const CheckpointRound& round);

}  // namespace muster
