// Commands, options and arguments, and how a command line is read. CLI11 does it. Its templates
// cost a source that includes them seconds of compilation, so command.cc alone does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace muster::cli {

// An option, a flag, or an argument, which is told by its place. Like a pointer: a copy is the same
// option, which lives as long as the CommandLine. What changes it returns it, for the next change.
class Option {
 public:
  // The command line must give it.
  Option Required();
  // A variable of the environment has the value when the command line does not give it.
  Option FromEnvironment(const std::string& variable);
  // The command line gives one of the two at most.
  Option Excludes(Option other);
  // Of several values: "--set A --set B", while "--set A B" is --set with A and an argument B.
  Option OneValueEach();
  // Of several values: "A,B" is two.
  Option SplitAt(char delimiter);

  // What else a value must be: an integer within bounds, a number above zero, one of these words,
  // or something without a fault ("": none; else what to tell the user).
  Option Within(int64_t least, int64_t greatest);
  Option Positive();
  Option OneOf(const std::vector<std::string>& words);
  Option Check(std::function<std::string(const std::string& value)> fault);

  // The command line that was run gave it, or the environment did.
  bool given() const;

  // "JOB"; "" of an option.
  std::string argument() const;
  // "--selector" and "-l", long ones first; none of an argument.
  std::vector<std::string> names() const;
  // False of a flag.
  bool takes_value() const;

 private:
  friend class Command;
  explicit Option(CLI::Option* option) : option_(option) {}

  CLI::Option* option_;
};

// A command, of which the program itself is the outermost. Like a pointer, as an Option is.
class Command {
 public:
  // A command below this one, whose help ends with `example`. Options of the commands above may
  // stand behind it, too.
  Command AddCommand(const std::string& name, const std::string& description,
                     const std::string& example);

  // `names`: "-o,--output", or the one word of an argument, "FILE". `value`, which outlives the
  // CommandLine, keeps its default where nothing is given. A vector takes several values.
  Option AddOption(const std::string& names, std::string& value, const std::string& help);
  Option AddOption(const std::string& names, int& value, const std::string& help);
  Option AddOption(const std::string& names, int64_t& value, const std::string& help);
  Option AddOption(const std::string& names, std::optional<std::string>& value,
                   const std::string& help);
  Option AddOption(const std::string& names, std::optional<int>& value, const std::string& help);
  Option AddOption(const std::string& names, std::optional<uint64_t>& value,
                   const std::string& help);
  Option AddOption(const std::string& names, std::vector<std::string>& values,
                   const std::string& help);
  // Calls `take` with all values that were given.
  Option AddOption(const std::string& names,
                   std::function<void(const std::vector<std::string>& values)> take,
                   const std::string& help);
  // "--wait", which sets `value`; "--wait=false" and the "!--no-wait" of "--wait,!--no-wait" unset
  // it.
  Option AddFlag(const std::string& names, bool& value, const std::string& help);

  // What the command does, once all values are set. Those of the commands below that were named
  // come first.
  void SetAction(std::function<void()> action);
  // What the program does, once all values are set, before any command's action.
  void SetPreparation(std::function<void()> preparation);
  // The command line must name one of the commands below.
  void RequireCommand();

  void SetDescription(const std::string& description);
  // The end of the help.
  void SetFooter(const std::string& footer);
  // Under which heading the help above lists it; "": it does not.
  void SetGroup(const std::string& group);
  // What the help has instead of a line for each command below.
  void SetCommandList(std::function<std::string()> list);

  // The command line itself gave this option of the command's: the environment did not.
  bool on_command_line(Option option) const;
  // The command line that was run named one of the commands below.
  bool command_given() const;

  std::string name() const;
  std::string description() const;
  std::string group() const;
  // In the order in which they were added; --help comes first of the options.
  std::vector<Command> commands() const;
  std::vector<Option> options() const;
  std::optional<Command> FindCommand(const std::string& name) const;
  std::optional<Option> FindOption(const std::string& name) const;  // "--output" or "-o"
  // `above`: the words before its name, which the line on usage begins with.
  std::string help(const std::string& above = "") const;

 private:
  friend class CommandLine;
  explicit Command(CLI::App* app) : app_(app) {}

  CLI::App* app_;
};

// Owns the program's commands and options.
class CommandLine {
 public:
  // A program with nothing but --help.
  explicit CommandLine(const std::string& program);
  ~CommandLine();

  Command program() const { return Command(app_.get()); }

  // Sets the values and calls the actions, or prints a help that was asked for. INVALID_ARGUMENT,
  // before any action, when the arguments are not as declared. At most once.
  absl::Status Run(int argc, char** argv);

 private:
  const std::unique_ptr<CLI::App> app_;
};

}  // namespace muster::cli
