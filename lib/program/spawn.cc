#include "lib/program/spawn.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace muster {
namespace {

// Runs in the child between fork and exec, so it makes only async-signal-safe calls. Writes errno
// to `error_fd` if exec fails.
[[noreturn]] void Become(const SpawnOptions& options, char* const* argv, char** environment,
                         int null_fd, int error_fd, pid_t parent) {
  if (options.lifetime == SpawnOptions::Lifetime::kDetached) {
    setsid();
  } else {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);  // the parent died before prctl()
  }
  // The parent may block SIGINT and SIGTERM (see Interrupt and StopSignal). The mask would survive
  // exec().
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(null_fd, STDIN_FILENO);
  dup2(options.stdout_fd, STDOUT_FILENO);
  dup2(options.stderr_fd, STDERR_FILENO);
  close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
  const char* directory = options.directory.empty() ? "." : options.directory.c_str();
  if (chdir(directory) == 0) execvpe(argv[0], argv, environment);
  const int error = errno;
  [[maybe_unused]] ssize_t written = write(error_fd, &error, sizeof(error));
  _exit(127);
}

absl::string_view NameOf(absl::string_view variable) {
  return variable.substr(0, variable.find('='));
}

// Returns this process's environment with `added`, each name once: programs differ in which of two
// values they take. The pointers are valid as long as both are.
std::vector<char*> EnvironmentWith(const std::vector<std::string>& added) {
  std::map<absl::string_view, const char*> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    variables.emplace(NameOf(*variable), *variable);
  }
  for (const std::string& variable : added) variables[NameOf(variable)] = variable.c_str();
  std::vector<char*> pointers;
  for (const auto& [name, variable] : variables) pointers.push_back(const_cast<char*>(variable));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

absl::StatusOr<pid_t> Spawn(const SpawnOptions& options) {
  const std::string& program = options.argv[0];
  const auto cannot_start = [&program] {
    return absl::UnavailableError(
        absl::StrCat("cannot start ", program, ": ", std::strerror(errno)));
  };
  const int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null_fd < 0) return cannot_start();
  const absl::Cleanup close_null = [null_fd] { close(null_fd); };
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return cannot_start();
  const absl::Cleanup close_read_end = [&ends] { close(ends[0]); };
  std::vector<char*> argv;
  for (const std::string& argument : options.argv) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);
  std::vector<char*> environment = EnvironmentWith(options.environment);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) Become(options, argv.data(), environment.data(), null_fd, ends[1], parent);
  const absl::Status forked = pid < 0 ? cannot_start() : absl::OkStatus();
  close(ends[1]);  // the child's exec closes the other copy
  if (!forked.ok()) return forked;
  int error = 0;
  // A read without data means that exec() succeeded and closed the child's end of the pipe.
  if (read(ends[0], &error, sizeof(error)) != sizeof(error)) return pid;
  waitpid(pid, nullptr, 0);
  return absl::NotFoundError(absl::StrCat(program, ": cannot run in ",
                                          options.directory.empty() ? "." : options.directory, ": ",
                                          std::strerror(error)));
}

}  // namespace muster
