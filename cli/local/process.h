// Child processes of this command: how the local cluster runs its members.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace muster::cli {

enum class Lifetime {
  kWithParent,  // killed when the thread that started it ends
  kDetached,    // its own session; goes on after this process
};

struct ProcessCommand {
  std::vector<std::string> argv;  // argv[0]: path of the binary
  std::string log_path;           // stdout and stderr are appended to it
  std::string directory;          // that it works in; "": this process's
  Lifetime lifetime = Lifetime::kWithParent;
};

// A process by its id and start time, so that a reused id is not mistaken for it.
struct Process {
  pid_t pid = 0;
  uint64_t start_ticks = 0;  // field 22 of /proc/<pid>/stat

  // False also once it has ended and was not waited for yet.
  bool alive() const;
};

// Starts it outside this process's group, so that Ctrl-C on the terminal reaches only this process.
// An exec that fails is an error here.
absl::StatusOr<Process> StartProcess(const ProcessCommand& command);

// Waits until all have ended and reaps those that are children. DEADLINE_EXCEEDED when one still
// runs after `timeout`.
absl::Status AwaitExit(absl::Span<const Process> processes, absl::Duration timeout);

// How it ended, "was killed by signal 9" or "ended with exit code 77", as far as this can be known:
// of a child that was not waited for yet. "ended" otherwise.
std::string DescribeEnd(const Process& process);

// SIGTERM, `grace` to end, then SIGKILL. Returns once all have ended.
void StopProcesses(absl::Span<const Process> processes, absl::Duration grace);

}  // namespace muster::cli
