#include "services/worker/runner/progress_log.h"

#include <utility>

#include "glog/logging.h"
#include "lib/status/status.h"

namespace muster {

absl::Status ProgressLog::AwaitRoom() {
  auto room = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return closed_ || HasRoom(); };
  if (!room()) {
    LOG(WARNING) << "training waits: " << capacity_
                 << " records (kStepRecordsHeldMax) are not acknowledged by the coordinator";
    mu_.Await(absl::Condition(&room));
  }
  return closed_ ? absl::CancelledError("the job was released") : absl::OkStatus();
}

absl::Status ProgressLog::Append(v1::StepRecord record) {
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(AwaitRoom());
  steps_.push_back(std::move(record));
  return absl::OkStatus();
}

absl::Status ProgressLog::Append(v1::EvaluationRecord record) {
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(AwaitRoom());
  evaluations_.push_back(std::move(record));
  return absl::OkStatus();
}

bool ProgressLog::TryAppend(v1::EvaluationRecord record) {
  absl::MutexLock lock(&mu_);
  if (!HasRoom()) return false;
  evaluations_.push_back(std::move(record));
  return true;
}

void ProgressLog::Acknowledge(const v1::Acknowledge& acknowledge) {
  absl::MutexLock lock(&mu_);
  while (!steps_.empty() && steps_.front().step() < acknowledge.steps_before()) {
    steps_.pop_front();
  }
  while (!evaluations_.empty() && evaluations_.front().step() < acknowledge.evaluations_before()) {
    evaluations_.pop_front();
  }
}

void ProgressLog::AddTo(v1::JobReport& report) const {
  absl::MutexLock lock(&mu_);
  int room = limits::kStepRecordsReportedMax;
  for (auto record = steps_.begin(); record != steps_.end() && room > 0; ++record, --room) {
    *report.add_steps() = *record;
  }
  for (auto record = evaluations_.begin(); record != evaluations_.end() && room > 0;
       ++record, --room) {
    *report.add_evaluations() = *record;
  }
}

void ProgressLog::Close() {
  absl::MutexLock lock(&mu_);
  closed_ = true;
}

}  // namespace muster
