// Reads files of images and their classes, one file a sample.
//
// A class is a folder, and all files below it are its images. Classes are numbered in the order of
// their folders' names. Or a list names the files and their classes. Takes the bytes of each name
// and about 16 bytes for each image.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/data/dataset.h"
#include "lib/data/image_rows.h"
#include "lib/data/input_use.h"
#include "lib/data/source/data_options.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Implements OpenDataset() for `data.images`. Lists the folders, and reads no image. Samples are in
// the order of the paths, or of the list. Names in folders that begin with a dot are skipped, and
// links are followed. Errors beyond those of VisitFiles():
// - DATA_INVALID for a class folder without a file, and for classes that the model does not have.
// - DATA_INVALID for held-out data with other folders than those of the training data.
// - DATA_INVALID for a faulty line of a list, with its number.
// - DATA_DAMAGED for a file that is no image, when it is read. The record's number is that of the
//   image.
absl::StatusOr<std::unique_ptr<const Dataset>> OpenImagesDataset(
    const v1::DataSpec& spec, const v1::Graph& graph, const DataOptions& options,
    const MakeImageRows& make_image_rows);

// Checks the first MiB of a list of images: its lines, that the model has their classes, and that
// the first image exists. The list is that of training, or of evaluation. Blocks.
absl::Status CheckImageList(const v1::ImagesData& images, const InputUse& target,
                            bool is_evaluation);

}  // namespace muster
