// The peak speed of a device, to which a model's FLOP/s are compared (MFU).
#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Returns the FLOP/s of dense matrix products in `precision`, from the datasheet of the GPU in
// `description` (Device::description(): "NVIDIA H200, sm_90, 139 GiB"). Returns nullopt for a GPU
// that is not in the table, and for a precision that the GPU has no units for. Returns nullopt for
// every CPU: its peak depends on how many cores other processes use.
std::optional<double> PeakFlops(absl::string_view description, v1::Precision precision);

}  // namespace muster
