// Declares commands, options and arguments, and parses command lines with CLI11. Its templates add
// seconds of compilation to every source that includes them, so only command.cc does.
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

// An option, a flag, or a positional argument. A handle: copies refer to the same option, which
// lives as long as the CommandLine. Setters return the option, so that calls can be chained.
class Option {
 public:
  // Makes it an error to leave the option out.
  Option Required();
  // Takes the value from an environment variable if the command line does not give it.
  Option FromEnvironment(const std::string& variable);
  // Makes it an error to give both options.
  Option Excludes(Option other);
  // For an option with several values: each needs its own "--set". In "--set A B" the B is an
  // argument.
  Option OneValueEach();
  // For an option with several values: "A,B" is two values.
  Option SplitAt(char delimiter);

  // Restrict the value: an integer within bounds, a number above zero, or one of these words.
  // Check() takes a function that returns the fault to show to the user, or "" if there is none.
  Option Within(int64_t least, int64_t greatest);
  Option Positive();
  Option OneOf(const std::vector<std::string>& words);
  Option Check(std::function<std::string(const std::string& value)> fault);

  // Returns whether the command line or the environment gave it. Valid after Run().
  bool given() const;

  // Returns the name of a positional argument, "JOB", or "" for an option.
  std::string argument() const;
  // Returns "--selector" and "-l", long names first. Empty for a positional argument.
  std::vector<std::string> names() const;
  // Returns false for a flag.
  bool takes_value() const;

 private:
  friend class Command;
  explicit Option(CLI::Option* option) : option_(option) {}

  CLI::Option* option_;
};

// A command. The program itself is the outermost command. A handle, as an Option is.
class Command {
 public:
  // Adds a command below this one. Its help ends with `example`. It accepts the options of the
  // commands above it, too.
  Command AddCommand(const std::string& name, const std::string& description,
                     const std::string& example);

  // Adds an option ("-o,--output") or a positional argument ("FILE"). Run() stores the value in
  // `value`, which keeps its default if nothing is given and must outlive the CommandLine. A vector
  // takes several values.
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
  // Adds a flag. "--wait" sets `value`. "--wait=false" clears it, as does "--no-wait" if `names` is
  // "--wait,!--no-wait".
  Option AddFlag(const std::string& names, bool& value, const std::string& help);

  // Sets what the command does after all values are set. Actions of named subcommands run first.
  void SetAction(std::function<void()> action);
  // Sets what the program does after all values are set, before the action of any command.
  void SetPreparation(std::function<void()> preparation);
  // Makes it an error to name no subcommand.
  void RequireCommand();

  void SetDescription(const std::string& description);
  // Sets the last part of the help.
  void SetFooter(const std::string& footer);
  // Sets the heading under which the parent's help lists this command. "" hides it.
  void SetGroup(const std::string& group);
  // Replaces the list of subcommands in the help.
  void SetCommandList(std::function<std::string()> list);

  // Returns whether the command line gave this option of the command. False if only the environment
  // did.
  bool on_command_line(Option option) const;
  // Returns whether the command line named a subcommand. Valid after Run().
  bool command_given() const;

  std::string name() const;
  std::string description() const;
  std::string group() const;
  // Return the subcommands and options in the order in which they were added. --help is the first
  // option.
  std::vector<Command> commands() const;
  std::vector<Option> options() const;
  std::optional<Command> FindCommand(const std::string& name) const;
  std::optional<Option> FindOption(const std::string& name) const;  // by "--output" or "-o"
  // Returns the help. `above` has the words before the command's name in the usage line.
  std::string help(const std::string& above = "") const;

 private:
  friend class CommandLine;
  explicit Command(CLI::App* app) : app_(app) {}

  CLI::App* app_;
};

// Owns the commands and options of the program.
class CommandLine {
 public:
  // Makes a program whose only option is --help.
  explicit CommandLine(const std::string& program);
  ~CommandLine();

  Command program() const { return Command(app_.get()); }

  // Parses the command line, sets the values and calls the actions. Prints the help instead if it
  // was requested. Returns INVALID_ARGUMENT, before any action, if the arguments do not fit the
  // declarations. Requires: called at most once.
  absl::Status Run(int argc, char** argv);

 private:
  const std::unique_ptr<CLI::App> app_;
};

}  // namespace muster::cli
