// Starts child processes.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace muster {

struct SpawnOptions {
  enum class Lifetime {
    kWithParent,  // killed when the thread that started it ends
    kDetached,    // has its own session and outlives this process
  };

  std::vector<std::string> argv;  // argv[0]: a path, or a name that $PATH finds
  // Each "NAME=value" is added to this process's environment, or replaces a variable of it or one
  // before it.
  std::vector<std::string> environment;
  std::string directory;  // working directory; "": this process's
  int stdout_fd = -1;     // stay open here; standard input is /dev/null
  int stderr_fd = -1;
  Lifetime lifetime = Lifetime::kWithParent;
};

// Starts a process in a process group of its own, so that Ctrl-C reaches only this process. Blocks
// until exec() has succeeded or failed. The caller reaps the process.
// Returns NOT_FOUND if the program or the working directory cannot be used, UNAVAILABLE if the
// system has no room for a process. Thread-safe. Requires: `argv` is not empty.
absl::StatusOr<pid_t> Spawn(const SpawnOptions& options);

}  // namespace muster
