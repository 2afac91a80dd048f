// When pushes become updates and updates become answers: what tells one consistency mode from
// another.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "lib/plan/numbers.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

enum class PushFate : uint8_t {
  kTake,       // its gradient is wanted
  kRepeat,     // it was taken before
  kLate,       // its step was closed without it
  kWrongStep,  // nobody who keeps to the protocol sends it
};

enum class FetchFate : uint8_t {
  kCurrent,   // answered with the chunk's value, as a PARAMS of AnswerStep()
  kPrevious,  // answered with the version before
  kLater,     // answered when it is there
  kWrongStep,
};

// An update of one chunk that is due.
struct ChunkUpdate {
  absl::Span<const Rank> ranks;  // whose gradients, ascending; empty: none is due
  int64_t step = 0;              // that the gradients are of
  double gradient_factor = 1;    // makes a mean over the whole batch of their sum
  double share = 1;              // of a step that the update stands for
  double rate_factor = 1;        // further, on the learning rate
  int64_t staleness = 0;         // steps, see StalenessGate
};

// Keeps account of the pushes for the chunks of one shard, and of who is owed an answer. Ranks and
// chunks are good; steps are what a peer says. A push goes through Admit() and, where that says
// kTake, either Arrived() or Lost().
//
// (chunk, rank, step) identifies a push: no gate takes one twice (I2), and none forgets one that it
// took (I1). Versions never go back (I7).
//
// Thread-compatible. No clock, no I/O, no lock; nothing is allocated after construction.
class Gate {
 public:
  virtual ~Gate() = default;

  // The length of the job; before, no update is due.
  void Start(int64_t total_steps) { total_steps_ = total_steps; }

  // What becomes of a push. kTake: its payload is under way.
  virtual PushFate Admit(LocalChunk chunk, Rank rank, int64_t step) = 0;
  // The payload of the push that was admitted is here. kTake or, where its step was closed
  // meanwhile, kLate.
  virtual PushFate Arrived(LocalChunk chunk, Rank rank) = 0;
  // It will not arrive, or is no gradient: it may come again.
  virtual void Lost(LocalChunk chunk, Rank rank) = 0;
  // A payload was admitted and has neither arrived nor got lost.
  virtual bool IsPlacing(LocalChunk chunk, Rank rank) const = 0;

  // The next update of the chunk; valid until something is told to the gate.
  virtual ChunkUpdate NextUpdate(LocalChunk chunk) const = 0;
  // It was made.
  virtual void Updated(LocalChunk chunk) = 0;
  // Calls answer(rank) for everyone who is owed the chunk's value and may have it, as a PARAMS of
  // AnswerStep(); they are not owed it any more.
  virtual void TakeAnswers(LocalChunk chunk, absl::FunctionRef<void(Rank rank)> answer) = 0;

  // Whether a push that was not taken is answered now; if not, its answer will come.
  virtual bool AnswersAgain(LocalChunk chunk, Rank rank, int64_t step) const = 0;
  virtual FetchFate Fetch(LocalChunk chunk, Rank rank, int64_t step) = 0;
  // Of the current value in the eyes of a rank.
  virtual int64_t AnswerStep(LocalChunk chunk, Rank rank) const = 0;

  // Every rank's push of the steps before it is part of the chunk, unless its step was closed
  // without it.
  virtual int64_t version(LocalChunk chunk) const = 0;
  // The lowest version of the chunk that is still there: this one or the one before.
  virtual int64_t oldest(LocalChunk chunk) const { return version(chunk); }
  // Whether a chunk may stop at this version.
  virtual bool IsVersion(int64_t /*step*/) const { return true; }
  // One past the last step whose push is part of the chunk.
  virtual int64_t furthest(LocalChunk chunk) const { return version(chunk); }
  // Updates of the chunk that `version` takes.
  virtual int64_t UpdatesUntil(int64_t version) const = 0;
  // Updates that the chunk has had.
  virtual int64_t updates(LocalChunk chunk) const { return UpdatesUntil(version(chunk)); }
  // Of steps that were closed without them.
  virtual int64_t late_pushes() const { return 0; }

 protected:
  static std::vector<Rank> AllRanks(int count) {
    std::vector<Rank> ranks;
    for (const Rank rank : NumbersBelow<Rank>(count)) ranks.push_back(rank);
    return ranks;
  }

  static constexpr int64_t kNotStarted = -1;
  int64_t total_steps_ = kNotStarted;
};

}  // namespace muster
