// How fast a device could compute at best: what a model's FLOPs are measured by (MFU).
#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// FLOP/s of dense matrix products in `precision`, by the datasheet of the GPU in `description`
// (Device::description(): "NVIDIA H200, sm_90, 139 GiB"). nullopt: a device without a datasheet
// here, or a precision that it has no units for; every CPU, whose best depends on how many cores
// others use.
std::optional<double> PeakFlops(absl::string_view description, v1::Precision precision);

}  // namespace muster
