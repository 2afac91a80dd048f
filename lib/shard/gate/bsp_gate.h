// Bulk synchronous training: everybody's gradient, then the update, then everybody's answer.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/shard/gate/gate.h"
#include "lib/shard/gate/round_schedule.h"

namespace muster {

// An update of a chunk takes one push of every rank, of the step that is the chunk's version; the
// value served at step s has seen exactly the pushes of the steps before s (I4).
//
// Versions are those of `rounds`: in local SGD a push of version v ends the round from v to the
// next one, and bears all of its steps.
//   Source of local SGD: S. Stich, "Local SGD converges fast and communicates little", ICLR 2019
class BspGate : public Gate {
 public:
  struct Options {
    int chunks = 0;
    int ranks = 1;
    RoundSchedule rounds;  // without the end, which comes with Start()
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
  // The current version or the one before.
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
    int64_t previous = -1;  // version; -1: none
    int pushes_in = 0;
    bool answers_owed = false;
  };

  // With the end.
  RoundSchedule rounds() const;

  const RoundSchedule rounds_;
  const std::vector<Rank> ranks_;  // all of them
  NumberedVector<LocalChunk, Chunk> chunks_;
  NumberedTable<LocalChunk, Rank, PushState> states_;
};

}  // namespace muster
