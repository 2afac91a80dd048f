#include "lib/fleet/daemon.h"

#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "gtest/gtest.h"
#include "lib/job/resource_name.h"

ABSL_FLAG(int, of_the_test, 0, "a number");

namespace muster {
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

void Parse(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "daemon_test");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  std::exit(ParseCommandLine(static_cast<int>(argv.size()), argv.data(), "A test."));
}

// What a supervisor must not try again ends with a code that says so.
TEST(DaemonDeathTest, AFaultyCommandLineEndsTheProcessForGood) {
  using ::testing::ExitedWithCode;
  EXPECT_EXIT(Parse({"--no_such_flag=1"}), ExitedWithCode(kExitUsage), "no_such_flag");
  EXPECT_EXIT(Parse({"--of_the_test=high"}), ExitedWithCode(kExitUsage), "of_the_test");
  EXPECT_EXIT(Parse({"argument"}), ExitedWithCode(kExitUsage), "unexpected argument 'argument'");
  EXPECT_EXIT(Parse({"--help"}), ExitedWithCode(1), "");
  EXPECT_EXIT(Parse({}), ExitedWithCode(kExitOk), "");
}

TEST(DaemonTest, StopSignalIsTakenByWaiting) {
  StopSignal stop;
  EXPECT_EQ(stop.Await(absl::ZeroDuration()), 0);
  raise(SIGTERM);
  EXPECT_EQ(stop.Await(), SIGTERM);
}

}  // namespace
}  // namespace muster
