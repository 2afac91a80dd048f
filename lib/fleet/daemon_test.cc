#include "lib/fleet/daemon.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "lib/job/resource_name.h"

ABSL_FLAG(int, of_the_test, 0, "a number");

namespace muster::daemon_test {
namespace {

TEST(DaemonTest, DefaultNamesAreValidAndSayTheRole) {
  const std::string name = DefaultMemberName(v1::PS);
  EXPECT_TRUE(IsValidName(name)) << name;
  EXPECT_EQ(name.substr(0, 3), "ps-");
}

TEST(DaemonTest, EveryIntroductionIsANewIncarnation) {
  const v1::Hello first = Introduce(v1::WORKER, "w"), second = Introduce(v1::WORKER, "w");
  EXPECT_EQ(first.member(), "w");
  EXPECT_NE(first.incarnation(), second.incarnation());
}

ExitCode ReadFlags(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "daemon_test");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  return ParseCommandLine(static_cast<int>(argv.size()), argv.data(), "A test.");
}
void Parse(const std::vector<std::string>& arguments) { std::exit(ReadFlags(arguments)); }

// A supervisor must not restart a process with these exit codes.
TEST(DaemonDeathTest, AFaultyCommandLineEndsWithAPermanentExitCode) {
  using ::testing::ExitedWithCode;
  EXPECT_EXIT(Parse({"--no_such_flag=1"}), ExitedWithCode(kExitUsage), "no_such_flag");
  EXPECT_EXIT(Parse({"--of_the_test=high"}), ExitedWithCode(kExitUsage), "of_the_test");
  EXPECT_EXIT(Parse({"argument"}), ExitedWithCode(kExitUsage), "unexpected argument 'argument'");
  EXPECT_EXIT(Parse({"--help"}), ExitedWithCode(1), "");
  EXPECT_EXIT(Parse({}), ExitedWithCode(kExitOk), "");
}

TEST(DaemonDeathTest, AMistypedFlagGetsASuggestion) {
  using ::testing::ExitedWithCode;
  const char kMeant[] = "--off_the_test: did you mean --of_the_test\\?";
  EXPECT_EXIT(Parse({"--off_the_test=1"}), ExitedWithCode(kExitUsage), kMeant);
  EXPECT_EXIT(Parse({"--off-the-test", "1"}), ExitedWithCode(kExitUsage), kMeant);

  const std::string file = ::testing::TempDir() + "/daemon_test.flags";
  std::ofstream(file) << "# settings\n  --off_the_test=1\n";
  EXPECT_EXIT(Parse({"--flagfile=" + file}), ExitedWithCode(kExitUsage), kMeant);
  EXPECT_EXIT(Parse({"--flagfile", file}), ExitedWithCode(kExitUsage), kMeant);
  // No suggestion if no flag is similar, or if the flag is known and its value is wrong.
  EXPECT_EXIT(Parse({"--zzz=1"}), ExitedWithCode(kExitUsage), "'zzz'\n$");
  EXPECT_EXIT(Parse({"--of_the_test=high"}), ExitedWithCode(kExitUsage), "high[^?]*$");
}

rlim_t CoreBytesMax() {
  rlimit limit;
  getrlimit(RLIMIT_CORE, &limit);
  return limit.rlim_cur;
}

// Raises the limit of core dumps as far as allowed, then reads the flags.
void StartWhereDumpsAreWanted(const std::vector<std::string>& arguments) {
  rlimit limit;
  getrlimit(RLIMIT_CORE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_CORE, &limit);
  ReadFlags(arguments);
}

TEST(DaemonDeathTest, ACrashLeavesACoreDumpOnlyWithTheFlag) {
  auto without_dump = [](int status) {
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && !WCOREDUMP(status);
  };
  auto crash = [] {
    StartWhereDumpsAreWanted({});
    std::fprintf(stderr, "may have %d bytes\n", static_cast<int>(CoreBytesMax()));
    std::abort();
  };
  EXPECT_EXIT(crash(), without_dump, "may have [01] bytes");

  rlimit limit;
  getrlimit(RLIMIT_CORE, &limit);
  auto ask = [] {
    StartWhereDumpsAreWanted({"--core_dumps"});
    std::exit(CoreBytesMax() > 1 ? 1 : 0);
  };
  EXPECT_EXIT(ask(), ::testing::ExitedWithCode(limit.rlim_max > 1 ? 1 : 0), "");
}

TEST(DaemonTest, StopSignalIsTakenByWaiting) {
  StopSignal stop;
  EXPECT_EQ(stop.Await(absl::ZeroDuration()), 0);
  raise(SIGTERM);
  EXPECT_EQ(stop.Await(), SIGTERM);
}

// Sends `signal` from another process, because signals of this process do not count.
void Tell(int signal) {
  const pid_t told = getpid();
  const pid_t teller = fork();
  if (teller == 0) _exit(kill(told, signal));
  waitpid(teller, nullptr, 0);
}

// Sends `signal` until the process ends: the first ones may still count as the same request.
void TellUntilItEnds(int signal) {
  const absl::Time give_up = absl::Now() + absl::Seconds(30);
  while (absl::Now() < give_up) Tell(signal);
}

TEST(DaemonDeathTest, ASecondSignalEndsTheProcessAtOnce) {
  using ::testing::ExitedWithCode;
  auto tell_twice = [](int first, int second) {
    const StopSignal stop;
    Tell(first);
    if (stop.Await() == first) TellUntilItEnds(second);
    std::exit(kExitOk);
  };
  EXPECT_EXIT(tell_twice(SIGTERM, SIGTERM), ExitedWithCode(143), "told to stop again");
  EXPECT_EXIT(tell_twice(SIGTERM, SIGINT), ExitedWithCode(130), "");
  EXPECT_EXIT(tell_twice(SIGINT, SIGTERM), ExitedWithCode(143), "");
}

TEST(DaemonDeathTest, SignalsSentTogetherCountAsOne) {
  // Both signals are pending when Await() begins; the second arrives as soon as Await() has taken
  // the first.
  auto tell_at_once = [] {
    const StopSignal stop;
    Tell(SIGTERM);
    Tell(SIGINT);
    stop.Await();
    std::exit(kExitOk);
  };
  EXPECT_EXIT(tell_at_once(), ::testing::ExitedWithCode(kExitOk), "");
}

// A member that is being drained may still be told to stop; that is its first signal from outside.
// Signals that its own threads raise do not count.
TEST(DaemonDeathTest, SignalsRaisedByTheProcessItselfDoNotCount) {
  using ::testing::ExitedWithCode;
  auto raise_and_tell = [](bool again) {
    const StopSignal stop;
    StopSignal::Raise();
    stop.Await();
    StopSignal::Raise();
    Tell(SIGTERM);
    StopSignal::Raise();
    if (again) TellUntilItEnds(SIGTERM);
    std::exit(kExitOk);
  };
  EXPECT_EXIT(raise_and_tell(false), ExitedWithCode(kExitOk), "");
  EXPECT_EXIT(raise_and_tell(true), ExitedWithCode(143), "");
}

}  // namespace
}  // namespace muster::daemon_test
