// Starts and ends child processes: the members of a local cluster.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "lib/program/spawn.h"

namespace muster::cli {

using Lifetime = SpawnOptions::Lifetime;

struct ProcessCommand {
  std::vector<std::string> argv;  // argv[0]: path of the binary
  std::string log_path;           // stdout and stderr go to its end
  std::string directory;          // working directory; "": this process's
  Lifetime lifetime = Lifetime::kWithParent;
};

// Identifies a process by its id and start time, so that a reused id is not mistaken for it.
struct Process {
  pid_t pid = 0;
  uint64_t start_ticks = 0;  // field 22 of /proc/<pid>/stat

  // False as soon as the process has ended, even if it was not reaped.
  bool alive() const;
};

// Starts a process outside this process's group, so that Ctrl-C reaches only this process. Blocks
// until exec() has succeeded or failed.
// Returns NOT_FOUND if the binary or the working directory cannot be used, UNAVAILABLE if the log
// cannot be opened, the fork fails or the process ends at once.
absl::StatusOr<Process> StartProcess(const ProcessCommand& command);

// Blocks until all processes have ended, and reaps those that are children. Returns
// DEADLINE_EXCEEDED if one still runs after `timeout`.
absl::Status AwaitExit(absl::Span<const Process> processes, absl::Duration timeout);

// Returns how a process ended, "was killed by signal 9" or "ended with exit code 77". This is known
// only for a child that was not reaped yet; for others it returns "ended".
std::string DescribeEnd(const Process& process);
// Returns whether a signal ended a child that was not reaped yet.
bool WasKilled(const Process& process);

// Sends SIGTERM, waits for up to `grace`, then sends SIGKILL. Blocks until all have ended.
void StopProcesses(absl::Span<const Process> processes, absl::Duration grace);

}  // namespace muster::cli
