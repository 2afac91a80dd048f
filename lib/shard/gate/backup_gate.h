// Synchronous training with backup workers: a step does not wait for the slowest.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "lib/shard/gate/gate.h"

namespace muster {

// A step closes with the gradients of some ranks, the same ones for all chunks of all shards:
// StepClosing, on shard 0, says which. An update of a chunk takes the pushes of those, scaled to
// the whole batch; pushes of the others are late, whether they are here already or come afterwards.
//   Source: J. Chen et al., "Revisiting distributed synchronous SGD", 2016
//
// Answered at an update is who has pushed the step, or fetched the version, before; who pushes late
// is answered with the version that there is.
//
// No chunk of a job is more than one step ahead of another: a worker pushes a step when it has all
// parameters of its version, and a step is not closed before that.
class BackupGate : public Gate {
 public:
  struct Options {
    int chunks = 0;
    int trained_chunks = 0;                 // with gradients
    NumberedVector<Rank, int64_t> samples;  // of a batch
    int64_t first_step = 0;
  };
  explicit BackupGate(const Options& options);

  PushFate Admit(LocalChunk chunk, Rank rank, int64_t step) override;
  PushFate Arrived(LocalChunk chunk, Rank rank) override;
  void Lost(LocalChunk chunk, Rank rank) override;
  bool IsPlacing(LocalChunk chunk, Rank rank) const override;
  // None before Close().
  ChunkUpdate NextUpdate(LocalChunk chunk) const override;
  void Updated(LocalChunk chunk) override;
  void TakeAnswers(LocalChunk chunk, absl::FunctionRef<void(Rank rank)> answer) override;
  bool AnswersAgain(LocalChunk chunk, Rank rank, int64_t step) const override;
  // "At least": the version asked for where it is the chunk's or the one before, the current one
  // for older ones, the next one for newer ones.
  FetchFate Fetch(LocalChunk chunk, Rank rank, int64_t step) override;
  int64_t AnswerStep(LocalChunk chunk, Rank /*rank*/) const override {
    return chunks_[chunk].version;
  }
  int64_t version(LocalChunk chunk) const override { return chunks_[chunk].version; }
  int64_t UpdatesUntil(int64_t version) const override { return version - first_step_; }
  int64_t late_pushes() const override { return late_pushes_; }

  // The step that is being gathered, or closed and not yet applied to every chunk.
  int64_t open_step() const { return open_step_; }
  // Ranks whose pushes of the open step are here, of all chunks, as a RankSet; grows.
  absl::Span<const uint64_t> arrived() const { return arrived_; }
  bool closed() const { return closed_; }
  // The open step is made of the ranks in `set`. False, and nothing happens, where that cannot be:
  // another step, closed already, or a rank whose pushes are not all here.
  bool Close(int64_t step, absl::Span<const uint64_t> set);

 private:
  enum class PushState : uint8_t { kAwaited, kPlacing, kIn };
  struct Chunk {
    int64_t version = 0;
    bool updated = false;  // since the last TakeAnswers()
  };
  struct Seat {
    int64_t step = 0;        // of the push that is under way or in
    int64_t last_step = -1;  // of a push that was taken or counted as late
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
  int chunks_behind_;                    // that the open step is not yet applied to
  NumberedVector<Rank, int> pushes_in_;  // chunks that have its push of the open step
  std::vector<uint64_t> arrived_;
  bool closed_ = false;
  std::vector<Rank> set_;  // that the open step was closed with
  double factor_ = 1;      // batch over samples of the set
};

}  // namespace muster
