#include "lib/shard/core/snapshot_queue.h"

#include <algorithm>

#include "glog/logging.h"

namespace muster {

void SnapshotQueue::Start(int64_t first_step, int64_t total_steps) {
  due_.total_steps = total_steps;
  if (first_step == total_steps) {
    waiting_.push_back({0, total_steps});  // the job was resumed at its end
  } else {
    Plan(first_step);
  }
}

// Begin() plans the next periodic or final snapshot, so at most one of them waits.
void SnapshotQueue::Plan(int64_t after) {
  if (after < due_.total_steps) waiting_.push_back({0, due_.EndAfter(after)});
}

bool SnapshotQueue::Knows(uint64_t id) const {
  return id == last_answered_ || (current_ && current_->id == id) ||
         std::any_of(waiting_.begin(), waiting_.end(),
                     [id](const Request& request) { return request.id == id; });
}

void SnapshotQueue::Demand(uint64_t id, int64_t step) {
  auto superseded = std::remove_if(waiting_.begin(), waiting_.end(),
                                   [](const Request& request) { return request.id != 0; });
  waiting_.erase(superseded, waiting_.end());
  waiting_.push_back({id, step});
}

int64_t SnapshotQueue::next_step() const {
  int64_t step = kNoBarrier;
  for (const Request& request : waiting_) step = std::min(step, request.step);
  return step;
}

int64_t SnapshotQueue::Barrier(LocalChunk index) const {
  const bool awaited = current_ && held_[index] == 0;
  return awaited ? std::min(current_->step, next_step()) : next_step();
}

bool SnapshotQueue::Begin(int64_t highest) {
  if (current_ || waiting_.empty()) return false;
  const auto first = std::min_element(waiting_.begin(), waiting_.end(), Before);
  if (first->step > highest) return false;
  current_ = *first;
  waiting_.erase(first);
  if (current_->id == 0) Plan(current_->step);
  std::fill(held_.begin(), held_.end(), 0);
  chunks_held_ = 0;
  return true;
}

bool SnapshotQueue::Wants(LocalChunk index, int64_t version) const {
  return current_ && current_->step == version && held_[index] == 0;
}

bool SnapshotQueue::Held(LocalChunk index) {
  CHECK(current_ && held_[index] == 0);
  held_[index] = 1;
  return ++chunks_held_ == held_.size();
}

std::optional<SnapshotQueue::Request> SnapshotQueue::PassOver(int64_t highest) {
  if (!taken() || next_step() > highest || next_step() >= due_.total_steps) return std::nullopt;
  const auto first = std::min_element(waiting_.begin(), waiting_.end(), Before);
  const Request passed = *first;
  waiting_.erase(first);
  if (passed.id == 0) {
    Plan(passed.step);
  } else {
    Decline(passed.id);
  }
  return passed;
}

bool SnapshotQueue::Written(uint64_t id, int64_t step) {
  if (!taken() || current_->id != id || current_->step != step) return false;
  if (id != 0) last_answered_ = id;
  current_.reset();
  return true;
}

}  // namespace muster
