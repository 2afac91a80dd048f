// Checks the data of a job at submission, in the coordinator.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Checks that the data that `spec` names exists and fits the graph's inputs. Returns the number of
// training samples, or nullopt if it takes an index to know it. Fails as OpenDataset() does.
// Blocks.
//
// It neither indexes large data nor decodes images, so it finds fewer faults than the workers:
// - text, idx, linear, npy, npz, synthetic: opens the data, in at most `held_bytes_max` bytes.
// - images: looks for a file in the folder of each class, or at the first MiB of the list.
// - tfrecord: checks the rules of the inputs, and their features in the first MiB of a few files.
// - csv: checks the columns of the first line of a file, and the vocabularies.
// - tar: checks the inputs, and the beginning of a few files.
// - mixture: checks each part so. Errors name the part's field.
absl::StatusOr<std::optional<int64_t>> CheckDataset(const v1::DataSpec& spec,
                                                    const v1::Graph& graph, int64_t held_bytes_max);

}  // namespace muster
