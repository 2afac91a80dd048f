// Reads one array of an .npz file per input of the model; row i of every array is sample i.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "lib/data/dataset.h"
#include "lib/data/source/data_options.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Implements OpenDataset() for `data.npz`, as OpenNpyDataset(). Arrays of ids are held in memory,
// and their CRC is checked; other arrays are read by position.
absl::StatusOr<std::unique_ptr<const Dataset>> OpenNpzDataset(const v1::DataSpec& spec,
                                                              const v1::Graph& graph,
                                                              const DataOptions& options);

}  // namespace muster
