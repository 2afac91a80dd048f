#include "cli/local/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/status/status.h"

namespace muster::cli {
namespace {

constexpr absl::Duration kExitPollInterval = absl::Milliseconds(10);

struct ProcessStat {
  char state = 0;            // field 3 of /proc/<pid>/stat
  int threads = 0;           // 20
  uint64_t start_ticks = 0;  // 22
};

// Returns nullopt if there is no such process. The name in field 2 may contain any character, so
// the parser looks for the last ')'.
std::optional<ProcessStat> ReadStat(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::stringstream text;
  text << file.rdbuf();
  const std::string stat = text.str();
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(stat.substr(name_end + 1));
  ProcessStat read;
  std::string skipped;
  fields >> read.state;
  for (int field = 4; field < 20; ++field) fields >> skipped;
  fields >> read.threads >> skipped >> read.start_ticks;
  return fields ? std::optional(read) : std::nullopt;
}

// Returns nullopt if the process is not a child, still runs or was reaped.
std::optional<siginfo_t> EndOf(const Process& process) {
  siginfo_t end{};
  if (waitid(P_PID, process.pid, &end, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      end.si_pid != process.pid) {
    return std::nullopt;
  }
  return end;
}

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

}  // namespace

bool Process::alive() const {
  if (pid <= 0) return false;
  const std::optional<ProcessStat> stat = ReadStat(pid);
  if (!stat || stat->start_ticks != start_ticks || stat->state == 'X') return false;
  // The first thread of a killed process may end before the others. Those still hold locks and
  // ports while they finish a write.
  return stat->state != 'Z' || stat->threads > 1;
}

absl::StatusOr<Process> StartProcess(const ProcessCommand& command) {
  FileDescriptor log(
      open(command.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (log.get() < 0) {
    return absl::UnavailableError(
        absl::StrCat(command.log_path, ": cannot write: ", std::strerror(errno)));
  }
  ASSIGN_OR_RETURN(const pid_t pid, Spawn({.argv = command.argv,
                                           .directory = command.directory,
                                           .stdout_fd = log.get(),
                                           .stderr_fd = log.get(),
                                           .lifetime = command.lifetime}));
  const std::optional<ProcessStat> stat = ReadStat(pid);
  if (!stat) {
    return absl::UnavailableError(
        absl::StrCat(command.argv[0], " ended at once; see ", command.log_path));
  }
  return Process{.pid = pid, .start_ticks = stat->start_ticks};
}

absl::Status AwaitExit(absl::Span<const Process> processes, absl::Duration timeout) {
  const absl::Duration deadline = SteadyNow() + timeout;
  for (const Process& process : processes) {
    while (process.alive()) {
      if (SteadyNow() >= deadline) {
        return absl::DeadlineExceededError(absl::StrCat(
            "process ", process.pid, " still runs after ", absl::FormatDuration(timeout)));
      }
      absl::SleepFor(kExitPollInterval);
    }
    waitpid(process.pid, nullptr, WNOHANG);  // fails harmlessly if it is not a child
  }
  return absl::OkStatus();
}

std::string DescribeEnd(const Process& process) {
  const std::optional<siginfo_t> end = EndOf(process);
  if (!end) return "ended";
  return end->si_code == CLD_EXITED ? absl::StrCat("ended with exit code ", end->si_status)
                                    : absl::StrCat("was killed by signal ", end->si_status);
}

bool WasKilled(const Process& process) {
  const std::optional<siginfo_t> end = EndOf(process);
  return end && end->si_code != CLD_EXITED;
}

void StopProcesses(absl::Span<const Process> processes, absl::Duration grace) {
  for (const Process& process : processes) {
    if (process.alive()) kill(process.pid, SIGTERM);
  }
  if (AwaitExit(processes, grace).ok()) return;
  for (const Process& process : processes) {
    if (process.alive()) kill(process.pid, SIGKILL);
  }
  AwaitExit(processes, absl::InfiniteDuration()).IgnoreError();
}

}  // namespace muster::cli
