// Exports metrics of this machine's GPUs, as the driver's management library reports them.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "prometheus/collectable.h"

namespace muster {

// Exports muster_gpu_utilization_ratio, _memory_used_bytes, _memory_size_bytes, _power_watts and
// _temperature_celsius. Labels are gpu (the driver's number) and uuid. Covers every GPU that the
// driver shows to this process, so several processes of a machine export the same. A value that a
// GPU does not report has no series.
//
// NVML is loaded at run time, so the program needs no driver. Returns NOT_FOUND if there is no
// library, UNAVAILABLE if it finds no driver.
absl::StatusOr<std::shared_ptr<const prometheus::Collectable>> OpenGpuMetrics(
    const std::string& library = "libnvidia-ml.so.1");

}  // namespace muster
