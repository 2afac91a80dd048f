#include <functional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_split.h"
#include "cli/session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::cli {
namespace {

using ::testing::HasSubstr;

// The exit code of `muster arguments...`.
int ExitOf(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "muster");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  Session session;
  return RunCommandLine(static_cast<int>(argv.size()), argv.data(), session);
}

void ForEachCommand(const CLI::App& app, const std::function<void(const CLI::App&)>& visit) {
  visit(app);
  for (const CLI::App* command : app.get_subcommands(std::function<bool(const CLI::App*)>())) {
    ForEachCommand(*command, visit);
  }
}

TEST(CommandsTest, EveryHelpHasAnExampleAndFitsTheScreen) {
  Session session;
  CLI::App app{"", "muster"};
  BuildCommandLine(app, session);
  int commands = 0;
  ForEachCommand(app, [&](const CLI::App& command) {
    ++commands;
    SCOPED_TRACE(command.get_name());
    const std::string help = command.help();
    EXPECT_THAT(help, HasSubstr("Example:\n  muster "));
    const std::vector<std::string> lines = absl::StrSplit(help, '\n');
    EXPECT_LT(lines.size(), 40);
    for (const std::string& line : lines) EXPECT_LE(line.size(), 80) << line;
  });
  EXPECT_GE(commands, 20);
}

TEST(CommandsTest, SuggestsTheCommandThatWasMeant) {
  Session session;
  CLI::App app{"", "muster"};
  BuildCommandLine(app, session);

  EXPECT_EQ(UnknownCommand(app, {"sumbit", "x.yaml"}),
            "unknown command 'sumbit'; did you mean 'submit'?");
  EXPECT_EQ(UnknownCommand(app, {"--server", "host:1", "checkpoint", "lst"}),
            "unknown command 'lst'; did you mean 'list'?");
  EXPECT_THAT(UnknownCommand(app, {"frobnicate"}), HasSubstr("there are run, local, submit"));
  EXPECT_EQ(UnknownCommand(app, {"get", "sumbit"}), "");
}

TEST(CommandsTest, ExitCodesAreStable) {
  EXPECT_EQ(ExitOf({"version"}), 0);
  EXPECT_EQ(ExitOf({"version", "-o", "json"}), 0);
  EXPECT_EQ(ExitOf({"--help"}), 0);
  EXPECT_EQ(ExitOf({"submit", "--help"}), 0);
  EXPECT_EQ(ExitOf({}), 2);
  EXPECT_EQ(ExitOf({"sumbit"}), 2);
  EXPECT_EQ(ExitOf({"version", "-o", "xml"}), 2);
  EXPECT_EQ(ExitOf({"get"}), 2);
  EXPECT_EQ(ExitOf({"validate", "/no/such/file.yaml"}), 2);
  EXPECT_EQ(ExitOf({"wait", "a-1", "--for", "sleeping", "--server", "127.0.0.1:1"}), 2);
  EXPECT_EQ(ExitOf({"wait", "a-1", "--timeout", "soon", "--server", "127.0.0.1:1"}), 2);
  EXPECT_EQ(ExitOf({"local", "status", "--dir", "/no/such/folder"}), 3);
  EXPECT_EQ(ExitOf({"checkpoint", "verify", "/no/such/folder"}), 3);
}

TEST(CommandsTest, NobodyAtTheServersAddressIsUnavailable) {
  EXPECT_EQ(ExitOf({"list", "--server", "127.0.0.1:1"}), 7);
  EXPECT_EQ(ExitOf({"watch", "a-1", "--server", "127.0.0.1:1"}), 7);
  EXPECT_EQ(ExitOf({"--server", "127.0.0.1:1", "members"}), 7);
}

}  // namespace
}  // namespace muster::cli
