// What a worker has to tell about its steps until the coordinator has heard it.
#pragma once

#include <cstdint>
#include <deque>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "lib/limits/limits.h"
#include "proto/muster/v1/coordinator.pb.h"

namespace muster {

// Records in order of their steps, kept until acknowledged, so that a coordinator that was away
// misses none. Thread-safe.
class ProgressLog {
 public:
  explicit ProgressLog(int64_t capacity = limits::kStepRecordsHeldMax) : capacity_(capacity) {}

  // Waits for room: training stops rather than forgets. CANCELLED after Close().
  absl::Status Append(v1::StepRecord record) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Append(v1::EvaluationRecord record) ABSL_LOCKS_EXCLUDED(mu_);

  // Forgets what the coordinator has.
  void Acknowledge(const v1::Acknowledge& acknowledge) ABSL_LOCKS_EXCLUDED(mu_);

  // Adds what is not acknowledged, the oldest first: limits::kStepRecordsReportedMax records at
  // most, so that a report stays small when a coordinator that was away comes back.
  void AddTo(v1::JobReport& report) const ABSL_LOCKS_EXCLUDED(mu_);

  void Close() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Status AwaitRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int64_t capacity_;
  mutable absl::Mutex mu_;
  std::deque<v1::StepRecord> steps_ ABSL_GUARDED_BY(mu_);
  std::deque<v1::EvaluationRecord> evaluations_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace muster
