// Runs the coordinator's program, for tests that need all of it.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace muster {

// The program as a child process, on ports of its own.
class CoordinatorProcess {
 public:
  explicit CoordinatorProcess(std::vector<std::string> flags = {}) {
    int output[2];
    EXPECT_EQ(pipe(output), 0);
    std::string folder = ::testing::TempDir() + "/state-XXXXXX";
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    flags.insert(flags.begin(), {"main", "--listen=127.0.0.1:0", "--metrics=127.0.0.1:0",
                                 "--http=", absl::StrCat("--state_dir=", folder)});
    std::vector<char*> arguments;
    for (std::string& flag : flags) arguments.push_back(flag.data());
    arguments.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(output[1], STDERR_FILENO);
      execv("services/coordinator/main", arguments.data());
      _exit(127);
    }
    close(output[1]);
    log_ = fdopen(output[0], "r");
    const std::string serving = "serving on ";
    char line[4096];
    while (address_.empty() && fgets(line, sizeof(line), log_) != nullptr) {
      const std::string text = line;
      const size_t at = text.find(serving);
      if (at == std::string::npos) continue;
      address_ = text.substr(at + serving.size());
      address_.resize(address_.find(','));
    }
    reader_ = std::thread([this] {  // otherwise the program would block on a full pipe
      char text[4096];
      while (fgets(text, sizeof(text), log_) != nullptr) {
        fputs(text, stderr);
        logged_ += text;
      }
    });
  }
  ~CoordinatorProcess() { End(); }

  // Kills the process. Returns its log from the time when it served.
  const std::string& End() {
    if (!reader_.joinable()) return logged_;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    reader_.join();
    fclose(log_);
    return logged_;
  }

  const std::string& address() const { return address_; }
  int64_t Status(absl::string_view field) const {
    std::ifstream status(absl::StrCat("/proc/", pid_, "/status"));
    for (std::string line; std::getline(status, line);) {
      if (absl::StartsWith(line, field)) return std::atoll(line.c_str() + field.size());
    }
    return -1;
  }

 private:
  pid_t pid_;
  FILE* log_;
  std::string address_;
  std::string logged_;  // used by the reader thread until it is joined
  std::thread reader_;
};

}  // namespace muster
