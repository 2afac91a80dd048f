// Decides when pushes become updates and when updates are answered. Each consistency mode has one
// gate.
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
  kTake,       // the gradient is wanted
  kRepeat,     // the push was taken before, or its payload is under way
  kLate,       // its step was closed without it
  kWrongStep,  // violates the protocol
};

enum class FetchFate : uint8_t {
  kCurrent,   // answered with the chunk's value, as a PARAMS of AnswerStep()
  kPrevious,  // answered with the version before
  kLater,     // answered as soon as the version exists
  kWrongStep,
};

// A due update of one chunk.
struct ChunkUpdate {
  // ranks that contribute gradients, ascending; empty: no update is due
  absl::Span<const Rank> ranks;
  int64_t step = 0;            // the step of the gradients
  double gradient_factor = 1;  // turns their sum into the mean over the whole batch
  double share = 1;            // share of a step that the update stands for
  double rate_factor = 1;      // additional factor on the learning rate
  int64_t staleness = 0;       // in steps, see StalenessGate
};

// Tracks the pushes for the chunks of one shard, and the ranks that are owed an answer. Requires:
// ranks and chunks are valid. Steps come from peers and are checked here. A push goes through
// Admit() and, if that returns kTake, through either Arrived() or Lost().
//
// (chunk, rank, step) identifies a push. No gate applies a push twice (I2). Each push that a gate
// takes becomes part of an update, except late pushes with backup workers (I1). Versions never
// decrease (I7). docs/how_a_job_survives.md lists these invariants.
//
// Thread-compatible. Has no clock, I/O or lock. Nothing is allocated after construction.
class Gate {
 public:
  virtual ~Gate() = default;

  // Sets the length of the job. No update is due before this call.
  void Start(int64_t total_steps) { total_steps_ = total_steps; }

  // Decides about a push. kTake means that its payload is under way.
  virtual PushFate Admit(LocalChunk chunk, Rank rank, int64_t step) = 0;
  // Records that the payload of an admitted push is here. Returns kTake, or kLate if its step was
  // closed in the meantime.
  virtual PushFate Arrived(LocalChunk chunk, Rank rank) = 0;
  // Records that the push will not arrive or is no gradient. The rank may send it again.
  virtual void Lost(LocalChunk chunk, Rank rank) = 0;
  // True between Admit(), if it returned kTake, and Arrived() or Lost().
  virtual bool IsPlacing(LocalChunk chunk, Rank rank) const = 0;

  // Returns the chunk's next update. It is valid until the next non-const call.
  virtual ChunkUpdate NextUpdate(LocalChunk chunk) const = 0;
  // Records that the update returned by NextUpdate() was applied.
  virtual void Updated(LocalChunk chunk) = 0;
  // Calls answer(rank) for every rank that is owed the chunk's value and may have it now, as a
  // PARAMS of AnswerStep(). These ranks are no longer owed an answer.
  virtual void TakeAnswers(LocalChunk chunk, absl::FunctionRef<void(Rank rank)> answer) = 0;

  // Returns whether a push that was not taken is answered now. If false, its answer is still to
  // come.
  virtual bool AnswersAgain(LocalChunk chunk, Rank rank, int64_t step) const = 0;
  virtual FetchFate Fetch(LocalChunk chunk, Rank rank, int64_t step) = 0;
  // The step of the current value, as the rank counts steps.
  virtual int64_t AnswerStep(LocalChunk chunk, Rank rank) const = 0;

  // The chunk contains every rank's pushes of all steps before this one, except late pushes.
  virtual int64_t version(LocalChunk chunk) const = 0;
  // The lowest version of the chunk that still exists: the current one or the one before.
  virtual int64_t oldest(LocalChunk chunk) const { return version(chunk); }
  // Returns whether a chunk may stop at this version.
  virtual bool IsVersion(int64_t /*step*/) const { return true; }
  // One past the last step that has a push in the chunk.
  virtual int64_t furthest(LocalChunk chunk) const { return version(chunk); }
  // Returns the number of updates from the first step of the generation to `version`.
  virtual int64_t UpdatesUntil(int64_t version) const = 0;
  // Returns the number of updates that the chunk has had in this generation.
  virtual int64_t updates(LocalChunk chunk) const { return UpdatesUntil(version(chunk)); }
  // The number of pushes that came after their step was closed, or were not part of its set.
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
