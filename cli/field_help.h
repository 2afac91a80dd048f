// Explains the fields of the job file. The only source of the text is the comments of job.proto.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster::cli {

// Explains the field at `path` in a job file, for example "training.optimizer.adamw.learning_rate";
// "" is the whole file. The text has the type, the comment, and the allowed values or the fields
// inside. Lines have at most 80 characters. Returns NOT_FOUND, with the nearest name, if there is
// no such field.
absl::StatusOr<std::string> ExplainField(absl::string_view path);

}  // namespace muster::cli
