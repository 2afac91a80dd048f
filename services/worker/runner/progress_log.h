// Step and evaluation records that the coordinator has not acknowledged yet.
#pragma once

#include <cstdint>
#include <deque>
#include <iterator>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "lib/limits/limits.h"
#include "proto/muster/v1/coordinator.pb.h"

namespace muster {

// Keeps records in the order of their steps until the coordinator acknowledges them. A coordinator
// that was unreachable therefore misses none. Thread-safe.
class ProgressLog {
 public:
  explicit ProgressLog(int64_t capacity = limits::kStepRecordsHeldMax) : capacity_(capacity) {}

  // Appends a record. Blocks while the log is full: training waits so that no record is lost.
  // Returns CANCELLED after Close().
  absl::Status Append(v1::StepRecord record) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Append(v1::EvaluationRecord record) ABSL_LOCKS_EXCLUDED(mu_);

  // Appends the record without a wait. Returns false if the log is full.
  bool TryAppend(v1::EvaluationRecord record) ABSL_LOCKS_EXCLUDED(mu_);

  // Removes the acknowledged records.
  void Acknowledge(const v1::Acknowledge& acknowledge) ABSL_LOCKS_EXCLUDED(mu_);

  // Adds unacknowledged records to `report`, at most limits::kStepRecordsReportedMax: steps before
  // evaluations, the oldest first. The limit keeps the first report to a returning coordinator
  // small.
  void AddTo(v1::JobReport& report) const ABSL_LOCKS_EXCLUDED(mu_);

  // Ends all waits in Append(). Records stay reported until they are acknowledged.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return std::ssize(steps_) + std::ssize(evaluations_) < capacity_;
  }
  absl::Status AwaitRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int64_t capacity_;
  mutable absl::Mutex mu_;
  std::deque<v1::StepRecord> steps_ ABSL_GUARDED_BY(mu_);
  std::deque<v1::EvaluationRecord> evaluations_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace muster
