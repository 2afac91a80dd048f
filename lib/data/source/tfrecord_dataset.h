// Reads tf.train.Example records of TFRecord files.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "lib/data/dataset.h"
#include "lib/data/image_rows.h"
#include "lib/data/source/data_options.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Implements OpenDataset() for `data.tfrecord`. Loads the index of the files from
// `options.index_folder`, or makes it and saves it there. Making it reads the headers of all
// records. It reads the records, too, if a loss of the graph ignores an id, to count its targets.
//
// Blocks. Errors are those of OpenDataset(), and DATA_DAMAGED if a record cannot be found.
// `make_images` may be empty if no input is an image.
absl::StatusOr<std::unique_ptr<const Dataset>> OpenTfrecordDataset(
    const v1::DataSpec& spec, const v1::Graph& graph, const DataOptions& options,
    const MakeImageRows& make_images);

}  // namespace muster
