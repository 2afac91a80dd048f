// Names of API resources: "jobs/char-gpt-7", "jobs/char-gpt-7/checkpoints/1000".
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace muster {

std::string JobName(absl::string_view job);   // "jobs/" + id
std::string JobIdOf(absl::string_view name);  // from "jobs/X" or "X"
std::string CheckpointName(absl::string_view job, int64_t step);

// "char-gpt-7@1000": the form in messages and tables, and the form that users type.
// CheckpointIdOf() expects a CheckpointName(); it returns any other text unchanged.
std::string CheckpointId(absl::string_view job, int64_t step);
std::string CheckpointIdOf(absl::string_view name);

struct CheckpointRef {
  std::string job;
  std::optional<int64_t> step;  // none: the last checkpoint
  friend bool operator==(const CheckpointRef&, const CheckpointRef&) = default;
};
// Reads "jobs/J/checkpoints/S", "J@S", "jobs/J" or "J". Returns nullopt for any other text.
std::optional<CheckpointRef> ParseCheckpointRef(absl::string_view text);

// Returns whether `name` matches [a-z0-9]([-a-z0-9]*[a-z0-9])? and has at most
// limits::kNameBytesMax bytes. It then fits into a Kubernetes label with the job number appended.
bool IsValidName(absl::string_view name);

}  // namespace muster
