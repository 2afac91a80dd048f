#include "lib/shard/staleness_gate.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "glog/logging.h"

namespace muster {

StalenessGate::StalenessGate(Options options)
    : options_(std::move(options)),
      ranks_(options_.shares.size()),
      chunks_(options_.chunks, {.version = options_.first_step, .furthest = options_.first_step}),
      seats_(options_.chunks * options_.shares.size(), {.step = options_.first_step}) {
  std::iota(ranks_.begin(), ranks_.end(), 0);
}

PushFate StalenessGate::Admit(int chunk, int rank, int64_t step) {
  Seat& seat = SeatOf(chunk, rank);
  if (step == seat.step - 1 && step >= options_.first_step) return PushFate::kRepeat;
  if (step != seat.step || seat.answer_owed || step == total_steps_) return PushFate::kWrongStep;
  if (seat.state != PushState::kAwaited) return PushFate::kRepeat;
  seat.state = PushState::kPlacing;
  return PushFate::kTake;
}

PushFate StalenessGate::Arrived(int chunk, int rank) {
  CHECK(IsPlacing(chunk, rank));
  SeatOf(chunk, rank).state = PushState::kIn;
  ++chunks_[chunk].pushes_in;
  return PushFate::kTake;
}

void StalenessGate::Lost(int chunk, int rank) {
  CHECK(IsPlacing(chunk, rank));
  SeatOf(chunk, rank).state = PushState::kAwaited;
}

bool StalenessGate::IsPlacing(int chunk, int rank) const {
  return SeatOf(chunk, rank).state == PushState::kPlacing;
}

// A chunk has a push in only when one is due.
int StalenessGate::RankOfNext(int chunk) const {
  int next = -1;
  for (const int rank : ranks_) {
    const Seat& seat = SeatOf(chunk, rank);
    if (seat.state != PushState::kIn) continue;
    if (next < 0 || seat.step < SeatOf(chunk, next).step) next = rank;
  }
  return next;
}

ChunkUpdate StalenessGate::NextUpdate(int chunk) const {
  if (chunks_[chunk].pushes_in == 0) return {};
  const int rank = RankOfNext(chunk);
  const Seat& seat = SeatOf(chunk, rank);
  if (seat.step >= total_steps_) return {};
  const int64_t staleness = (chunks_[chunk].updates - seat.updates_seen) / ranks();
  const double share = options_.shares[rank];
  return {.ranks = absl::MakeConstSpan(ranks_).subspan(rank, 1),
          .step = seat.step,
          .gradient_factor = 1 / share,
          .share = share,
          .rate_factor = options_.aware ? 1 / (1.0 + static_cast<double>(staleness)) : 1,
          .staleness = staleness};
}

void StalenessGate::Updated(int chunk) {
  Chunk& c = chunks_[chunk];
  Seat& seat = SeatOf(chunk, RankOfNext(chunk));
  seat.state = PushState::kAwaited;
  seat.answer_owed = true;
  ++seat.step;
  --c.pushes_in;
  ++c.updates;
  c.furthest = std::max(c.furthest, seat.step);
  const Seat* const seats = &SeatOf(chunk, 0);
  c.version = std::min_element(seats, seats + ranks(), [](const Seat& a, const Seat& b) {
                return a.step < b.step;
              })->step;
}

void StalenessGate::TakeAnswers(int chunk, absl::FunctionRef<void(int rank)> answer) {
  const Chunk& c = chunks_[chunk];
  for (const int rank : ranks_) {
    Seat& seat = SeatOf(chunk, rank);
    if (!seat.answer_owed || !Admits(c, seat)) continue;
    seat.answer_owed = false;
    seat.updates_seen = c.updates;
    answer(rank);
  }
}

bool StalenessGate::AnswersAgain(int chunk, int rank, int64_t step) const {
  const Seat& seat = SeatOf(chunk, rank);
  return step == seat.step - 1 && !seat.answer_owed;
}

FetchFate StalenessGate::Fetch(int chunk, int rank, int64_t step) {
  const Seat& seat = SeatOf(chunk, rank);
  if (step != seat.step) return FetchFate::kWrongStep;
  return seat.answer_owed ? FetchFate::kLater : FetchFate::kCurrent;
}

}  // namespace muster
