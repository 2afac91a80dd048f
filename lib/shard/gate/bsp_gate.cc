#include "lib/shard/gate/bsp_gate.h"

#include <algorithm>

#include "glog/logging.h"

namespace muster {

BspGate::BspGate(const Options& options)
    : rounds_(options.rounds),
      ranks_(AllRanks(options.ranks)),
      chunks_(options.chunks, {.version = options.rounds.first_step}),
      states_(options.chunks, options.ranks, PushState::kAwaited) {}

RoundSchedule BspGate::rounds() const {
  RoundSchedule rounds = rounds_;
  rounds.total_steps = total_steps_;
  return rounds;
}

int64_t BspGate::oldest(LocalChunk chunk) const {
  const Chunk& c = chunks_[chunk];
  return c.previous >= rounds_.first_step ? c.previous : c.version;
}

bool BspGate::IsVersion(int64_t step) const { return rounds().IsVersion(step); }

PushFate BspGate::Admit(LocalChunk chunk, Rank rank, int64_t step) {
  const Chunk& c = chunks_[chunk];
  if (step == c.previous && step >= rounds_.first_step) return PushFate::kRepeat;
  if (step != c.version || step == total_steps_) return PushFate::kWrongStep;
  PushState& state = states_(chunk, rank);
  if (state != PushState::kAwaited) return PushFate::kRepeat;
  state = PushState::kPlacing;
  return PushFate::kTake;
}

PushFate BspGate::Arrived(LocalChunk chunk, Rank rank) {
  CHECK(IsPlacing(chunk, rank));
  states_(chunk, rank) = PushState::kIn;
  ++chunks_[chunk].pushes_in;
  return PushFate::kTake;
}

void BspGate::Lost(LocalChunk chunk, Rank rank) {
  CHECK(IsPlacing(chunk, rank));
  states_(chunk, rank) = PushState::kAwaited;
}

bool BspGate::IsPlacing(LocalChunk chunk, Rank rank) const {
  return states_(chunk, rank) == PushState::kPlacing;
}

ChunkUpdate BspGate::NextUpdate(LocalChunk chunk) const {
  const Chunk& c = chunks_[chunk];
  if (c.pushes_in < std::ssize(ranks_) || c.version >= total_steps_) return {};
  return {.ranks = ranks_, .step = c.version};
}

void BspGate::Updated(LocalChunk chunk) {
  Chunk& c = chunks_[chunk];
  c.previous = c.version;
  c.version = rounds().EndAfter(c.version);
  c.pushes_in = 0;
  c.answers_owed = true;
  std::ranges::fill(states_.row(chunk), PushState::kAwaited);
}

void BspGate::TakeAnswers(LocalChunk chunk, absl::FunctionRef<void(Rank rank)> answer) {
  if (!chunks_[chunk].answers_owed) return;
  chunks_[chunk].answers_owed = false;
  for (const Rank rank : ranks_) answer(rank);
}

bool BspGate::AnswersAgain(LocalChunk chunk, Rank /*rank*/, int64_t step) const {
  return step == chunks_[chunk].previous;
}

FetchFate BspGate::Fetch(LocalChunk chunk, Rank /*rank*/, int64_t step) {
  const Chunk& c = chunks_[chunk];
  if (step == c.version) return FetchFate::kCurrent;
  return step == c.previous && step >= rounds_.first_step ? FetchFate::kPrevious
                                                          : FetchFate::kWrongStep;
}

int64_t BspGate::AnswerStep(LocalChunk chunk, Rank /*rank*/) const {
  return chunks_[chunk].version;
}

}  // namespace muster
