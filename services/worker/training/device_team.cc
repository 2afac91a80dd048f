#include "services/worker/training/device_team.h"

#include "glog/logging.h"
#include "lib/status/status.h"

namespace muster {

namespace {

int Severity(const absl::Status& result) {
  if (result.ok()) return 0;
  if (absl::IsAborted(result)) return 1;
  return ReasonOf(result) == "DEVICE_LOST" ? 3 : 2;
}

}  // namespace

DeviceTeam::DeviceTeam(int devices) : results_(devices), barrier_(devices + 1) {
  for (int device = 0; device < devices; ++device) {
    threads_.emplace_back([this, device] { Drive(device); });
  }
}

DeviceTeam::~DeviceTeam() { barrier_.Abort(absl::CancelledError("the team is dismissed")); }

absl::Status DeviceTeam::Run(Task task) {
  task_ = &task;
  log_scope_ = LogScope::Innermost();
  // The first barrier publishes the task to the device threads. The second one publishes their
  // results to this thread after all of them are done.
  CHECK(barrier_.Await().ok());
  CHECK(barrier_.Await().ok());
  absl::Status worst;
  for (const absl::Status& result : results_) {
    if (Severity(result) > Severity(worst)) worst = result;
  }
  return worst;
}

void DeviceTeam::Drive(int device) {
  while (barrier_.Await().ok()) {
    {
      const LogScope scope(log_scope_);
      results_[device] = (*task_)(device);
    }
    if (!barrier_.Await().ok()) return;
  }
}

}  // namespace muster
