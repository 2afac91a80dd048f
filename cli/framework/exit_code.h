// Exit codes of the `muster` command. They are stable and documented in its help.
#pragma once

#include "absl/status/status.h"

namespace muster::cli {

enum ExitCode : int {
  kExitOk = 0,
  kExitJobFailed = 1,  // or an internal error, or data loss
  kExitUsage = 2,      // faulty command line or job file
  kExitNotFound = 3,
  kExitTimeout = 4,
  kExitForbidden = 5,
  kExitConflict = 6,     // the state of the resource does not allow it
  kExitUnavailable = 7,  // a retry may help
  kExitSignalBase = 128  // + signal number
};

int ExitCodeOf(const absl::Status& status);

}  // namespace muster::cli
