// Limits the memory of all shards of this process, and allocates it.
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

// Returns half of the machine's memory, or half of the smallest limit of this process's cgroups if
// that is less. `root` is the folder that contains /proc and /sys; tests set it.
int64_t DefaultMemoryBytes(const std::string& root = "");

// Counts the bytes that the shards of this process reserve. Thread-safe. Must outlive its
// reservations.
class MemoryBudget {
 public:
  explicit MemoryBudget(int64_t capacity_bytes) : capacity_(capacity_bytes) {}

  // One job's share of the budget. The destructor returns it.
  class Reservation {
   public:
    Reservation(MemoryBudget* budget, int64_t bytes) : budget_(budget), bytes_(bytes) {}
    Reservation(const Reservation&) = delete;
    Reservation& operator=(const Reservation&) = delete;
    ~Reservation();

    // Announces that the memory will be returned soon. Reserve() then waits for it instead of
    // failing.
    void Retire();

   private:
    friend class MemoryBudget;
    MemoryBudget* const budget_;
    const int64_t bytes_;
    bool retired_ = false;  // guarded by budget_->mu_
  };

  // Reserves `bytes`. Waits up to `unannounced` for any reservation to end, then up to `patience`
  // while retired reservations would free enough. Returns RESOURCE_EXHAUSTED (reason
  // "MEMORY_EXHAUSTED") if there is still too little memory. Returns CANCELLED and reserves nothing
  // if `stop` was requested.
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

// Rounds up to whole cache lines, so that the next object in a slab begins at a cache line.
constexpr int64_t RoundedToLines(int64_t bytes) {
  constexpr int64_t kLineBytes = 64;
  return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
}

// Zeroed, page-aligned memory straight from the operating system, in huge pages if it has any.
// Holds its job's reservation, so the budget gets the memory back only when it is really free.
class Slab {
 public:
  // Returns RESOURCE_EXHAUSTED (reason "MEMORY_EXHAUSTED") if the memory cannot be mapped.
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
