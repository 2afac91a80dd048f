// Describes the data at a path, without a job file.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace muster::cli {

struct Inspection {
  std::string text;  // lines for people
  // A `data:` section of a job file to start from, which `muster validate` accepts for a model with
  // these inputs. "" if no input of a job can read the data.
  std::string section = "";
};

struct InspectOptions {
  // Returns "JPEG, 500 x 375" for an encoded image, or "" for other bytes. Default: knows no image.
  std::function<std::string(absl::Span<const std::byte> file)> describe_image =
      [](absl::Span<const std::byte>) { return ""; };
};

// Inspects a file, a folder or a pattern (see ListFiles()). Reads the headers of one tar or
// TFRecord file, and the first bytes of other files. Returns INVALID_ARGUMENT if the format is
// unknown, and the errors of the readers.
absl::StatusOr<Inspection> Inspect(const std::string& path, const InspectOptions& options);

}  // namespace muster::cli
