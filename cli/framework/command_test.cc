#include "cli/framework/command.h"

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::cli::command_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Runs `muster words...`.
absl::Status RunWith(CommandLine& line, std::vector<std::string> words) {
  words.insert(words.begin(), "muster");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  return line.Run(static_cast<int>(argv.size()), argv.data());
}

// Returns the error of RunWith() for these words, on a command line with one option that `add`
// restricts.
template <typename Value, typename Add>
std::string FaultOf(Value& value, const Add& add, const std::vector<std::string>& words) {
  CommandLine line("muster");
  add(line.program().AddOption("-n,--number", value, "A value"));
  return std::string(RunWith(line, words).message());
}

TEST(CommandTest, SetsTheValuesOfEveryType) {
  CommandLine line("muster");
  std::string text = "default", untouched = "default";
  int count = 0;
  int64_t large = 0;
  std::optional<std::string> word;
  std::optional<int> absent;
  std::optional<uint64_t> seed;
  bool on = false, off = true;
  Command program = line.program();
  program.AddOption("--text", text, "");
  program.AddOption("--untouched", untouched, "");
  program.AddOption("-c,--count", count, "");
  program.AddOption("--large", large, "");
  program.AddOption("--word", word, "");
  program.AddOption("--absent", absent, "");
  program.AddOption("--seed", seed, "");
  program.AddFlag("--on", on, "");
  program.AddFlag("--off,!--no-off", off, "");

  ASSERT_TRUE(RunWith(line, {"--text=a b", "-c3", "--large", "5000000000", "--word", "w", "--seed",
                             "18446744073709551615", "--on", "--no-off"})
                  .ok());
  EXPECT_EQ(text, "a b");
  EXPECT_EQ(untouched, "default");
  EXPECT_EQ(count, 3);
  EXPECT_EQ(large, 5'000'000'000);
  EXPECT_EQ(word, "w");
  EXPECT_EQ(absent, std::nullopt);
  EXPECT_EQ(seed, ~uint64_t{0});
  EXPECT_TRUE(on);
  EXPECT_FALSE(off);
}

TEST(CommandTest, TakesSeveralValues) {
  CommandLine line("muster");
  std::vector<std::string> files, settings, states, taken;
  Command program = line.program();
  program.AddOption("FILE", files, "");
  program.AddOption("--set", settings, "").OneValueEach();
  program.AddOption("--state", states, "").OneValueEach().SplitAt(',');
  program.AddOption(
      "--take", [&](const std::vector<std::string>& given) { taken = given; }, "");

  ASSERT_TRUE(RunWith(line, {"--set", "a=1", "one", "--set", "b=2", "two", "--state", "x,y",
                             "--take", "p", "q"})
                  .ok());
  EXPECT_THAT(files, ElementsAre("one", "two"));
  EXPECT_THAT(settings, ElementsAre("a=1", "b=2"));
  EXPECT_THAT(states, ElementsAre("x", "y"));
  EXPECT_THAT(taken, ElementsAre("p", "q"));
}

TEST(CommandTest, RejectsValuesThatDoNotFitTheDeclaration) {
  int number = 0;
  std::string word;
  const auto within = [](Option option) { option.Within(1, 64); };
  const auto positive = [](Option option) { option.Positive(); };
  const auto one_of = [](Option option) { option.OneOf({"red", "blue"}); };
  const auto check = [](Option option) {
    option.Check([](const std::string& value) { return value == "x" ? "no x" : ""; });
  };
  const auto required = [](Option option) { option.Required(); };

  EXPECT_EQ(FaultOf(number, within, {"-n", "64"}), "");
  EXPECT_EQ(FaultOf(number, within, {"-n", "65"}), "--number: Value 65 not in range 1 to 64");
  EXPECT_EQ(FaultOf(number, positive, {"-n", "1"}), "");
  EXPECT_EQ(FaultOf(number, positive, {"-n", "0"}), "--number: Value 0 is not above 0");
  EXPECT_EQ(FaultOf(word, one_of, {"-n", "red"}), "");
  EXPECT_EQ(FaultOf(word, one_of, {"-n", "green"}), "--number: green not in {red,blue}");
  EXPECT_EQ(FaultOf(word, check, {"-n", "y"}), "");
  EXPECT_EQ(FaultOf(word, check, {"-n", "x"}), "--number: no x");
  EXPECT_EQ(FaultOf(word, required, {}), "--number is required");
  EXPECT_EQ(FaultOf(number, [](Option) {}, {"-n", "many"}), "Could not convert: --number = many");
}

TEST(CommandTest, RejectsOptionsThatExcludeEachOther) {
  for (const bool both : {false, true}) {
    CommandLine line("muster");
    bool fast = false, exact = false;
    const Option first = line.program().AddFlag("--exact", exact, "");
    const Option second = line.program().AddFlag("--fast", fast, "").Excludes(first);

    EXPECT_EQ(RunWith(line, both ? std::vector<std::string>{"--fast", "--exact"}
                                 : std::vector<std::string>{"--fast"})
                  .ok(),
              !both);
    EXPECT_EQ(first.given(), both);
    EXPECT_TRUE(second.given());
  }
}

TEST(CommandTest, TheCommandLineOverridesTheEnvironment) {
  setenv("COMMAND_TEST_SERVER", "from-environment", /*replace=*/1);
  for (const bool told : {false, true}) {
    CommandLine line("muster");
    std::string server;
    line.program().AddOption("--server", server, "").FromEnvironment("COMMAND_TEST_SERVER");

    const std::vector<std::string> words = {"--server", "told"};
    ASSERT_TRUE(RunWith(line, told ? words : std::vector<std::string>()).ok());
    EXPECT_EQ(server, told ? "told" : "from-environment");
  }
}

TEST(CommandTest, RunsTheCommandsThatAreNamedInnermostFirst) {
  CommandLine line("muster");
  std::string ran, server;
  line.program().AddOption("--server", server, "");
  line.program().RequireCommand();
  Command members = line.program().AddCommand("members", "Attached members", "muster members");
  members.SetAction([&] { ran += members.command_given() ? "members-below " : "members "; });
  Command drain = members.AddCommand("drain", "Drain a member", "muster members drain x");
  drain.SetAction([&] { ran += "drain "; });
  line.program().AddCommand("other", "", "").SetAction([&] { ran += "other "; });

  EXPECT_EQ(RunWith(line, {}).message(), "A subcommand is required");
  EXPECT_EQ(ran, "");
  ASSERT_TRUE(RunWith(line, {"members", "drain", "--server", "here"}).ok());
  EXPECT_EQ(ran, "drain members-below ");
  EXPECT_EQ(server, "here") << "an option of the parent, after the subcommand";
}

TEST(CommandTest, HelpIsPrintedInsteadOfAnAction) {
  CommandLine line("muster");
  bool ran = false;
  line.program().AddCommand("list", "All", "muster list").SetAction([&] { ran = true; });

  testing::internal::CaptureStdout();
  ASSERT_TRUE(RunWith(line, {"list", "--help"}).ok());
  const std::string help = testing::internal::GetCapturedStdout();
  EXPECT_THAT(help, HasSubstr("Usage: muster list [OPTIONS]\n"));
  EXPECT_THAT(help, HasSubstr("Example:\n  muster list\n"));
  EXPECT_FALSE(ran);
}

TEST(CommandTest, HelpUsesTheCommandListAndHidesCommandsWithoutAGroup) {
  CommandLine line("muster");
  Command program = line.program();
  program.SetDescription("What it is");
  program.SetFooter("The end");
  program.SetCommandList([] { return "\nA list\n"; });
  Command parent = program.AddCommand("parent", "", "");
  parent.AddCommand("seen", "", "");
  parent.AddCommand("hidden", "", "").SetGroup("");

  EXPECT_THAT(program.help(), HasSubstr("What it is\nUsage: muster [OPTIONS]"));
  EXPECT_THAT(program.help(), HasSubstr("\nA list\n"));
  EXPECT_THAT(program.help(), HasSubstr("The end\n"));
  EXPECT_THAT(program.help(), Not(HasSubstr("parent")));
  EXPECT_THAT(parent.help("muster"), HasSubstr("Usage: muster parent [OPTIONS]"));
  EXPECT_THAT(parent.help(), HasSubstr("  seen"));
  EXPECT_THAT(parent.help(), Not(HasSubstr("hidden")));
}

TEST(CommandTest, ReturnsItsCommandsAndOptions) {
  CommandLine line("muster");
  std::string value;
  bool flag = false;
  Command list = line.program().AddCommand("list", "All", "muster list");
  list.SetGroup("Jobs");
  list.AddOption("JOB", value, "");
  list.AddOption("-l,--selector", value, "");
  list.AddFlag("--watch", flag, "");

  ASSERT_EQ(line.program().commands().size(), 1);
  const Command same = line.program().commands()[0];
  EXPECT_EQ(same.name(), "list");
  EXPECT_EQ(same.description(), "All");
  EXPECT_EQ(same.group(), "Jobs");
  const std::vector<Option> options = same.options();
  ASSERT_EQ(options.size(), 4);
  EXPECT_THAT(options[0].names(), ElementsAre("--help", "-h"));
  EXPECT_EQ(options[1].argument(), "JOB");
  EXPECT_THAT(options[1].names(), IsEmpty());
  EXPECT_EQ(options[2].argument(), "");
  EXPECT_THAT(options[2].names(), ElementsAre("--selector", "-l"));
  EXPECT_TRUE(same.FindOption("-l")->takes_value());
  EXPECT_FALSE(same.FindOption("--watch")->takes_value());
  EXPECT_FALSE(same.FindOption("--nobody").has_value());
  EXPECT_EQ(line.program().FindCommand("list")->description(), "All");
  EXPECT_FALSE(line.program().FindCommand("lst").has_value());
}

}  // namespace
}  // namespace muster::cli::command_test
