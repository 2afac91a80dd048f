// Starts this program again in another role, for tests between processes.
#pragma once

#include <glog/logging.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "lib/program/program_path.h"

namespace muster {

// Runs ProgramPath() with `role` as its only argument; main() must handle it. The destructor kills
// the process if it still runs.
class ChildProcess {
 public:
  explicit ChildProcess(const char* role) {
    int to_child[2], from_child[2];
    CHECK_EQ(pipe(to_child), 0);
    CHECK_EQ(pipe(from_child), 0);
    const std::string program = ProgramPath();
    pid_ = fork();
    if (pid_ == 0) {
      dup2(to_child[0], STDIN_FILENO);
      dup2(from_child[1], STDOUT_FILENO);
      for (int fd = 3; fd < 1024; ++fd) close(fd);
      execl(program.c_str(), program.c_str(), role, nullptr);
      _exit(127);
    }
    close(to_child[0]);
    close(from_child[1]);
    in_ = to_child[1];
    out_ = from_child[0];
  }
  ChildProcess(const ChildProcess&) = delete;
  ~ChildProcess() {
    if (in_ >= 0) close(in_);
    close(out_);
    if (pid_ > 0) {
      Signal(SIGKILL);
      Wait();
    }
  }

  void WriteLine(const std::string& line) {
    const std::string text = line + "\n";
    CHECK_EQ(write(in_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  std::string ReadLine() {
    std::string line;
    for (char c; read(out_, &c, 1) == 1 && c != '\n';) line.push_back(c);
    return line;
  }
  void CloseInput() { close(std::exchange(in_, -1)); }

  void Signal(int signal) { kill(pid_, signal); }
  void Kill() { Signal(SIGKILL); }
  // Blocks until the process ends. Returns the exit status, or minus the signal.
  int Wait() {
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_;
  int in_, out_;
};

}  // namespace muster
