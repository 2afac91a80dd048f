// Generates shell completion from the command line's declarations.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "cli/framework/command.h"

namespace muster::cli {

// Returns a script for bash, zsh or fish. It completes commands, options and files, and ids of jobs
// for commands that take one. Ids come from the coordinator at completion time; there are none if
// it does not answer. Returns INVALID_ARGUMENT for another shell.
absl::StatusOr<std::string> CompletionScript(Command program, const std::string& shell);

}  // namespace muster::cli
