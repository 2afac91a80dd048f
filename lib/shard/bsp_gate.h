// Bulk synchronous training: everybody's gradient, then the update, then everybody's answer.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/shard/gate.h"
#include "lib/shard/round_schedule.h"

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

  PushFate Admit(int chunk, int rank, int64_t step) override;
  PushFate Arrived(int chunk, int rank) override;
  void Lost(int chunk, int rank) override;
  bool IsPlacing(int chunk, int rank) const override;
  ChunkUpdate NextUpdate(int chunk) const override;
  void Updated(int chunk) override;
  void TakeAnswers(int chunk, absl::FunctionRef<void(int rank)> answer) override;
  bool AnswersAgain(int chunk, int rank, int64_t step) const override;
  // The current version or the one before.
  FetchFate Fetch(int chunk, int rank, int64_t step) override;
  int64_t AnswerStep(int chunk, int rank) const override;
  int64_t version(int chunk) const override { return chunks_[chunk].version; }
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

  PushState& StateOf(int chunk, int rank) { return states_[chunk * ranks_.size() + rank]; }
  // With the end.
  RoundSchedule rounds() const;

  const RoundSchedule rounds_;
  std::vector<int> ranks_;  // 0, 1, ...
  std::vector<Chunk> chunks_;
  std::vector<PushState> states_;  // [chunk, rank]
};

}  // namespace muster
