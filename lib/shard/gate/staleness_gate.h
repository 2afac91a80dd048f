// Stale synchronous and asynchronous training: every push is an update of its own.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "lib/shard/gate/gate.h"

namespace muster {

// A push of rank r is applied to its chunk at once: as the gradient of r's own samples, with a
// learning rate scaled by r's share of the batch. One push of every rank then moves a parameter as
// far as one synchronous step.
//
// The answer is the value for r's next step. It waits until no rank is more than `staleness` steps
// behind. The value served at step s contains every push of the steps before s - staleness (I3),
// and every push of r itself before s.
//
// A chunk's version is the number of steps that every rank has pushed. A push was computed from a
// value of its chunk. Its staleness is the number of updates since that value was sent, in steps
// (one update per rank) and rounded down. If `aware`, the learning rate is divided by the staleness
// plus one.
//   Sources: Q. Ho et al., "More effective distributed ML via a stale synchronous parallel
//   parameter server", NIPS 2013; W. Zhang et al., "Staleness-aware async-SGD", IJCAI 2016
class StalenessGate : public Gate {
 public:
  static constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();  // asynchronous
  struct Options {
    int chunks = 0;
    NumberedVector<Rank, double> shares;  // of the batch, per rank
    int64_t first_step = 0;
    int64_t staleness = kUnbounded;
    bool aware = false;
  };
  explicit StalenessGate(Options options);

  // Returns kWrongStep for a push of step s before s was answered: no rank can have computed it.
  PushFate Admit(LocalChunk chunk, Rank rank, int64_t step) override;
  PushFate Arrived(LocalChunk chunk, Rank rank) override;
  void Lost(LocalChunk chunk, Rank rank) override;
  bool IsPlacing(LocalChunk chunk, Rank rank) const override;
  // Returns the arrived push with the lowest step.
  ChunkUpdate NextUpdate(LocalChunk chunk) const override;
  void Updated(LocalChunk chunk) override;
  void TakeAnswers(LocalChunk chunk, absl::FunctionRef<void(Rank rank)> answer) override;
  bool AnswersAgain(LocalChunk chunk, Rank rank, int64_t step) const override;
  // Serves only the rank's own next step.
  FetchFate Fetch(LocalChunk chunk, Rank rank, int64_t step) override;
  int64_t AnswerStep(LocalChunk chunk, Rank rank) const override {
    return seats_(chunk, rank).step;
  }
  int64_t version(LocalChunk chunk) const override { return chunks_[chunk].version; }
  int64_t furthest(LocalChunk chunk) const override { return chunks_[chunk].furthest; }
  int64_t UpdatesUntil(int64_t version) const override {
    return (version - options_.first_step) * ranks();
  }
  int64_t updates(LocalChunk chunk) const override { return chunks_[chunk].updates; }

 private:
  enum class PushState : uint8_t { kAwaited, kPlacing, kIn };
  struct Chunk {
    int64_t version = 0;
    int64_t furthest = 0;
    int64_t updates = 0;
    int pushes_in = 0;
  };
  struct Seat {
    int64_t step = 0;          // the rank's next push; it has pushed all steps before
    int64_t updates_seen = 0;  // the chunk's updates when the rank was sent its value
    PushState state = PushState::kAwaited;
    bool answer_owed = false;
  };

  int64_t ranks() const { return options_.shares.size(); }
  Rank RankOfNext(LocalChunk chunk) const;
  bool Admits(const Chunk& chunk, const Seat& seat) const {
    return chunk.version >= seat.step - options_.staleness;
  }

  const Options options_;
  const std::vector<Rank> ranks_;  // all of them
  NumberedVector<LocalChunk, Chunk> chunks_;
  NumberedTable<LocalChunk, Rank, Seat> seats_;
};

}  // namespace muster
