#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/substitute.h"
#include "cli/commands/completion.h"
#include "cli/commands/session.h"
#include "cli/framework/command.h"
#include "docs/reference_page.h"
#include "gmock/gmock.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"

namespace muster::cli::commands_test {
namespace {

using ::testing::HasSubstr;

// Returns the exit code of `muster arguments...`.
int ExitOf(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "muster");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  Session session;
  return RunCommandLine(static_cast<int>(argv.size()), argv.data(), session);
}

void ForEachCommand(Command command, const std::function<void(Command)>& visit) {
  visit(command);
  for (const Command& below : command.commands()) ForEachCommand(below, visit);
}

TEST(CommandsTest, EveryHelpHasAnExampleAndFitsTheScreen) {
  Session session;
  CommandLine line("muster");
  BuildCommandLine(line.program(), session);
  int commands = 0;
  ForEachCommand(line.program(), [&](Command command) {
    ++commands;
    SCOPED_TRACE(command.name());
    const std::string help = command.help();
    EXPECT_THAT(help, HasSubstr("Example:\n  muster "));
    const std::vector<std::string> lines = absl::StrSplit(help, '\n');
    EXPECT_LT(lines.size(), 40);
    for (const std::string& line : lines) EXPECT_LE(line.size(), 80) << line;
  });
  EXPECT_GE(commands, 20);
}

// Appends the help of a command and of its subcommands. `above` has the words before the command's
// name.
void AppendCommand(Command command, const std::string& above, std::string& page) {
  const std::string words = absl::StrCat(above, above.empty() ? "" : " ", command.name());
  absl::StrAppend(&page, "\n## ", words, "\n\n```text\n", command.help(above), "```\n");
  for (const Command& below : command.commands()) AppendCommand(below, words, page);
}

TEST(CommandsTest, ReferencePageHasEveryHelp) {
  Session session;
  CommandLine line("muster");
  BuildCommandLine(line.program(), session);
  std::string page =
      "# Commands\n\n"
      "What `muster COMMAND --help` prints, of every command; made by "
      "`//cli/commands:commands_test`. What "
      "they have in common is in [command_line.md](../command_line.md),\n"
      "the file that a job is made of in [job_spec.md](../job_spec.md).\n";
  AppendCommand(line.program(), "", page);
  ExpectReferencePage("cli.md", page, "//cli/commands:commands_test");
}

TEST(CommandsTest, SuggestsTheNearestCommand) {
  Session session;
  CommandLine line("muster");
  BuildCommandLine(line.program(), session);

  EXPECT_EQ(UnknownCommand(line.program(), {"sumbit", "x.yaml"}),
            "unknown command 'sumbit'; did you mean 'submit'?");
  EXPECT_EQ(UnknownCommand(line.program(), {"--server", "host:1", "checkpoint", "lst"}),
            "unknown command 'lst'; did you mean 'list'?");
  EXPECT_THAT(UnknownCommand(line.program(), {"frobnicate"}),
              HasSubstr("the commands are run, launch, local, submit"));
  EXPECT_EQ(UnknownCommand(line.program(), {"get", "sumbit"}), "");
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
  EXPECT_EQ(ExitOf({"explain", "training.optimizer"}), 0);
  EXPECT_EQ(ExitOf({"explain", "training.optimiser"}), 3);
  EXPECT_EQ(ExitOf({"init", "--model", "resnet50"}), 0);
  EXPECT_EQ(ExitOf({"init", "--model", "resnet49"}), 2);
  EXPECT_EQ(ExitOf({"init", "/proc/here.yaml"}), 3);
  EXPECT_EQ(ExitOf({"list", "-o", "jsonpath={.jobs", "--server", "127.0.0.1:1"}), 2);
  EXPECT_EQ(ExitOf({"list", "--sort", "size", "--server", "127.0.0.1:1"}), 2);
  EXPECT_EQ(ExitOf({"logs", "--server", "127.0.0.1:1"}), 2);
  EXPECT_EQ(ExitOf({"update", "a-1", "--server", "127.0.0.1:1"}), 2);
  EXPECT_EQ(ExitOf({"update", "a-1", "--label", "team", "--server", "127.0.0.1:1"}), 2);
  EXPECT_EQ(ExitOf({"doctor", "--server", "127.0.0.1:1"}), 1);
  EXPECT_EQ(ExitOf({"list", "--context", "nobody"}), 3);
  EXPECT_EQ(ExitOf({"list", "--server", "127.0.0.1"}), 2);
  EXPECT_EQ(ExitOf({"context", "add", "x", "--server", "127.0.0.1"}), 2);
  EXPECT_EQ(ExitOf({"local", "up", "--dir", "/proc/nope"}), 2);
}

TEST(CommandsTest, ConvertsDataAndReplacesFilesOnlyIfForced) {
  const std::string in = ::testing::TempDir() + "/converted.gz",
                    out = ::testing::TempDir() + "/converted";
  std::ofstream(in, std::ios::binary)
      << absl::HexStringToBytes("1f8b0800000000000003cbc80400ac2a93d802000000");
  EXPECT_EQ(ExitOf({"data", "convert", in, out}), 0);
  std::ifstream file(out);
  EXPECT_EQ(std::string((std::istreambuf_iterator<char>(file)), {}), "hi");
  EXPECT_EQ(ExitOf({"data", "convert", in, out}), 6);
  EXPECT_EQ(ExitOf({"data", "convert", in, out, "--force", "-o", "json"}), 0);
  testing::internal::CaptureStdout();
  EXPECT_EQ(ExitOf({"data", "convert", in, out, "--force", "-o", "name"}), 0);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), out + "\n");
  EXPECT_EQ(ExitOf({"data", "convert", out, in, "--force"}), 2) << "it is not compressed";
  EXPECT_EQ(ExitOf({"data", "convert", "/no/such/file", out}), 3);
  EXPECT_EQ(ExitOf({"data", "convert"}), 2);
}

