// Limits how many models are imported, or data sets checked, at once.
#pragma once

#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace muster {

// An import holds a model's values in memory, which may be gigabytes. A check of data holds up to
// limits::kDataCheckBytesMax. A few concurrent users must not take the coordinator's memory from
// its jobs.
// Thread-safe. Must outlive its slots.
class ImportGate {
 public:
  explicit ImportGate(int slots) : free_(slots) {}

  // The right of one caller to import. The slot is free again after the last copy.
  using Slot = std::shared_ptr<void>;

  // Blocks until a slot is free. Returns CANCELLED if `caller_gone` returns true; it is called
  // several times a second. Returns DEADLINE_EXCEEDED after `patience`.
  absl::StatusOr<Slot> Enter(const std::function<bool()>& caller_gone,
                             absl::Duration patience = absl::InfiniteDuration())
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Leave() ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  int free_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
