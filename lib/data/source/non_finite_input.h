// Finds the value of a data set that is not finite, after a job has met one in its loss.
#pragma once

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "lib/data/dataset.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Reads training samples again, one after the other, and names the first value that is not finite:
// "input 'x' has a NaN in row 2000 of /data/x.npy", or "in sample 2000" if the data have no file of
// floats. Returns "" if all their values are finite. `spec` and `graph` are those that opened
// `dataset`.
std::string NameNonFiniteInput(const Dataset& dataset, const v1::DataSpec& spec,
                               const v1::Graph& graph, absl::Span<const SampleRef> samples);

// As above, for held-out samples [first, first + count): "in held-out sample 7" if there is no
// file.
std::string NameNonFiniteHeldOut(const Dataset& dataset, const v1::DataSpec& spec,
                                 const v1::Graph& graph, int64_t first, int64_t count);

}  // namespace muster
