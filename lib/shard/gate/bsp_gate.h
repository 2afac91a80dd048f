// Bulk synchronous training: a chunk is updated with the gradients of all ranks, then all ranks get
// the new value.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/shard/gate/gate.h"
#include "lib/shard/gate/round_schedule.h"

namespace muster {

// An update of a chunk takes one push of every rank, for the step that equals the chunk's version.
// The value served at step s contains exactly the pushes of the steps before s (I4).
//
// Versions follow `rounds`. In local SGD a push of version v ends the round that began at v and
// carries the work of all its steps.
//   Source of local SGD: S. Stich, "Local SGD converges fast and communicates little", ICLR 2019
class BspGate : public Gate {
 public:
  struct Options {
    int chunks = 0;
    int ranks = 1;
    RoundSchedule rounds;  // without total_steps, which Start() sets
  };
  explicit BspGate(const Options& options);

  PushFate Admit(LocalChunk chunk, Rank rank, int64_t step) override;
  PushFate Arrived(LocalChunk chunk, Rank rank) override;
  void Lost(LocalChunk chunk, Rank rank) override;
  bool IsPlacing(LocalChunk chunk, Rank rank) const override;
  ChunkUpdate NextUpdate(LocalChunk chunk) const override;
  void Updated(LocalChunk chunk) override;
  void TakeAnswers(LocalChunk chunk, absl::FunctionRef<void(Rank rank)> answer) override;
  bool AnswersAgain(LocalChunk chunk, Rank rank, int64_t step) const override;
  // Serves the current version or the one before.
  FetchFate Fetch(LocalChunk chunk, Rank rank, int64_t step) override;
  int64_t AnswerStep(LocalChunk chunk, Rank rank) const override;
  int64_t version(LocalChunk chunk) const override { return chunks_[chunk].version; }
  int64_t oldest(LocalChunk chunk) const override;
  bool IsVersion(int64_t step) const override;
  int64_t UpdatesUntil(int64_t version) const override { return version - rounds_.first_step; }

 private:
  enum class PushState : uint8_t { kAwaited, kPlacing, kIn };
  struct Chunk {
    int64_t version = 0;
    int64_t previous = -1;  // the version before; -1: none
    int pushes_in = 0;
    bool answers_owed = false;
  };

  // The schedule with total_steps.
  RoundSchedule rounds() const;

  const RoundSchedule rounds_;
  const std::vector<Rank> ranks_;  // all of them
  NumberedVector<LocalChunk, Chunk> chunks_;
  NumberedTable<LocalChunk, Rank, PushState> states_;
};

}  // namespace muster
