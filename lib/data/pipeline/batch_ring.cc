#include "lib/data/pipeline/batch_ring.h"

#include <algorithm>
#include <utility>

#include "glog/logging.h"
#include "lib/concurrency/steady_wait.h"

namespace muster {

BatchRing::BatchRing(Options options)
    : options_(std::move(options)),
      slots_(options_.slots),
      next_(options_.first),
      begun_before_(options_.first),
      queue_(*options_.pool) {
  CHECK_GE(options_.slots, 1);
  BeginBatches();
}

absl::Status BatchRing::Next() {
  BeginBatches();
  absl::MutexLock lock(&mu_);
  CHECK_LT(next_, options_.end);
  auto read = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return IsRead(next_); };
  mu_.Await(absl::Condition(&read));
  const absl::Status& status = SlotOf(next_).status;
  if (status.ok()) ++next_;
  return status;
}

int64_t BatchRing::next() const {
  absl::MutexLock lock(&mu_);
  return next_;
}

absl::Duration BatchRing::read_at() const {
  absl::MutexLock lock(&mu_);
  return slots_[(next_ - 1) % slots_.size()].read_at;
}

bool BatchRing::is_read() const {
  absl::MutexLock lock(&mu_);
  return IsRead(next_) && slots_[next_ % slots_.size()].status.ok();
}

bool BatchRing::IsRead(int64_t batch) const {
  const Slot& slot = slots_[batch % slots_.size()];
  return slot.batch == batch && slot.parts_left == 0;
}

// Begins every batch that has a free slot: the caller uses no batch before next_ any more.
void BatchRing::BeginBatches() {
  const int64_t end = std::min(next() + options_.slots, options_.end);
  for (; begun_before_ < end; ++begun_before_) {
    const int64_t batch = begun_before_;
    const int64_t parts = options_.begin(batch);
    CHECK_GE(parts, 1);
    {
      absl::MutexLock lock(&mu_);
      SlotOf(batch) = {.batch = batch, .parts_left = parts};
    }
    queue_.Add(
        parts, [this, batch](int64_t part) { ReadPart(batch, part); },
        [this, batch] { PartEnded(batch); });
  }
}

// Skips parts after one that failed: their batch is of no use.
void BatchRing::ReadPart(int64_t batch, int64_t part) {
  bool is_needed;
  {
    absl::MutexLock lock(&mu_);
    is_needed = part < SlotOf(batch).failed_part;
  }
  if (!is_needed) return;
  absl::Status status = options_.read(batch, part);
  if (status.ok()) return;
  absl::MutexLock lock(&mu_);
  Slot& slot = SlotOf(batch);
  if (part >= slot.failed_part) return;
  slot.failed_part = part;
  slot.status = std::move(status);
}

void BatchRing::PartEnded(int64_t batch) {
  bool was_last;
  {
    absl::MutexLock lock(&mu_);
    Slot& slot = SlotOf(batch);
    was_last = --slot.parts_left == 0;
    if (was_last) slot.read_at = SteadyNow();
  }
  if (was_last && options_.ended) options_.ended(batch);
}

}  // namespace muster
