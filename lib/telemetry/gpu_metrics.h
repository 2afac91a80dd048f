// The GPUs of this machine, as the driver's management library sees them.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "prometheus/collectable.h"

namespace muster {

// muster_gpu_utilization_ratio, _memory_used_bytes, _memory_size_bytes, _power_watts and
// _temperature_celsius, each with labels gpu (the driver's number) and uuid, of every GPU that the
// driver shows to this process: several processes of a machine say the same. What a GPU does not
// tell has no series.
//
// NVML is loaded when the program runs, so that it needs no driver. NOT_FOUND where there is no
// library, UNAVAILABLE where it finds no driver.
absl::StatusOr<std::shared_ptr<const prometheus::Collectable>> OpenGpuMetrics(
    const std::string& library = "libnvidia-ml.so.1");

}  // namespace muster
