// Generates random samples for any model, so that benchmarks need no files.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "lib/data/dataset.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Implements OpenDataset() for `data.synthetic`. Element e of sample s of an input is a pure
// function of (data.seed, input, s, e). f32 inputs are standard normal, or 0 or 1 as the target of
// a SigmoidCrossEntropy. Ids are uniform over the model's range from 0 on, or 0 or 1 if it has
// none.
absl::StatusOr<std::unique_ptr<const Dataset>> OpenSyntheticDataset(const v1::DataSpec& spec,
                                                                    const v1::Graph& graph);

}  // namespace muster
