// The `mixture` source: several sources in one training set.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/data/dataset.h"
#include "lib/data/source/data_options.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Opens the parts of `data.mixture`. Each gets its own seed, made of the job's seed and its number,
// and an equal part of the memory. Fails as OpenDataset() does; the field at fault is that of the
// part.
absl::StatusOr<std::unique_ptr<const Dataset>> OpenMixtureDataset(const v1::DataSpec& spec,
                                                                  const v1::Graph& graph,
                                                                  const DataOptions& options);

// Returns a data set with the training samples of all parts, numbered one part after the other, and
// so the held-out samples. SampleOrder draws from the parts by their weights. An epoch of the
// mixture has the samples of all parts together. Returns DATA_INVALID if the parts read an input in
// different ways, see Dataset::row_values(). Requires: at least one part.
absl::StatusOr<std::unique_ptr<const Dataset>> MixDatasets(
    std::vector<std::unique_ptr<const Dataset>> parts, const v1::Graph& graph);

}  // namespace muster