TEST(CommandsTest, BenchDataCountsDamagedSamples) {
  const std::string folder = ::testing::TempDir();
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(absl::StrCat(folder, "/bench_data_", name)) << text;
  };
  write("classes.txt", "a\nb\n");
  write("table.csv", "x,y,class\n1,2,a\n3,4,b\n5,no number,a\n7,8,b\n");
  write("job.yaml", absl::Substitute(R"(name: table
model: {zoo: {name: mlp, args: {inputs: 2, hidden: "4", classes: 2}}}
data:
  csv:
    path: $0/bench_data_table.csv
    inputs:
      input: {columns: [x, y], number: {}}
      target: {columns: [class], vocabulary: {path: $0/bench_data_classes.txt}}
  batch_size: 2
  shuffle: {block: {}}
  damaged_max: 1
training: {steps: 10, optimizer: {sgd: {learning_rate: 0.1}}}
)",
                                     folder));
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(ExitOf({"-o", "json", "bench", "data", folder + "/bench_data_job.yaml", "--seconds",
                    "0.01", "--threads", "2"}),
            0);
  google::protobuf::Struct result;
  ASSERT_TRUE(
      google::protobuf::util::JsonStringToMessage(::testing::internal::GetCapturedStdout(), &result)
          .ok());
  const auto number = [&](const std::string& name) {
    return result.fields().at(name).number_value();
  };
  EXPECT_EQ(number("samples"), 4);
  EXPECT_EQ(number("threads"), 2);
  EXPECT_GT(number("capacity_per_second"), 0);
  EXPECT_GE(number("substituted"), 1) << "once in an epoch";
}

TEST(CommandsTest, TheCommandLineOverridesTheEnvironment) {
  setenv("MUSTER_SERVER", "127.0.0.1:1", 1);
  EXPECT_EQ(ExitOf({"list"}), 7);
  EXPECT_EQ(ExitOf({"list", "--context", "nobody"}), 3);
  EXPECT_EQ(ExitOf({"--context", "nobody", "list"}), 3);
  setenv("MUSTER_CONTEXT", "nobody", 1);
  EXPECT_EQ(ExitOf({"list", "--context", "nobody"}), 3)
      << "the context of the environment was used";
  EXPECT_EQ(ExitOf({"list"}), 7) << "in the environment the server goes before the context";
  unsetenv("MUSTER_SERVER");
  EXPECT_EQ(ExitOf({"list"}), 3);
  EXPECT_EQ(ExitOf({"list", "--server", "127.0.0.1:1"}), 7);
  EXPECT_EQ(ExitOf({"list", "--server", "127.0.0.1:1", "--context", "nobody"}), 2);
  unsetenv("MUSTER_CONTEXT");
}

TEST(CommandsTest, AnUnreachableServerIsUnavailable) {
  EXPECT_EQ(ExitOf({"list", "--server", "127.0.0.1:1"}), 7);
  EXPECT_EQ(ExitOf({"watch", "a-1", "--server", "127.0.0.1:1"}), 7);
  EXPECT_EQ(ExitOf({"--server", "127.0.0.1:1", "members"}), 7);
}

// Returns the completions that bash offers after these words, in one line.
std::string Completed(const std::string& words, const std::string& script) {
  const std::string path = ::testing::TempDir() + "/completion.bash";
  std::ofstream(path) << script;
  const std::string command =
      absl::StrCat("bash -c 'PATH=/usr/bin:/bin; source ", path, "; COMP_WORDS=(", words,
                   "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _muster; echo ${COMPREPLY[@]}' 2>&1");
  std::FILE* const pipe = popen(command.c_str(), "r");
  std::string text;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) text += static_cast<char>(c);
  EXPECT_EQ(pclose(pipe), 0) << text;
  return text;
}

TEST(CommandsTest, BashCompletesCommandsAndOptions) {
  Session session;
  CommandLine line("muster");
  BuildCommandLine(line.program(), session);
  const auto script = CompletionScript(line.program(), "bash");
  ASSERT_TRUE(script.ok()) << script.status();

  EXPECT_EQ(Completed("muster checkp", *script), "checkpoint\n");
  EXPECT_EQ(Completed("muster checkpoint de", *script), "delete\n");
  EXPECT_EQ(Completed("muster --server host:1 list --se", *script), "--selector\n");
  EXPECT_THAT(Completed("muster top --", *script), HasSubstr("--once"));
  EXPECT_THAT(Completed("muster trace --", *script), HasSubstr("--steps"));
  for (const char* shell : {"zsh", "fish"}) {
    const auto other = CompletionScript(line.program(), shell);
    ASSERT_TRUE(other.ok());
    EXPECT_THAT(*other, HasSubstr("checkpoint"));
    if (std::system(absl::StrCat("command -v ", shell, " > /dev/null").c_str()) != 0) continue;
    const std::string path = absl::StrCat(::testing::TempDir(), "/completion.", shell);
    std::ofstream(path) << *other;
    EXPECT_EQ(std::system(absl::StrCat(shell, " -n ", path).c_str()), 0)
        << "the script has a syntax error";
  }
  EXPECT_FALSE(CompletionScript(line.program(), "tcsh").ok());
}

}  // namespace
}  // namespace muster::cli::commands_test
