// Reads shards of WebDataset: tar files, in which members with one base name that follow each other
// make up a sample.
//   Source: the manual of WebDataset, "The WebDataset Format"
//
// The base name is the folder and the file name up to its first dot. The rest, in lower case, is
// the key. A member without a key, or with a file name that begins with a dot, belongs to no
// sample.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "lib/data/dataset.h"
#include "lib/data/image_rows.h"
#include "lib/data/source/data_options.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Implements OpenDataset() for `data.tar`. Reads the header of every member, or the index of an
// earlier call. Numbers of `integer` inputs are part of the index. Errors beyond those of
// ListFiles() and TarReader:
// - DATA_INVALID for a sample that lacks a required member, or has two of them.
// - DATA_INVALID for inputs that do not fit the model, and for numbers that it does not accept.
// - DATA_DAMAGED for a damaged member, when its sample is read. The record's number is that of the
//   sample in its file.
absl::StatusOr<std::unique_ptr<const Dataset>> OpenTarDataset(const v1::DataSpec& spec,
                                                              const v1::Graph& graph,
                                                              const DataOptions& options,
                                                              const MakeImageRows& make_image_rows);

}  // namespace muster
