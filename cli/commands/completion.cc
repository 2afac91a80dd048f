#include "cli/commands/completion.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace muster::cli {
namespace {

struct CommandWords {
  std::string path;  // "checkpoint list"; "" is the program itself
  std::string description;
  std::vector<std::string> commands, options;
  std::vector<std::string> descriptions;  // one for each of `commands`
  bool takes_job = false;
};

void Collect(Command command, const std::string& path, std::vector<CommandWords>& commands) {
  CommandWords words{.path = path, .description = command.description()};
  for (const Option& option : command.options()) {
    words.takes_job |= option.argument() == "JOB";
    for (const std::string& name : option.names()) words.options.push_back(name);
  }
  const std::vector<Command> below = command.commands();
  for (const Command& one : below) {
    words.commands.push_back(one.name());
    words.descriptions.push_back(one.description());
  }
  // Parents come before their subcommands.
  commands.push_back(std::move(words));
  for (const Command& one : below) {
    Collect(one, absl::StrCat(path, path.empty() ? "" : " ", one.name()), commands);
  }
}

// Returns a shell function that prints the words that may follow a path of commands.
std::string WordsFunction(const std::vector<CommandWords>& commands) {
  std::string text = "_muster_words() {\n  case \"$1\" in\n";
  for (const CommandWords& command : commands) {
    std::vector<std::string> words = command.commands;
    words.insert(words.end(), command.options.begin(), command.options.end());
    absl::StrAppend(&text, "    \"", command.path, "\") echo \"", absl::StrJoin(words, " "),
                    "\" ;;\n");
  }
  return absl::StrCat(text, "  esac\n}\n");
}

std::string JobFunction(const std::vector<CommandWords>& commands) {
  std::vector<std::string> paths;
  for (const CommandWords& command : commands) {
    if (command.takes_job) paths.push_back(absl::StrCat("\"", command.path, "\""));
  }
  return absl::StrCat("_muster_takes_job() {\n  case \"$1\" in\n    ", absl::StrJoin(paths, "|"),
                      ") return 0 ;;\n  esac\n  return 1\n}\n");
}

// `$path` collects those of the words so far that are commands. It skips options and their values.
constexpr char kBashBody[] = R"sh(_muster() {
  local current="${COMP_WORDS[COMP_CWORD]}" path="" word candidate i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    word="${COMP_WORDS[i]}"
    candidate="${path:+$path }$word"
    if [[ -n "$(_muster_words "$candidate")" ]]; then path="$candidate"; fi
  done
  COMPREPLY=($(compgen -W "$(_muster_words "$path")" -- "$current"))
  if [[ "$current" != -* ]] && _muster_takes_job "$path"; then
    COMPREPLY+=($(compgen -W "$(muster list -o name 2>/dev/null)" -- "$current"))
  fi
  if [[ ${#COMPREPLY[@]} -eq 0 ]]; then COMPREPLY=($(compgen -f -- "$current")); fi
}
)sh";

std::string BashScript(const std::vector<CommandWords>& commands) {
  return absl::StrCat(
      "# bash completion of muster. In ~/.bashrc: ", "source <(muster completion bash)\n",
      WordsFunction(commands), JobFunction(commands), kBashBody, "complete -F _muster muster\n");
}

// The variable is called `found`, because zsh uses `path` for the folders of commands.
constexpr char kZshBody[] = R"sh(_muster() {
  local found="" word candidate i
  for ((i = 2; i < CURRENT; ++i)); do
    word="${words[i]}"
    candidate="${found:+$found }$word"
    if [[ -n "$(_muster_words "$candidate")" ]]; then found="$candidate"; fi
  done
  compadd -- ${=$(_muster_words "$found")}
  if _muster_takes_job "$found"; then
    compadd -- ${(f)"$(muster list -o name 2>/dev/null)"}
  fi
  _files
}
compdef _muster muster
)sh";

std::string ZshScript(const std::vector<CommandWords>& commands) {
  return absl::StrCat(
      "#compdef muster\n# In ~/.zshrc, after compinit: ", "source <(muster completion zsh)\n",
      WordsFunction(commands), JobFunction(commands), kZshBody);
}

std::string Quoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}}), "'");
}

std::string FishScript(const std::vector<CommandWords>& commands) {
  std::string text =
      "# fish completion of muster: muster completion fish > "
      "~/.config/fish/completions/muster.fish\n"
      "function __muster_path\n"
      "  set -l words (commandline -opc)[2..-1]\n"
      "  set -l found\n"
      "  for word in $words\n"
      "    if contains -- \"$found $word\" $__muster_paths\n"
      "      set found \"$found $word\"\n"
      "    end\n"
      "  end\n"
      "  echo $found\n"
      "end\n";
  std::vector<std::string> paths;
  for (const CommandWords& command : commands) {
    if (!command.path.empty()) paths.push_back(Quoted(absl::StrCat(" ", command.path)));
  }
  absl::StrAppend(&text, "set -g __muster_paths ", absl::StrJoin(paths, " "), "\n");
  for (const CommandWords& command : commands) {
    const std::string path = command.path.empty() ? "" : absl::StrCat(" ", command.path);
    const std::string begin =
        absl::StrCat("complete -c muster -n 'test \"$(__muster_path)\" = \"", path, "\"' ");
    for (size_t i = 0; i < command.commands.size(); ++i) {
      absl::StrAppend(&text, begin, "-f -a ", command.commands[i], " -d ",
                      Quoted(command.descriptions[i]), "\n");
    }
    for (const std::string& option : command.options) {
      absl::StrAppend(&text, begin,
                      absl::StartsWith(option, "--") ? absl::StrCat("-l ", option.substr(2))
                                                     : absl::StrCat("-s ", option.substr(1)),
                      "\n");
    }
    if (command.takes_job) {
      absl::StrAppend(&text, begin, "-a '(muster list -o name 2>/dev/null)'\n");
    }
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> CompletionScript(Command program, const std::string& shell) {
  std::vector<CommandWords> commands;
  Collect(program, "", commands);
  if (shell == "bash") return BashScript(commands);
  if (shell == "zsh") return ZshScript(commands);
  if (shell == "fish") return FishScript(commands);
  return absl::InvalidArgumentError(
      absl::StrCat("no completion for '", shell, "'; supported are bash, zsh and fish"));
}

}  // namespace muster::cli
