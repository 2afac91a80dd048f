// Synchronous training with backup workers: a step does not wait for the slowest workers.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "lib/shard/gate/gate.h"

namespace muster {

// A step closes with the gradients of some ranks; StepClosing, on shard 0, chooses them. The set is
// the same for all chunks of all shards. An update of a chunk takes the pushes of these ranks,
// scaled to the whole batch. Pushes of other ranks are late, whether they are here already or
// arrive later.
//   Source: J. Chen et al., "Revisiting distributed synchronous SGD", 2016
//
// An update answers every rank that has pushed the step, and every rank that has fetched the new
// version before it existed. A late push is answered with the current version.
//
// No chunk of a job is more than one step ahead of another. A worker pushes a step only when it has
// all parameters of that version, and a step closes only after such pushes.
class BackupGate : public Gate {
 public:
  struct Options {
    int chunks = 0;
    int trained_chunks = 0;                 // chunks with gradients
    NumberedVector<Rank, int64_t> samples;  // per rank, of one batch
    int64_t first_step = 0;
  };
  explicit BackupGate(const Options& options);

  PushFate Admit(LocalChunk chunk, Rank rank, int64_t step) override;
  PushFate Arrived(LocalChunk chunk, Rank rank) override;
  void Lost(LocalChunk chunk, Rank rank) override;
  bool IsPlacing(LocalChunk chunk, Rank rank) const override;
  // Returns no update before Close().
  ChunkUpdate NextUpdate(LocalChunk chunk) const override;
  void Updated(LocalChunk chunk) override;
  void TakeAnswers(LocalChunk chunk, absl::FunctionRef<void(Rank rank)> answer) override;
  bool AnswersAgain(LocalChunk chunk, Rank rank, int64_t step) const override;
  // Serves the requested version if it is the current or the previous one. Serves the current
  // version for an older request, and the next one, when it exists, for a newer request.
  FetchFate Fetch(LocalChunk chunk, Rank rank, int64_t step) override;
  int64_t AnswerStep(LocalChunk chunk, Rank /*rank*/) const override {
    return chunks_[chunk].version;
  }
  int64_t version(LocalChunk chunk) const override { return chunks_[chunk].version; }
  int64_t UpdatesUntil(int64_t version) const override { return version - first_step_; }
  int64_t late_pushes() const override { return late_pushes_; }

  // The step that is being gathered, or that is closed and not yet applied to every chunk.
  int64_t open_step() const { return open_step_; }
  // The ranks that have pushed the open step for all chunks, as a RankSet. It only grows during a
  // step.
  absl::Span<const uint64_t> arrived() const { return arrived_; }
  bool closed() const { return closed_; }
  // Closes the open step with the ranks in `set`. Returns false and does nothing if `step` is not
  // the open step or is closed already, or if no chunk has gradients. Also returns false if `set`
  // is empty, has the wrong size, or has a rank with missing pushes.
  bool Close(int64_t step, absl::Span<const uint64_t> set);

 private:
  enum class PushState : uint8_t { kAwaited, kPlacing, kIn };
  struct Chunk {
    int64_t version = 0;
    bool updated = false;  // since the last TakeAnswers()
  };
  struct Seat {
    int64_t step = 0;        // of the push that is under way or has arrived
    int64_t last_step = -1;  // of the last push that was taken or counted as late
    PushState state = PushState::kAwaited;
    bool answer_owed = false;
  };

  NumbersBelow<Rank> ranks() const { return samples_.numbers(); }
  void CountLate(Seat& seat, int64_t step);
  void OpenNextStep();

  const int trained_chunks_;
  const NumberedVector<Rank, int64_t> samples_;
  const int64_t first_step_;
  NumberedVector<LocalChunk, Chunk> chunks_;
  NumberedTable<LocalChunk, Rank, Seat> seats_;
  int64_t late_pushes_ = 0;

  int64_t open_step_;
  int chunks_behind_;                    // chunks that lack the open step
  NumberedVector<Rank, int> pushes_in_;  // chunks with the rank's push of the open step
  std::vector<uint64_t> arrived_;
  bool closed_ = false;
  std::vector<Rank> set_;  // the ranks of the closed step
  double factor_ = 1;      // samples of the batch / samples of the set
};

}  // namespace muster
