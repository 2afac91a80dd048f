// How many models are imported, or data sets checked, at once.
#pragma once

#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace muster {

// An import holds a model's values in memory, gigabytes of a large one, and a check of data up to
// limits::kDataCheckBytesMax of them: a few users at once must not take the coordinator's memory
// from its jobs. Thread-safe; outlives its slots.
class ImportGate {
 public:
  explicit ImportGate(int slots) : free_(slots) {}

  // The right to import, while it exists.
  class Slot {
   public:
    explicit Slot(ImportGate* gate) : gate_(gate) {}
    ~Slot();
    Slot(const Slot&) = delete;
    Slot& operator=(const Slot&) = delete;

   private:
    ImportGate* const gate_;
  };

  // Waits until there is one; CANCELLED once `caller_gone`, which is asked several times a second;
  // DEADLINE_EXCEEDED where none has come free for `patience`.
  absl::StatusOr<std::unique_ptr<Slot>> Enter(const std::function<bool()>& caller_gone,
                                              absl::Duration patience = absl::InfiniteDuration())
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Mutex mu_;
  int free_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
