#include "cli/framework/command.h"

#include <algorithm>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace muster::cli {
namespace {

// Replaces the list of subcommands in the help of one command. Subcommands inherit the formatter of
// their parent, so it applies the list only to `app`.
class ListFormatter final : public CLI::Formatter {
 public:
  ListFormatter(const CLI::App* app, std::function<std::string()> list)
      : app_(app), list_(std::move(list)) {}

  std::string make_subcommands(const CLI::App* app, CLI::AppFormatMode mode) const override {
    return app == app_ ? list_() : CLI::Formatter::make_subcommands(app, mode);
  }

 private:
  const CLI::App* const app_;
  const std::function<std::string()> list_;
};

// Removes the description of the validator. CLI11 would append it to the help text, which describes
// the values already.
void AddValidator(CLI::Option& option, CLI::Validator validator) {
  option.check(std::move(validator.description("")));
}

}  // namespace

Option Option::Required() {
  option_->required();
  return *this;
}

Option Option::FromEnvironment(const std::string& variable) {
  option_->envname(variable);
  return *this;
}

Option Option::Excludes(Option other) {
  option_->excludes(other.option_);
  return *this;
}

Option Option::OneValueEach() {
  option_->allow_extra_args(false);
  return *this;
}

Option Option::SplitAt(char delimiter) {
  option_->delimiter(delimiter);
  return *this;
}

Option Option::Within(int64_t least, int64_t greatest) {
  AddValidator(*option_, CLI::Range(least, greatest));
  return *this;
}

Option Option::Positive() {
  // CLI::PositiveNumber would print the largest double, which has 309 digits.
  return Check([](const std::string& value) {
    double number = 0;
    const bool is_number = absl::SimpleAtod(value, &number);  // another text has its own error
    return is_number && !(number > 0) ? absl::StrCat("Value ", value, " is not above 0") : "";
  });
}

Option Option::OneOf(const std::vector<std::string>& words) {
  AddValidator(*option_, CLI::IsMember(words));
  return *this;
}

Option Option::Check(std::function<std::string(const std::string& value)> fault) {
  AddValidator(*option_, CLI::Validator(std::move(fault), ""));
  return *this;
}

bool Option::given() const { return option_->count() > 0; }

std::string Option::argument() const {
  return option_->get_positional() ? option_->get_name(/*positional=*/true) : "";
}

std::vector<std::string> Option::names() const {
  std::vector<std::string> names;
  for (const std::string& name : option_->get_lnames()) names.push_back(absl::StrCat("--", name));
  for (const std::string& name : option_->get_snames()) names.push_back(absl::StrCat("-", name));
  return names;
}

bool Option::takes_value() const { return option_->get_items_expected_max() > 0; }

Command Command::AddCommand(const std::string& name, const std::string& description,
                            const std::string& example) {
  CLI::App* command = app_->add_subcommand(name, description);
  // fallthrough() allows options of the commands above after this command's name.
  command->fallthrough();
  command->footer(absl::StrCat("Example:\n  ", example));
  return Command(command);
}

Option Command::AddOption(const std::string& names, std::string& value, const std::string& help) {
  return Option(app_->add_option(names, value, help));
}

Option Command::AddOption(const std::string& names, int& value, const std::string& help) {
  return Option(app_->add_option(names, value, help));
}

Option Command::AddOption(const std::string& names, int64_t& value, const std::string& help) {
  return Option(app_->add_option(names, value, help));
}

Option Command::AddOption(const std::string& names, std::optional<std::string>& value,
                          const std::string& help) {
  return Option(app_->add_option(names, value, help));
}

Option Command::AddOption(const std::string& names, std::optional<int>& value,
                          const std::string& help) {
  return Option(app_->add_option(names, value, help));
}

Option Command::AddOption(const std::string& names, std::optional<uint64_t>& value,
                          const std::string& help) {
  return Option(app_->add_option(names, value, help));
}

Option Command::AddOption(const std::string& names, std::vector<std::string>& values,
                          const std::string& help) {
  return Option(app_->add_option(names, values, help));
}

Option Command::AddOption(const std::string& names,
                          std::function<void(const std::vector<std::string>& values)> take,
                          const std::string& help) {
  return Option(app_->add_option_function<std::vector<std::string>>(names, take, help));
}

Option Command::AddFlag(const std::string& names, bool& value, const std::string& help) {
  return Option(app_->add_flag(names, value, help));
}

void Command::SetAction(std::function<void()> action) { app_->callback(std::move(action)); }

void Command::SetPreparation(std::function<void()> preparation) {
  app_->parse_complete_callback(std::move(preparation));
}

void Command::RequireCommand() { app_->require_subcommand(1); }

void Command::SetDescription(const std::string& description) { app_->description(description); }

void Command::SetFooter(const std::string& footer) { app_->footer(footer); }

void Command::SetGroup(const std::string& group) { app_->group(group); }

void Command::SetCommandList(std::function<std::string()> list) {
  app_->formatter(std::make_shared<ListFormatter>(app_, std::move(list)));
}

bool Command::on_command_line(Option option) const {
  const auto& given = app_->parse_order();  // values from the environment are not in it
  return std::find(given.begin(), given.end(), option.option_) != given.end();
}

bool Command::command_given() const { return !app_->get_subcommands().empty(); }

std::string Command::name() const { return app_->get_name(); }

std::string Command::description() const { return app_->get_description(); }

std::string Command::group() const { return app_->get_group(); }

std::vector<Command> Command::commands() const {
  std::vector<Command> commands;
  for (CLI::App* command : app_->get_subcommands(std::function<bool(CLI::App*)>())) {
    commands.push_back(Command(command));
  }
  return commands;
}

std::vector<Option> Command::options() const {
  std::vector<Option> options;
  for (CLI::Option* option : app_->get_options()) options.push_back(Option(option));
  return options;
}

std::optional<Command> Command::FindCommand(const std::string& name) const {
  for (const Command& command : commands()) {
    if (command.name() == name) return command;
  }
  return std::nullopt;
}

std::optional<Option> Command::FindOption(const std::string& name) const {
  CLI::Option* const option = app_->get_option_no_throw(name);
  return option == nullptr ? std::nullopt : std::optional(Option(option));
}

std::string Command::help(const std::string& above) const { return app_->help(above); }

CommandLine::CommandLine(const std::string& program)
    : app_(std::make_unique<CLI::App>("", program)) {}

CommandLine::~CommandLine() = default;

absl::Status CommandLine::Run(int argc, char** argv) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::Success& help) {
    // CLI11 throws Success after --help. exit() prints the help and returns.
    app_->exit(help);
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(error.what());
  }
  return absl::OkStatus();
}

}  // namespace muster::cli
