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

// Messages and tables have this form, and users type it: "char-gpt-7@1000". CheckpointIdOf() takes
// a CheckpointName(), and returns any other text as it is.
std::string CheckpointId(absl::string_view job, int64_t step);
std::string CheckpointIdOf(absl::string_view name);

struct CheckpointRef {
  std::string job;
  std::optional<int64_t> step;  // none: the last one
  friend bool operator==(const CheckpointRef&, const CheckpointRef&) = default;
};
// "jobs/J/checkpoints/S", "J@S", "jobs/J" or "J"; nullopt for anything else.
std::optional<CheckpointRef> ParseCheckpointRef(absl::string_view text);

// [a-z0-9]([-a-z0-9]*[a-z0-9])? of at most limits::kNameBytesMax: fits a Kubernetes label with the
// job number behind.
bool IsValidName(absl::string_view name);

}  // namespace muster
