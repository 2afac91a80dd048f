#include "lib/shard/gate/backup_gate.h"

#include <algorithm>
#include <numeric>

#include "glog/logging.h"
#include "lib/shard/gate/rank_set.h"

namespace muster {

BackupGate::BackupGate(const Options& options)
    : trained_chunks_(options.trained_chunks),
      samples_(options.samples),
      first_step_(options.first_step),
      chunks_(options.chunks, {.version = options.first_step}),
      seats_(options.chunks, options.samples.size()),
      open_step_(options.first_step),
      chunks_behind_(options.trained_chunks),
      pushes_in_(options.samples.size()),
      arrived_(RankSet::WordsFor(options.samples.size())) {
  set_.reserve(options.samples.size());
}

PushFate BackupGate::Admit(LocalChunk chunk, Rank rank, int64_t step) {
  Seat& seat = seats_(chunk, rank);
  const int64_t version = chunks_[chunk].version;
  if (step < first_step_ || step > version || step == total_steps_) return PushFate::kWrongStep;
  if (step < version) {
    if (step <= seat.last_step) return PushFate::kRepeat;
    CountLate(seat, step);
    return PushFate::kLate;
  }
  if (seat.state != PushState::kAwaited) return PushFate::kRepeat;
  seat.state = PushState::kPlacing;
  seat.step = step;
  return PushFate::kTake;
}

PushFate BackupGate::Arrived(LocalChunk chunk, Rank rank) {
  CHECK(IsPlacing(chunk, rank));
  Seat& seat = seats_(chunk, rank);
  if (seat.step < chunks_[chunk].version) {
    seat.state = PushState::kAwaited;
    CountLate(seat, seat.step);
    return PushFate::kLate;
  }
  seat.state = PushState::kIn;
  seat.last_step = seat.step;
  seat.answer_owed = true;
  // A worker pushes a step only after every chunk has its version. A push beyond the open step
  // comes from a faulty peer and does not count.
  if (seat.step == open_step_ && ++pushes_in_[rank] == trained_chunks_) {
    RankSet::Add(absl::MakeSpan(arrived_), rank);
  }
  return PushFate::kTake;
}

void BackupGate::Lost(LocalChunk chunk, Rank rank) {
  CHECK(IsPlacing(chunk, rank));
  seats_(chunk, rank).state = PushState::kAwaited;
}

bool BackupGate::IsPlacing(LocalChunk chunk, Rank rank) const {
  return seats_(chunk, rank).state == PushState::kPlacing;
}

void BackupGate::CountLate(Seat& seat, int64_t step) {
  seat.last_step = step;
  ++late_pushes_;
}

// Rejects a set that the pushes cannot satisfy: the decision arrives in a message.
bool BackupGate::Close(int64_t step, absl::Span<const uint64_t> set) {
  if (step != open_step_ || closed_ || chunks_behind_ == 0) return false;
  const RankSet members(set), arrived(arrived_);
  if (set.size() != arrived_.size() || members.size() == 0) return false;
  int64_t samples = 0;
  set_.clear();
  for (const Rank rank : ranks()) {
    if (!members.Has(rank)) continue;
    if (!arrived.Has(rank)) return false;
    set_.push_back(rank);
    samples += samples_[rank];
  }
  const auto batch = std::accumulate(samples_.begin(), samples_.end(), int64_t{0});
  // The sum lacks the samples of late ranks; the factor scales it to the mean over the whole batch.
  factor_ = static_cast<double>(batch) / static_cast<double>(samples);
  closed_ = true;
  return true;
}

ChunkUpdate BackupGate::NextUpdate(LocalChunk chunk) const {
  const int64_t version = chunks_[chunk].version;
  if (!closed_ || version != open_step_ || version >= total_steps_) return {};
  return {.ranks = set_, .step = version, .gradient_factor = factor_};
}

void BackupGate::Updated(LocalChunk chunk) {
  Chunk& c = chunks_[chunk];
  CHECK(closed_ && c.version == open_step_);
  ++c.version;
  c.updated = true;
  auto member = set_.begin();
  for (const Rank rank : ranks()) {
    const bool in_set = member != set_.end() && *member == rank;
    if (in_set) ++member;
    Seat& seat = seats_(chunk, rank);
    if (seat.state != PushState::kIn) continue;  // a push still under way will be late
    seat.state = PushState::kAwaited;
    if (!in_set) ++late_pushes_;
  }
  if (--chunks_behind_ == 0) OpenNextStep();
}

void BackupGate::OpenNextStep() {
  ++open_step_;
  chunks_behind_ = trained_chunks_;
  closed_ = false;
  std::fill(pushes_in_.begin(), pushes_in_.end(), 0);
  std::fill(arrived_.begin(), arrived_.end(), 0);
}

void BackupGate::TakeAnswers(LocalChunk chunk, absl::FunctionRef<void(Rank rank)> answer) {
  if (!chunks_[chunk].updated) return;
  chunks_[chunk].updated = false;
  for (const Rank rank : ranks()) {
    Seat& seat = seats_(chunk, rank);
    if (!seat.answer_owed) continue;
    seat.answer_owed = false;
    answer(rank);
  }
}

bool BackupGate::AnswersAgain(LocalChunk chunk, Rank /*rank*/, int64_t step) const {
  return step < chunks_[chunk].version;
}

FetchFate BackupGate::Fetch(LocalChunk chunk, Rank rank, int64_t step) {
  const int64_t version = chunks_[chunk].version;
  const bool ends_before = total_steps_ != kNotStarted && step > total_steps_;
  if (step < first_step_ || ends_before) return FetchFate::kWrongStep;
  if (step == version - 1) return FetchFate::kPrevious;
  if (step <= version) return FetchFate::kCurrent;
  seats_(chunk, rank).answer_owed = true;
  return FetchFate::kLater;
}

}  // namespace muster
