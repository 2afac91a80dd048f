// Generates samples of a noisy line from the seed.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "lib/data/dataset.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Implements OpenDataset() for `data.linear`.
absl::StatusOr<std::unique_ptr<const Dataset>> OpenLinearDataset(const v1::DataSpec& spec,
                                                                 const v1::Graph& graph);

}  // namespace muster
