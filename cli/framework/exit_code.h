// Exit codes of the `muster` command: stable, documented in its help.
#pragma once

#include "absl/status/status.h"

namespace muster::cli {

enum ExitCode : int {
  kExitOk = 0,
  kExitJobFailed = 1,  // or an error that is nobody's request: internal, data loss
  kExitUsage = 2,      // faulty command line or job file
  kExitNotFound = 3,
  kExitTimeout = 4,
  kExitForbidden = 5,
  kExitConflict = 6,     // the resource is not in a state for it
  kExitUnavailable = 7,  // worth retrying
  kExitSignalBase = 128  // + signal number
};

int ExitCodeOf(const absl::Status& status);

}  // namespace muster::cli
