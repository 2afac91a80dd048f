// What a field of the job file means: the comments of job.proto, which are the only place where
// that is written down.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster::cli {

// A field by its path in a job file ("training.optimizer.adamw.learning_rate"; "" is all of it),
// with its type, what is said of it, the values that it may have or the fields that it holds.
// NOT_FOUND names the nearest. Lines are at most 80 characters long.
absl::StatusOr<std::string> ExplainField(absl::string_view path);

}  // namespace muster::cli
