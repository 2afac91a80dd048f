#include "services/coordinator/checkpoints/checkpoint_rounds.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "lib/status/status.h"

namespace muster {

absl::Status CheckpointNotWanted(const CheckpointRound& round) {
  return WithReason(
      absl::FailedPreconditionError(absl::StrCat(round.plan().job(), ": the checkpoint of step ",
                                                 round.step(), " is no longer needed")),
      "STALE_SNAPSHOT");
}

void CheckpointRounds::Begin() {
  abandoned_.clear();
  committed_.clear();
  stream_only_ = false;
}

absl::StatusOr<std::shared_ptr<CheckpointRound>> CheckpointRounds::Join(
    Key key, const std::function<CheckpointRound::Options()>& make) {
  if (abandoned_.contains(key)) {
    return WithReason(absl::FailedPreconditionError(absl::StrCat(
                          "the checkpoint of step ", key.step, " could not be written")),
                      "CHECKPOINT_ABANDONED");
  }
  std::shared_ptr<CheckpointRound>& round = open_[key];
  if (round == nullptr) round = std::make_shared<CheckpointRound>(make());
  return round;
}

bool CheckpointRounds::IsOpen(const CheckpointRound& round) const {
  auto it = open_.find({round.step(), round.snapshot()});
  return it != open_.end() && it->second.get() == &round;
}

std::vector<std::shared_ptr<CheckpointRound>> CheckpointRounds::PeriodicBefore(int64_t step) const {
  std::vector<std::shared_ptr<CheckpointRound>> rounds;
  for (const auto& [key, round] : open_) {
    if (key.snapshot == 0 && key.step < step) rounds.push_back(round);
  }
  return rounds;
}

CheckpointRounds::Open::iterator CheckpointRounds::End(Open::iterator round, absl::Status outcome) {
  ended_.push_back({std::move(round->second), std::move(outcome)});
  return open_.erase(round);
}

void CheckpointRounds::Commit(int64_t step) {
  auto it = open_.lower_bound({step, 0});
  while (it != open_.end() && it->first.step == step) it = End(it, absl::OkStatus());
  committed_.insert(step);
}

bool CheckpointRounds::Abandon(Key key, const absl::Status& why) {
  const auto it = open_.find(key);
  if (it == open_.end() && HasCommitted(key.step)) return false;
  if (it != open_.end()) End(it, why);
  return abandoned_.insert(key).second;
}

void CheckpointRounds::DropUnwanted(const std::function<bool(uint64_t snapshot)>& wants) {
  for (auto it = open_.begin(); it != open_.end();) {
    it = wants(it->first.snapshot) ? std::next(it) : End(it, CheckpointNotWanted(*it->second));
  }
}

void CheckpointRounds::Clear() {
  for (auto it = open_.begin(); it != open_.end();) it = End(it, CheckpointNotWanted(*it->second));
  Begin();
}

}  // namespace muster
