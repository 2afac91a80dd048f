#include "lib/program/child_process.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::child_process_test {
namespace {

using ::testing::ElementsAre;

// Runs a shell script and keeps its output.
class Script {
 public:
  explicit Script(const std::string& text, std::vector<std::string> environment = {}) {
    auto started = ChildProcess::Start({.argv = {"sh", "-c", text},
                                        .environment = std::move(environment),
                                        .on_line =
                                            [this](OutputStream stream, absl::string_view line) {
                                              auto& lines =
                                                  stream == OutputStream::kStdout ? out : err;
                                              lines.emplace_back(line);
                                              if (line == "ready\n") ready.Notify();
                                            },
                                        .on_end =
                                            [this](const ProcessEnd& end) {
                                              last = end;
                                              ended.Notify();
                                            }});
    EXPECT_TRUE(started.ok()) << started.status();
    if (started.ok()) child = *std::move(started);
  }

  std::vector<std::string> out, err;
  ProcessEnd last;
  absl::Notification ready, ended;
  std::unique_ptr<ChildProcess> child;
};

TEST(ChildProcessTest, GivesEachLineWithItsEnd) {
  Script script(R"(printf 'one\ntwo\r\n10%%\r20%%\rlast'; printf 'error\n' >&2)");
  script.ended.WaitForNotification();

  EXPECT_THAT(script.out, ElementsAre("one\n", "two\r\n", "10%\r", "20%\r", "last"));
  EXPECT_THAT(script.err, ElementsAre("error\n"));
  EXPECT_TRUE(script.last.ok());
}

TEST(ChildProcessTest, CutsALongLine) {
  Script script("head -c 40000 /dev/zero | tr '\\0' x");
  script.ended.WaitForNotification();

  EXPECT_THAT(script.out, ElementsAre(std::string(16384, 'x'), std::string(16384, 'x'),
                                      std::string(7232, 'x')));
}

TEST(ChildProcessTest, VariablesReplaceThoseOfThisProcess) {
  setenv("CHILD_TEST_KEPT", "kept", 1);
  setenv("CHILD_TEST_REPLACED", "old", 1);
  Script script(R"(echo "$CHILD_TEST_KEPT $CHILD_TEST_REPLACED $CHILD_TEST_ADDED")",
                {"CHILD_TEST_REPLACED=new", "CHILD_TEST_ADDED=a=b"});
  script.ended.WaitForNotification();

  EXPECT_THAT(script.out, ElementsAre("kept new a=b\n"));
}

TEST(ChildProcessTest, ALaterValueReplacesAnEarlierOne) {
  Script script(R"(tr '\0' '\n' </proc/$$/environ | grep ^CHILD_TEST_TWICE)",
                {"CHILD_TEST_TWICE=1", "CHILD_TEST_TWICE=2"});
  script.ended.WaitForNotification();

  EXPECT_THAT(script.out, ElementsAre("CHILD_TEST_TWICE=2\n"));
}

TEST(ChildProcessTest, SaysHowItEnded) {
  Script failed("exit 3");
  Script killed("kill -SEGV $$");
  failed.ended.WaitForNotification();
  killed.ended.WaitForNotification();

  EXPECT_EQ(failed.last.ToString(), "ended with exit code 3");
  EXPECT_EQ(failed.last.ShellCode(), 3);
  EXPECT_EQ(killed.last.ToString(), "was killed by signal 11 (Segmentation fault)");
  EXPECT_EQ(killed.last.ShellCode(), 139);
}

TEST(ChildProcessTest, AProgramThatCannotRunIsAnError) {
  const auto no_program = ChildProcess::Start({.argv = {"no-such-program"}});
  EXPECT_TRUE(absl::IsNotFound(no_program.status())) << no_program.status();
  const auto no_folder = ChildProcess::Start({.argv = {"true"}, .directory = "/no/such/folder"});
  EXPECT_TRUE(absl::IsNotFound(no_folder.status())) << no_folder.status();
}

// Blocks until no process has the id.
void AwaitGone(const std::string& pid) {
  for (std::string state = "R"; !state.empty() && state != "Z";) {
    std::ifstream stat("/proc/" + pid + "/stat");
    std::string id, name;
    state.clear();
    stat >> id >> name >> state;
  }
}

TEST(ChildProcessTest, TheGroupEndsWithTheProcess) {
  Script script("sleep 600 & echo $!");
  script.ended.WaitForNotification();

  ASSERT_EQ(script.out.size(), 1);
  AwaitGone(script.out[0].substr(0, script.out[0].size() - 1));
}

TEST(ChildProcessTest, TheDestructorKillsTheGroup) {
  Script script("trap '' TERM; sleep 600 & echo $!; echo ready; wait");
  script.ready.WaitForNotification();
  script.child->Signal(SIGTERM);  // ignored by the shell, and by its child
  script.child.reset();

  EXPECT_EQ(script.last.signal, SIGKILL);
  AwaitGone(script.out[0].substr(0, script.out[0].size() - 1));
}

TEST(ChildProcessTest, DiesWithTheProcessThatStartedIt) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t launcher = fork();
  if (launcher == 0) {
    Script script("echo $$; echo ready; exec sleep 600");
    script.ready.WaitForNotification();
    if (write(ends[1], script.out[0].data(), script.out[0].size()) <= 0) _exit(1);
    pause();
  }
  std::array<char, 16> pid = {};
  ASSERT_GT(read(ends[0], pid.data(), pid.size() - 1), 0);

  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);

  AwaitGone(std::to_string(std::atoi(pid.data())));
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace muster::child_process_test
