// Reads batches ahead of their use, in order.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lib/data/pipeline/decode_pool.h"

namespace muster {

// Batches have the numbers `first`, `first` + 1, ... Batch b uses slot b mod `slots` of memory that
// the owner keeps. A pool reads each batch in parts, and begins a batch when its slot is free.
// Thread-compatible, except is_read().
class BatchRing {
 public:
  struct Options {
    DecodePool* pool = nullptr;  // outlives the ring
    int slots = 0;               // including the one in use; >= 1
    int64_t first = 0;
    int64_t end = std::numeric_limits<int64_t>::max();  // there are no batches from this one on
    // Prepares the slot of a batch, and returns the number of its parts, >= 1.
    std::function<int64_t(int64_t batch)> begin;
    // Reads one part. Several threads call it.
    std::function<absl::Status(int64_t batch, int64_t part)> read;
    // Called after the last part of a batch, on the thread that read it. May be empty.
    std::function<void(int64_t batch)> ended = {};
  };
  explicit BatchRing(Options options);

  // Frees the slot of the batch before. Blocks until the next batch is read. If parts failed,
  // returns the error of the first one, in this call and in all later ones.
  absl::Status Next() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the number of the batch that the next call of Next() awaits.
  int64_t next() const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the steady time at which the last part of the batch next() - 1 ended. Requires: Next()
  // has returned that batch.
  absl::Duration read_at() const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns whether the batch next() is read without an error.
  bool is_read() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Slot {
    int64_t batch = -1;
    int64_t parts_left = 0;
    int64_t failed_part = std::numeric_limits<int64_t>::max();
    absl::Status status;     // of failed_part
    absl::Duration read_at;  // once no parts are left
  };

  void BeginBatches();
  void ReadPart(int64_t batch, int64_t part) ABSL_LOCKS_EXCLUDED(mu_);
  void PartEnded(int64_t batch) ABSL_LOCKS_EXCLUDED(mu_);
  Slot& SlotOf(int64_t batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return slots_[batch % slots_.size()];
  }
  bool IsRead(int64_t batch) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  mutable absl::Mutex mu_;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mu_);
  int64_t next_ ABSL_GUARDED_BY(mu_);
  int64_t begun_before_;     // batches before this one have begun; used by the caller's thread
  DecodePool::Queue queue_;  // last, because its parts use all of the above
};

}  // namespace muster
