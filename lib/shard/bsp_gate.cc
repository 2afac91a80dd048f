#include "lib/shard/bsp_gate.h"

#include <algorithm>
#include <numeric>

#include "glog/logging.h"

namespace muster {

BspGate::BspGate(const Options& options)
    : rounds_(options.rounds),
      ranks_(options.ranks),
      chunks_(options.chunks, {.version = options.rounds.first_step}),
      states_(static_cast<size_t>(options.chunks) * options.ranks, PushState::kAwaited) {
  std::iota(ranks_.begin(), ranks_.end(), 0);
}

RoundSchedule BspGate::rounds() const {
  RoundSchedule rounds = rounds_;
  rounds.total_steps = total_steps_;
  return rounds;
}

bool BspGate::IsVersion(int64_t step) const { return rounds().IsVersion(step); }

PushFate BspGate::Admit(int chunk, int rank, int64_t step) {
  const Chunk& c = chunks_[chunk];
  if (step == c.previous && step >= rounds_.first_step) return PushFate::kRepeat;
  if (step != c.version || step == total_steps_) return PushFate::kWrongStep;
  PushState& state = StateOf(chunk, rank);
  if (state != PushState::kAwaited) return PushFate::kRepeat;
  state = PushState::kPlacing;
  return PushFate::kTake;
}

PushFate BspGate::Arrived(int chunk, int rank) {
  CHECK(IsPlacing(chunk, rank));
  StateOf(chunk, rank) = PushState::kIn;
  ++chunks_[chunk].pushes_in;
  return PushFate::kTake;
}

void BspGate::Lost(int chunk, int rank) {
  CHECK(IsPlacing(chunk, rank));
  StateOf(chunk, rank) = PushState::kAwaited;
}

bool BspGate::IsPlacing(int chunk, int rank) const {
  return states_[chunk * ranks_.size() + rank] == PushState::kPlacing;
}

ChunkUpdate BspGate::NextUpdate(int chunk) const {
  const Chunk& c = chunks_[chunk];
  if (c.pushes_in < std::ssize(ranks_) || c.version >= total_steps_) return {};
  return {.ranks = ranks_, .step = c.version};
}

void BspGate::Updated(int chunk) {
  Chunk& c = chunks_[chunk];
  c.previous = c.version;
  c.version = rounds().EndAfter(c.version);
  c.pushes_in = 0;
  c.answers_owed = true;
  std::fill_n(&StateOf(chunk, 0), ranks_.size(), PushState::kAwaited);
}

void BspGate::TakeAnswers(int chunk, absl::FunctionRef<void(int rank)> answer) {
  if (!chunks_[chunk].answers_owed) return;
  chunks_[chunk].answers_owed = false;
  for (const int rank : ranks_) answer(rank);
}

bool BspGate::AnswersAgain(int chunk, int /*rank*/, int64_t step) const {
  return step == chunks_[chunk].previous;
}

FetchFate BspGate::Fetch(int chunk, int /*rank*/, int64_t step) {
  const Chunk& c = chunks_[chunk];
  if (step == c.version) return FetchFate::kCurrent;
  return step == c.previous && step >= rounds_.first_step ? FetchFate::kPrevious
                                                          : FetchFate::kWrongStep;
}

int64_t BspGate::AnswerStep(int chunk, int /*rank*/) const { return chunks_[chunk].version; }

}  // namespace muster
