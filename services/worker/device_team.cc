#include "services/worker/device_team.h"

#include "glog/logging.h"

namespace muster {

DeviceTeam::DeviceTeam(int devices) : results_(devices), barrier_(devices + 1) {
  for (int device = 0; device < devices; ++device) {
    threads_.emplace_back([this, device] { Drive(device); });
  }
}

DeviceTeam::~DeviceTeam() { barrier_.Abort(absl::CancelledError("the team is dismissed")); }

absl::Status DeviceTeam::Run(Task task) {
  task_ = &task;
  // Met twice: the devices have seen the task when they begin, and their results are seen here when
  // all of them are done.
  CHECK(barrier_.Await().ok());
  CHECK(barrier_.Await().ok());
  absl::Status worst;
  for (const absl::Status& result : results_) {
    if (worst.ok() || (absl::IsAborted(worst) && !result.ok())) worst = result;
  }
  return worst;
}

void DeviceTeam::Drive(int device) {
  while (barrier_.Await().ok()) {
    results_[device] = (*task_)(device);
    if (!barrier_.Await().ok()) return;
  }
}

}  // namespace muster
