// Runs a child process and reads its output line by line.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace muster {

struct ProcessEnd {
  int code = 0;    // exit code; 0 after a signal
  int signal = 0;  // the signal that killed it, or 0

  bool ok() const { return code == 0 && signal == 0; }
  // Returns the code that a shell reports: the exit code, or 128 plus the signal.
  int ShellCode() const { return signal != 0 ? 128 + signal : code; }
  std::string ToString() const;  // "ended with exit code 3", "was killed by signal 9 (Killed)"
};

enum class OutputStream { kStdout, kStderr };

// Owns one process, its process group, and a thread that reads its output. The process is killed if
// this process dies. When the process ends, the rest of its group is killed. Thread-safe.
class ChildProcess {
 public:
  struct Options {
    std::vector<std::string> argv;         // as in SpawnOptions
    std::vector<std::string> environment;  // "NAME=value", as in SpawnOptions
    std::string directory;                 // "": this process's
    // Called on the thread of the child with each line and its end, '\n' or '\r': a progress bar
    // ends its lines by '\r'. A line that is longer than 16 KiB comes in pieces. The last one may
    // have no end.
    std::function<void(OutputStream, absl::string_view line)> on_line;
    // Called last, on the same thread. Must not destroy the ChildProcess.
    std::function<void(const ProcessEnd&)> on_end;
  };

  // Blocks until the program has started. Returns the errors of Spawn().
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(Options options);
  ~ChildProcess();  // kills the group, and blocks until on_end has returned

  // Sends a signal to the process and its group. No-op after the end.
  void Signal(int signal) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Pipe;

  explicit ChildProcess(Options options) : options_(std::move(options)) {}
  void Run(Pipe& out, Pipe& err) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status SpawnInto(const Pipe& out, const Pipe& err) ABSL_LOCKS_EXCLUDED(mu_);
  ProcessEnd Reap() ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  int pidfd_ = -1;  // used only by the thread
  absl::Mutex mu_;
  std::optional<absl::Status> started_ ABSL_GUARDED_BY(mu_);
  pid_t pid_ ABSL_GUARDED_BY(mu_) = 0;  // 0: not started, or reaped
  std::jthread thread_;                 // last, because it uses the other members
};

}  // namespace muster
