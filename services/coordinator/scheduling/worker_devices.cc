#include "services/coordinator/scheduling/worker_devices.h"

#include <algorithm>

#include "absl/strings/match.h"

namespace muster {

bool CanShareModel(const v1::Hello& worker, int degree) {
  if (degree <= 1) return true;
  const int devices = worker.devices_size();
  const auto cpus = std::ranges::count_if(
      worker.devices(), [](const std::string& device) { return absl::StartsWith(device, "cpu"); });
  if (cpus == 0) return devices == degree;
  return cpus == devices && devices % degree == 0;
}

}  // namespace muster
