// Reads one .npy file per input of the model; row i of every file is sample i.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "lib/data/dataset.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Implements OpenDataset() for `data.npy`. An f32 input accepts any type (numbers are converted,
// not scaled), an i32 input integers. Checks every id once.
absl::StatusOr<std::unique_ptr<const Dataset>> OpenNpyDataset(const v1::DataSpec& spec,
                                                              const v1::Graph& graph,
                                                              int64_t held_bytes_max);

}  // namespace muster
