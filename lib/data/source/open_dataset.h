// Opens the data of a job.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "lib/data/dataset.h"
#include "lib/data/source/data_options.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Opens the data named by `spec`, and replaces up to data.damaged_max damaged samples in each epoch
// by others (see SubstituteDamaged). Checks that it fits the graph's inputs, and that every id is
// in the model's range (see InputUse). The kinds fill these inputs, and allow no others:
// - text: "input" and "target" i32[-1, T].
// - idx: "input" f32[-1, channels, rows, columns] (or [-1, product]) and "target" i32[-1].
// - linear: "input" and "target" f32[-1, 1].
// - mixture: the inputs of its parts, which must be equal.
// - images: "input" f32[-1, channels, height, width] and "target" i32[-1].
// - npy, npz, csv, tfrecord, tar and synthetic: any inputs.
//
// An error names the field at fault in its message ("data.text.path: /nope: no such file or
// directory on node-3") and for FaultsOf(). It has the reason DATA_NOT_FOUND, DATA_TRUNCATED,
// DATA_INVALID or DATA_TOO_SMALL. Returns RESOURCE_EXHAUSTED if the data would need more than
// DataOptions::held_bytes_max of memory. Files of `npy` are not held in memory, but the files of
// ids count, because OpenDataset() reads all of them.
absl::StatusOr<std::unique_ptr<const Dataset>> OpenDataset(const v1::DataSpec& spec,
                                                           const v1::Graph& graph,
                                                           const DataOptions& options = {});

// Opens the data as OpenDataset() does, and replaces no damaged samples.
absl::StatusOr<std::unique_ptr<const Dataset>> OpenSource(const v1::DataSpec& spec,
                                                          const v1::Graph& graph,
                                                          const DataOptions& options);

}  // namespace muster
