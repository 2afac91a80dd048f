// The processes of a training program beside one worker: together they are one rank of a job.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lib/program/child_process.h"

namespace muster {

// Starts a command several times and ends when the first of them fails or all have succeeded.
// Thread-safe.
class ProgramGroup {
 public:
  // Lines of standard error that Outcome has.
  static constexpr int kErrorLinesMax = 30;

  struct Options {
    std::vector<std::string> command;
    // "NAME=value". Each process also gets MUSTER_LOCAL_PROCESSES and MUSTER_LOCAL_PROCESS, and
    // PYTHONUNBUFFERED=1 unless it is set. With several processes it gets MASTER_ADDR and
    // MASTER_PORT, too, for torch.distributed.
    std::vector<std::string> environment;
    std::string directory;  // "": this process's
    int processes = 1;
    // Added to the environment of process 0 only, after `environment`.
    std::vector<std::string> first_environment;
    // Both are called on a thread of the process.
    std::function<void(int process, OutputStream, absl::string_view line)> on_line;
    // Called at most once: outcome() has a value then. The destructor may cause it.
    std::function<void()> on_outcome;
  };

  struct Outcome {
    int process = 0;
    ProcessEnd end;
    // The last lines of its standard error, each with its end.
    std::string errors;
  };

  // Blocks until all processes have started. Returns the errors of Spawn(), or UNAVAILABLE if no
  // port is free. Requires: `command` is not empty.
  static absl::StatusOr<std::unique_ptr<ProgramGroup>> Start(Options options);
  ~ProgramGroup();  // kills what still runs

  // Returns how the first process failed, or an end with code 0 after all have succeeded, or
  // nullopt before.
  std::optional<Outcome> outcome() const ABSL_LOCKS_EXCLUDED(mu_);

  void Signal(int signal);  // to all that still run, and to their process groups
  // Blocks until all have ended. Returns false if one still runs after `timeout`.
  bool AwaitEnd(absl::Duration timeout) const ABSL_LOCKS_EXCLUDED(mu_);
  // Sends SIGTERM, and SIGKILL after `grace`. Blocks until all have ended.
  void Stop(absl::Duration grace);

 private:
  explicit ProgramGroup(Options options);
  absl::Status StartAll();
  void TakeLine(int process, OutputStream stream, absl::string_view line) ABSL_LOCKS_EXCLUDED(mu_);
  void TakeEnd(int process, const ProcessEnd& end) ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  mutable absl::Mutex mu_;
  int running_ ABSL_GUARDED_BY(mu_);
  std::optional<Outcome> outcome_ ABSL_GUARDED_BY(mu_);
  std::vector<std::deque<std::string>> errors_ ABSL_GUARDED_BY(mu_);  // by process
  std::vector<std::unique_ptr<ChildProcess>> children_;  // last: their threads use the others
};

}  // namespace muster
