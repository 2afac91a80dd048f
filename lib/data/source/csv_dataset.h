// Reads lines of text with columns, such as CSV, TSV and Criteo's files; each line is a sample.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/data/dataset.h"
#include "lib/data/file/data_file.h"
#include "lib/data/source/data_options.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Implements OpenDataset() for `data.csv`. Columns fill any inputs: numbers f32 and i32 inputs,
// categories i32 inputs. Finds the lines of all files, or loads their index, which counts as
// memory.
//
// Lines are divided and converted when they are read. A line gives DATA_DAMAGED, with its file,
// line and column, in these cases:
// - Its number of fields differs from the first line of the data.
// - A text is no number, or is not in the vocabulary.
// - The model does not take an id, class or probability (see InputUse).
absl::StatusOr<std::unique_ptr<const Dataset>> OpenCsvDataset(const v1::DataSpec& spec,
                                                              const v1::Graph& graph,
                                                              const DataOptions& options);

// Checks that the columns of `file`, which is one of the files of `csv`, fill the inputs of the
// graph. Reads the first line and the vocabularies, as OpenCsvDataset() does, and no other lines.
// `field` is that of the file. Blocks.
absl::Status CheckCsvColumns(const v1::CsvData& csv, const v1::Graph& graph, const DataFile& file,
                             const std::string& field, int64_t held_bytes_max);

}  // namespace muster
