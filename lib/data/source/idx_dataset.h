// Reads images and labels in the IDX format of MNIST, plain or gzip. Pixels become (p / 255 - 0.5)
// / 0.5.
//   Source: Y. LeCun, C. Cortes, C. Burges, "The MNIST database", section "File formats".
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "lib/data/dataset.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Implements OpenDataset() for `data.idx`.
absl::StatusOr<std::unique_ptr<const Dataset>> OpenIdxDataset(const v1::DataSpec& spec,
                                                              const v1::Graph& graph,
                                                              int64_t held_bytes_max);

}  // namespace muster
