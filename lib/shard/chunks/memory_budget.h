// How much memory the shards of this process may take together, and the memory itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace muster {

// Half of what the machine has, or of the smallest limit of a cgroup that this process is in, where
// that is less. `root`: where /proc and /sys lie, for tests.
int64_t DefaultMemoryBytes(const std::string& root = "");

// Thread-safe. Outlives its reservations.
class MemoryBudget {
 public:
  explicit MemoryBudget(int64_t capacity_bytes) : capacity_(capacity_bytes) {}

  // A job's share, given back by the destructor.
  class Reservation {
   public:
    Reservation(MemoryBudget* budget, int64_t bytes) : budget_(budget), bytes_(bytes) {}
    Reservation(const Reservation&) = delete;
    Reservation& operator=(const Reservation&) = delete;
    ~Reservation();

    // Announces that the memory comes back soon: whoever needs it waits instead of being refused.
    void Retire();

   private:
    friend class MemoryBudget;
    MemoryBudget* const budget_;
    const int64_t bytes_;
    bool retired_ = false;  // guarded by budget_->mu_
  };

  // RESOURCE_EXHAUSTED, reason "MEMORY_EXHAUSTED", when there is no room. Waits up to `patience`
  // where retired reservations would make room; before that, up to `unannounced`, where any that
  // are given back would. CANCELLED, and nothing is taken: `stop` was requested.
  absl::StatusOr<std::shared_ptr<Reservation>> Reserve(
      int64_t bytes, absl::Duration patience, absl::Duration unannounced = absl::ZeroDuration(),
      const std::stop_token& stop = {}) ABSL_LOCKS_EXCLUDED(mu_);

  int64_t capacity_bytes() const { return capacity_; }
  int64_t used_bytes() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const int64_t capacity_;
  mutable absl::Mutex mu_;
  int64_t used_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t retiring_ ABSL_GUARDED_BY(mu_) = 0;  // part of used_
};

// Rounded up to whole cache lines, so that what follows in a slab begins at one.
constexpr int64_t RoundedToLines(int64_t bytes) {
  constexpr int64_t kLineBytes = 64;
  return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
}

// Zeroed memory straight from the operating system, page-aligned, in huge pages where there are
// any. Holds its job's reservation, so that the budget has the memory back when it really is free.
class Slab {
 public:
  // RESOURCE_EXHAUSTED, reason "MEMORY_EXHAUSTED".
  static absl::StatusOr<std::shared_ptr<Slab>> Allocate(
      int64_t bytes, std::shared_ptr<MemoryBudget::Reservation> reservation);
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;
  ~Slab();

  absl::Span<std::byte> memory() const { return memory_; }

 private:
  Slab(absl::Span<std::byte> memory, std::shared_ptr<MemoryBudget::Reservation> reservation)
      : memory_(memory), reservation_(std::move(reservation)) {}

  const absl::Span<std::byte> memory_;
  const std::shared_ptr<MemoryBudget::Reservation> reservation_;
};

}  // namespace muster
