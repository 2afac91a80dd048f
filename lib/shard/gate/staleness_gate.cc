#include "lib/shard/gate/staleness_gate.h"

#include <algorithm>
#include <utility>

#include "glog/logging.h"

namespace muster {

StalenessGate::StalenessGate(Options options)
    : options_(std::move(options)),
      ranks_(AllRanks(options_.shares.size())),
      chunks_(options_.chunks, {.version = options_.first_step, .furthest = options_.first_step}),
      seats_(options_.chunks, options_.shares.size(), {.step = options_.first_step}) {}

PushFate StalenessGate::Admit(LocalChunk chunk, Rank rank, int64_t step) {
  Seat& seat = seats_(chunk, rank);
  if (step == seat.step - 1 && step >= options_.first_step) return PushFate::kRepeat;
  if (step != seat.step || seat.answer_owed || step == total_steps_) return PushFate::kWrongStep;
  if (seat.state != PushState::kAwaited) return PushFate::kRepeat;
  seat.state = PushState::kPlacing;
  return PushFate::kTake;
}

PushFate StalenessGate::Arrived(LocalChunk chunk, Rank rank) {
  CHECK(IsPlacing(chunk, rank));
  seats_(chunk, rank).state = PushState::kIn;
  ++chunks_[chunk].pushes_in;
  return PushFate::kTake;
}

void StalenessGate::Lost(LocalChunk chunk, Rank rank) {
  CHECK(IsPlacing(chunk, rank));
  seats_(chunk, rank).state = PushState::kAwaited;
}

bool StalenessGate::IsPlacing(LocalChunk chunk, Rank rank) const {
  return seats_(chunk, rank).state == PushState::kPlacing;
}

// Prefers pushes that have arrived, then the lowest step. The result has a push only if pushes_in >
// 0.
Rank StalenessGate::RankOfNext(LocalChunk chunk) const {
  const absl::Span<const Seat> seats = seats_.row(chunk);
  const auto next = std::ranges::min_element(seats, {}, [](const Seat& seat) {
    return std::pair(seat.state != PushState::kIn, seat.step);
  });
  return Rank(static_cast<int32_t>(next - seats.begin()));
}

ChunkUpdate StalenessGate::NextUpdate(LocalChunk chunk) const {
  if (chunks_[chunk].pushes_in == 0) return {};
  const Rank rank = RankOfNext(chunk);
  const Seat& seat = seats_(chunk, rank);
  if (seat.step >= total_steps_) return {};
  const int64_t staleness = (chunks_[chunk].updates - seat.updates_seen) / ranks();
  const double share = options_.shares[rank];
  return {.ranks = absl::MakeConstSpan(ranks_).subspan(ToInt(rank), 1),
          .step = seat.step,
          .gradient_factor = 1 / share,
          .share = share,
          .rate_factor = options_.aware ? 1 / (1.0 + static_cast<double>(staleness)) : 1,
          .staleness = staleness};
}

void StalenessGate::Updated(LocalChunk chunk) {
  Chunk& c = chunks_[chunk];
  Seat& seat = seats_(chunk, RankOfNext(chunk));
  seat.state = PushState::kAwaited;
  seat.answer_owed = true;
  ++seat.step;
  --c.pushes_in;
  ++c.updates;
  c.furthest = std::max(c.furthest, seat.step);
  const absl::Span<const Seat> seats = seats_.row(chunk);
  c.version = std::ranges::min_element(seats, {}, &Seat::step)->step;
}

void StalenessGate::TakeAnswers(LocalChunk chunk, absl::FunctionRef<void(Rank rank)> answer) {
  const Chunk& c = chunks_[chunk];
  for (const Rank rank : ranks_) {
    Seat& seat = seats_(chunk, rank);
    if (!seat.answer_owed || !Admits(c, seat)) continue;
    seat.answer_owed = false;
    seat.updates_seen = c.updates;
    answer(rank);
  }
}

bool StalenessGate::AnswersAgain(LocalChunk chunk, Rank rank, int64_t step) const {
  const Seat& seat = seats_(chunk, rank);
  return step == seat.step - 1 && !seat.answer_owed;
}

FetchFate StalenessGate::Fetch(LocalChunk chunk, Rank rank, int64_t step) {
  const Seat& seat = seats_(chunk, rank);
  if (step != seat.step) return FetchFate::kWrongStep;
  return seat.answer_owed ? FetchFate::kLater : FetchFate::kCurrent;
}

}  // namespace muster
