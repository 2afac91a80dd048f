// What shells complete, made from the command line itself.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "cli/framework/command.h"

namespace muster::cli {

// A script for bash, zsh or fish: commands and options of every command, files, and ids of jobs
// where a command takes one (asked of the coordinator when it is completed, in vain where there is
// none). INVALID_ARGUMENT for another shell.
absl::StatusOr<std::string> CompletionScript(Command program, const std::string& shell);

}  // namespace muster::cli
