#include "lib/program/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/program/spawn.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr size_t kLineMax = size_t{16} << 10;
constexpr size_t kReadBytes = size_t{64} << 10;  // the capacity of a pipe
// Reads after the end. A process that has left the group may still write, so there is a bound.
constexpr int kLastReadsMax = 16;

}  // namespace

std::string ProcessEnd::ToString() const {
  return signal == 0 ? absl::StrCat("ended with exit code ", code)
                     : absl::StrCat("was killed by signal ", signal, " (", strsignal(signal), ")");
}

// The output of the child: a pipe, and the line that has not ended yet.
class ChildProcess::Pipe {
 public:
  using Take = std::function<void(absl::string_view line)>;

  explicit Pipe(Take take) : take_(std::move(take)) {}
  ~Pipe() {
    CloseEnd(ends_[0]);
    CloseEnd(ends_[1]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  absl::Status Open() {
    // Only the read end may be non-blocking: the child shares the flags of the write end.
    if (pipe2(ends_.data(), O_CLOEXEC) != 0 || fcntl(ends_[0], F_SETFL, O_NONBLOCK) != 0) {
      return absl::UnavailableError(absl::StrCat("cannot open a pipe: ", std::strerror(errno)));
    }
    return absl::OkStatus();
  }
  int read_end() const { return ends_[0]; }  // -1 after the end of the output
  int write_end() const { return ends_[1]; }
  void CloseWriteEnd() { CloseEnd(ends_[1]); }

  // Reads once. Returns false if there was nothing to read.
  bool Read() {
    if (ends_[0] < 0) return false;
    std::array<char, kReadBytes> bytes;
    const ssize_t size = read(ends_[0], bytes.data(), bytes.size());
    if (size < 0) return errno == EINTR;
    if (size == 0) {
      CloseEnd(ends_[0]);
      return false;
    }
    line_.append(bytes.data(), static_cast<size_t>(size));
    TakeLines();
    return true;
  }

  void TakeRest() {
    if (!line_.empty()) take_(line_);
    line_.clear();
  }

 private:
  static void CloseEnd(int& fd) {
    if (fd >= 0) close(fd);
    fd = -1;
  }

  void TakeLines() {
    size_t begin = 0;
    for (size_t at = 0; at < line_.size(); ++at) {
      const char last = line_[at];
      if (last == '\r' && at + 1 == line_.size()) break;  // "\r\n" may come
      const bool ends = last == '\n' || (last == '\r' && line_[at + 1] != '\n');
      if (!ends && at + 1 - begin < kLineMax) continue;
      take_(absl::string_view(line_).substr(begin, at + 1 - begin));
      begin = at + 1;
    }
    line_.erase(0, begin);
  }

  const Take take_;
  std::array<int, 2> ends_ = {-1, -1};
  std::string line_;
};

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(Options options) {
  std::unique_ptr<ChildProcess> child(new ChildProcess(std::move(options)));
  // The thread that starts the process must live as long as the process (see Lifetime).
  child->thread_ = std::jthread([child = child.get()] {
    Pipe out(
        [child](absl::string_view line) { child->options_.on_line(OutputStream::kStdout, line); });
    Pipe err(
        [child](absl::string_view line) { child->options_.on_line(OutputStream::kStderr, line); });
    absl::Status opened = out.Open();
    if (opened.ok()) opened = err.Open();
    if (opened.ok()) opened = child->SpawnInto(out, err);
    {
      absl::MutexLock lock(&child->mu_);
      child->started_ = opened;
    }
    if (opened.ok()) child->Run(out, err);
  });
  absl::MutexLock lock(&child->mu_);
  auto known = [&child]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(child->mu_) {
    return child->started_.has_value();
  };
  child->mu_.Await(absl::Condition(&known));
  RETURN_IF_ERROR(*child->started_);
  return child;
}

ChildProcess::~ChildProcess() { Signal(SIGKILL); }

void ChildProcess::Signal(int signal) {
  absl::MutexLock lock(&mu_);  // so that the process is not reaped, and its id not reused
  if (pid_ > 0) kill(-pid_, signal);
}

absl::Status ChildProcess::SpawnInto(const Pipe& out, const Pipe& err) {
  ASSIGN_OR_RETURN(const pid_t pid, Spawn({.argv = options_.argv,
                                           .environment = options_.environment,
                                           .directory = options_.directory,
                                           .stdout_fd = out.write_end(),
                                           .stderr_fd = err.write_end()}));
  pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (pidfd_ < 0) {
    const int error = errno;
    kill(-pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return absl::UnavailableError(
        absl::StrCat("cannot watch ", options_.argv[0], ": ", std::strerror(error)));
  }
  absl::MutexLock lock(&mu_);
  pid_ = pid;
  return absl::OkStatus();
}

void ChildProcess::Run(Pipe& out, Pipe& err) {
  out.CloseWriteEnd();
  err.CloseWriteEnd();
  for (bool ended = false; !ended;) {
    std::array<pollfd, 3> fds = {{{.fd = out.read_end(), .events = POLLIN},
                                  {.fd = err.read_end(), .events = POLLIN},
                                  {.fd = pidfd_, .events = POLLIN}}};
    if (poll(fds.data(), fds.size(), -1) < 0) continue;  // EINTR
    if (fds[0].revents != 0) out.Read();
    if (fds[1].revents != 0) err.Read();
    ended = fds[2].revents != 0;
  }
  close(pidfd_);
  Signal(SIGKILL);  // to the rest of the group; the process is not reaped, so its id names it
  for (Pipe* pipe : {&out, &err}) {
    for (int reads = 0; reads < kLastReadsMax && pipe->Read(); ++reads) {
    }
    pipe->TakeRest();
  }
  const ProcessEnd end = Reap();
  options_.on_end(end);
}

ProcessEnd ChildProcess::Reap() {
  absl::MutexLock lock(&mu_);
  siginfo_t info{};
  while (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED) != 0 && errno == EINTR) {
  }
  pid_ = 0;
  if (info.si_code == CLD_EXITED) return {.code = info.si_status};
  return {.signal = info.si_status};
}

}  // namespace muster
