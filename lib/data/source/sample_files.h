// Looks at a few of the files that hold samples, so that a submission finds wrong paths and formats
// without reading an index or all files.
#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "lib/data/file/data_file.h"

namespace muster {

// Each returns DATA_INVALID for `field` if the beginning of the file is of another format. An empty
// file is of each format but zip.
absl::Status CheckTfrecordStart(const DataFile& file, absl::string_view field);
absl::Status CheckTarStart(const DataFile& file, absl::string_view field);
absl::Status CheckZipStart(const DataFile& file, absl::string_view field);
absl::Status CheckTextStart(const DataFile& file, absl::string_view field);

using SampleFileCheck = absl::FunctionRef<absl::Status(const DataFile&, absl::string_view field)>;

// Checks up to three of the files that `path` names: a file, a folder, or a pattern with *, ? and
// braces. A pattern passes if all these files pass `check`, and if each text of its braces has a
// file (of the first 4,096). A folder passes if a file passes,
// because README files may lie beside the samples. As for the workers, the files of a folder have
// names that end with `extension`, which has no wildcards; "" is any. A folder that the braces of a
// pattern name stands for its files.
//
// Blocks. Returns OK for a pattern if it takes too long to find its matches. Returns
// DATA_NOT_FOUND, DATA_INVALID, DATA_TOO_SMALL (a folder without such a file), or
// PATH_NOT_ALLOWED.
absl::Status CheckSampleFiles(const std::string& path, absl::string_view field,
                              absl::string_view extension, SampleFileCheck check);

}  // namespace muster
