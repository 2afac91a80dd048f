// Inspects the data of one source. See inspection.h.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cli/data/inspection.h"
#include "lib/data/file/file_list.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::cli {

struct SourceInspection {
  std::string text;        // lines for people
  int64_t samples = 0;     // of the files that were read
  v1::DataSpec spec = {};  // a source that reads the data; none if no input of a job can read them
};

inline constexpr char kInspectedField[] = "data";  // begins the messages of errors

// Each reads the first of `files`, which `path` names. Requires: at least one file.
absl::StatusOr<SourceInspection> InspectTar(const std::string& path,
                                            absl::Span<const ListedFile> files,
                                            const InspectOptions& options);
absl::StatusOr<SourceInspection> InspectTfrecord(const std::string& path,
                                                 absl::Span<const ListedFile> files,
                                                 const InspectOptions& options);
absl::StatusOr<SourceInspection> InspectCsv(const std::string& path,
                                            absl::Span<const ListedFile> files);

// Sets transforms to 224 x 224, which most models of images read.
void SetUsualTransforms(v1::ImageSpec& image);

// Returns "JPEG, 500 x 375", or "" for bytes that are no image.
std::string DescribeImage(const InspectOptions& options, absl::string_view bytes);

std::string Count(int64_t count, absl::string_view noun);  // "1 file", "2 files"

// Returns "tar: 2 files, 3.0 KiB".
std::string DescribeFiles(absl::string_view format, absl::Span<const ListedFile> files);

}  // namespace muster::cli
