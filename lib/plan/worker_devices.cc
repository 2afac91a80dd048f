#include "lib/plan/worker_devices.h"

#include <algorithm>

#include "absl/strings/match.h"

namespace muster {

bool CanShareModel(const google::protobuf::RepeatedPtrField<std::string>& devices, int degree) {
  if (degree <= 1) return true;
  const auto cpus = std::ranges::count_if(
      devices, [](const std::string& device) { return absl::StartsWith(device, "cpu"); });
  if (cpus == 0) return devices.size() == degree;
  return cpus == devices.size() && devices.size() % degree == 0;
}

}  // namespace muster
