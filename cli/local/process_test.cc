#include "cli/local/process.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::cli::process_test {
namespace {

std::string LogPath(const std::string& name) {
  return absl::StrCat(::testing::TempDir(), "/", name, ".log");
}

std::string Contents(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(ProcessTest, WritesItsOutputToTheLog) {
  const std::string log = LogPath("output");

  auto process = StartProcess(
      {.argv = {"/bin/sh", "-c", "echo out; echo err >&2; read line"}, .log_path = log});

  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_EQ(AwaitExit({*process}, absl::Seconds(10)), absl::OkStatus());  // stdin is empty
  EXPECT_EQ(Contents(log), "out\nerr\n");
  EXPECT_FALSE(process->alive());
}

TEST(ProcessTest, AnExecThatFailsIsAnError) {
  auto process = StartProcess({.argv = {"/no/such/binary"}, .log_path = LogPath("exec")});

  EXPECT_TRUE(absl::IsNotFound(process.status())) << process.status();
}

TEST(ProcessTest, UsesTheWorkingDirectoryOfTheCommand) {
  const std::string log = LogPath("directory");

  auto process =
      StartProcess({.argv = {"/bin/sh", "-c", "pwd"}, .log_path = log, .directory = "/"});
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_EQ(AwaitExit({*process}, absl::Seconds(10)), absl::OkStatus());
  EXPECT_EQ(Contents(log), "/\n");

  auto nowhere =
      StartProcess({.argv = {"/bin/sh"}, .log_path = log, .directory = "/no/such/folder"});
  EXPECT_TRUE(absl::IsNotFound(nowhere.status())) << nowhere.status();
}

TEST(ProcessTest, SaysHowAChildEnded) {
  auto killed = StartProcess({.argv = {"/bin/sleep", "1000"}, .log_path = LogPath("killed")});
  auto failed = StartProcess({.argv = {"/bin/sh", "-c", "exit 77"}, .log_path = LogPath("failed")});
  ASSERT_TRUE(killed.ok() && failed.ok());
  kill(killed->pid, SIGKILL);
  while (killed->alive() || failed->alive()) {
  }

  EXPECT_EQ(DescribeEnd(*killed), "was killed by signal 9");
  EXPECT_EQ(DescribeEnd(*failed), "ended with exit code 77");
  ASSERT_EQ(AwaitExit({*killed, *failed}, absl::ZeroDuration()), absl::OkStatus());
  EXPECT_EQ(DescribeEnd(*killed), "ended");
}

TEST(ProcessTest, StopsWithSigtermThenSigkill) {
  auto gentle = StartProcess({.argv = {"/bin/sleep", "1000"}, .log_path = LogPath("gentle")});
  auto stubborn = StartProcess(
      {.argv = {"/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"},
       .log_path = LogPath("stubborn")});
  ASSERT_TRUE(gentle.ok() && stubborn.ok());
  EXPECT_TRUE(gentle->alive());
  while (Contents(LogPath("stubborn")).empty()) {
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(AwaitExit({*gentle}, absl::Milliseconds(20))));

  StopProcesses({*gentle, *stubborn}, absl::Milliseconds(200));

  EXPECT_FALSE(gentle->alive());
  EXPECT_FALSE(stubborn->alive());
}

// Returns the fields of /proc/<pid>/stat after the name: [0] is the state, [19] the start time.
std::vector<std::string> StatOf(pid_t pid) {
  const std::string stat = Contents(absl::StrCat("/proc/", pid, "/stat"));
  return absl::StrSplit(stat.substr(stat.rfind(')') + 2), ' ');
}

TEST(ProcessTest, LivesUntilItsLastThreadHasEnded) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    close(ends[1]);
    std::thread([fd = ends[0]] {
      char end;
      (void)!read(fd, &end, 1);
      _exit(0);
    }).detach();
    syscall(SYS_exit, 0);  // ends this thread only
  }
  while (StatOf(pid)[0] != "Z") {
  }
  Process process{.pid = pid};
  ASSERT_TRUE(absl::SimpleAtoi(StatOf(pid)[19], &process.start_ticks));

  EXPECT_TRUE(process.alive());
  close(ends[0]);
  close(ends[1]);
  EXPECT_EQ(AwaitExit({process}, absl::Seconds(10)), absl::OkStatus());
}

TEST(ProcessTest, AReusedIdIsAnotherProcess) {
  auto process = StartProcess({.argv = {"/bin/sleep", "1000"}, .log_path = LogPath("reused")});
  ASSERT_TRUE(process.ok());

  Process before = *process;
  before.start_ticks -= 1;

  EXPECT_FALSE(before.alive());
  StopProcesses({before}, absl::ZeroDuration());  // must not signal the running process
  EXPECT_TRUE(process->alive());
  StopProcesses({*process}, absl::Seconds(10));
}

}  // namespace
}  // namespace muster::cli::process_test
