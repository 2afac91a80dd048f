#include "cli/commands/session.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <initializer_list>
#include <iostream>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "cli/contexts.h"
#include "cli/framework/exit_code.h"
#include "cli/local/local_cluster.h"
#include "lib/fleet/leader.h"
#include "lib/job/path_rules.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"
#include "lib/suggestion/suggestion.h"

namespace muster::cli {
namespace {

constexpr char kDefaultServer[] = "127.0.0.1:7070";

constexpr char kFooter[] =
    "Example:\n"
    "  muster run examples/char_gpt.yaml\n"
    "muster COMMAND --help explains a command.";
constexpr absl::string_view kJsonPathPrefix = "jsonpath=";

// Lists the commands of the program by group, many in a line, so that the help fits the screen.
std::string GroupedCommands(Command program) {
  constexpr size_t kIndent = 11, kWidth = 79;
  std::string text = "\nCommands:\n";
  std::vector<std::pair<std::string, std::vector<std::string>>> groups;
  for (const Command command : program.commands()) {
    auto group = std::ranges::find_if(
        groups, [&](const auto& known) { return known.first == command.group(); });
    if (group == groups.end()) group = groups.insert(group, {command.group(), {}});
    group->second.push_back(command.name());
  }
  for (const auto& [name, commands] : groups) {
    std::string line = absl::StrCat("  ", name);
    line.resize(std::max(kIndent, line.size() + 1), ' ');
    for (size_t i = 0; i < commands.size(); ++i) {
      const std::string word = absl::StrCat(commands[i], i + 1 < commands.size() ? "," : "");
      if (line.size() + word.size() > kWidth) {
        line.erase(line.find_last_not_of(' ') + 1);
        absl::StrAppend(&text, line, "\n");
        line.assign(kIndent, ' ');
      }
      absl::StrAppend(&line, word, " ");
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

void SetGroup(Command program, const char* group, std::initializer_list<const char*> commands) {
  for (const char* command : commands) program.FindCommand(command).value().SetGroup(group);
}

}  // namespace

std::string OutputFault(const std::string& name) {
  for (const char* known : {"table", "wide", "json", "yaml", "name"}) {
    if (name == known) return "";
  }
  absl::string_view expression = name;
  if (absl::ConsumePrefix(&expression, kJsonPathPrefix)) {
    return std::string(CheckJsonPath(expression).message());
  }
  return absl::StrCat("-o ", name, ": use table, wide, json, yaml, name or jsonpath=PATH",
                      name == kSpecOutput ? "; spec is only for muster get" : "");
}

OutputFormat Session::output() const {
  if (output_name == "json") return OutputFormat::kJson;
  if (output_name == "yaml") return OutputFormat::kYaml;
  if (output_name == "name") return OutputFormat::kName;
  if (output_name == "wide") return OutputFormat::kWide;
  if (output_name == kSpecOutput) return OutputFormat::kSpec;
  if (absl::StartsWith(output_name, kJsonPathPrefix)) return OutputFormat::kJsonPath;
  return OutputFormat::kTable;
}

bool Session::is_for_people() const {
  return output() == OutputFormat::kTable || output() == OutputFormat::kWide;
}

absl::StatusOr<Session::Destination> Session::Find() const {
  if (!server.empty() && !context.empty()) {
    return absl::InvalidArgumentError(
        "--server and --context both name a coordinator; give only one of them");
  }
  ClientSecurity security{.tls = tls, .token_file = token_file};
  if (!server.empty()) {
    ASSIGN_OR_RETURN(CoordinatorTarget target, SecureTarget(server, security));
    return Destination{std::move(target), server};
  }
  ASSIGN_OR_RETURN(const Contexts contexts, ReadContexts(ContextsPath()));
  ASSIGN_OR_RETURN(const Context chosen, FindContext(contexts, context));
  if (security.tls.empty()) security.tls = chosen.tls;
  if (security.token_file.empty()) security.token_file = chosen.token_file;
  const auto local = LocalCluster::Open(DefaultLocalDir());
  const bool is_local = local.ok() && (*local)->whole();
  if (!chosen.server.empty()) {
    ASSIGN_OR_RETURN(CoordinatorTarget target, SecureTarget(chosen.server, security));
    // A current context takes precedence over the local cluster. If the user did not name it for
    // this command, the message says how to get the local cluster.
    const bool hides_local = is_local && context.empty();
    return Destination{
        std::move(target),
        absl::StrCat(chosen.server, " (context ", context.empty() ? contexts.current : context,
                     hides_local ? "; muster context use none selects the local cluster" : "",
                     ")")};
  }
  if (!is_local) {
    ASSIGN_OR_RETURN(CoordinatorTarget target, SecureTarget(kDefaultServer, security));
    return Destination{std::move(target), kDefaultServer, /*is_chosen=*/false};
  }
  if (!(*local)->running("coordinator")) {
    return absl::UnavailableError(
        absl::StrCat("the coordinator of the local cluster in ", DefaultLocalDir(),
                     " has ended (its log: ", (*local)->log_path("coordinator"),
                     "): muster local up starts it again, muster local down "
                     "removes it"));
  }
  // A local cluster runs without certificates, so --tls and --token-file do not apply to it.
  return Destination{.target = CoordinatorTarget((*local)->address()),
                     .where = absl::StrCat((*local)->address(), " (the local cluster)"),
                     .is_local = true};
}

bool Session::UsePathsOfHere(const Destination& destination, v1::JobSpec& spec) {
  const std::string& address = destination.target.address();
  const bool is_loopback = absl::StartsWith(address, "127.") ||
                           absl::StartsWith(address, "localhost:") ||
                           absl::StartsWith(address, "[::1]:");
  bool is_local = destination.is_local;
  if (!is_local && is_loopback) {  // may also be a tunnel to another machine
    CoordinatorClient client(destination.target, destination.where);
    const auto info = client.GetServerInfo();
    is_local = info.ok() && IsLocalCluster(*info);
  }
  std::error_code error;
  const std::string here = std::filesystem::current_path(error).string();
  if (is_local && !error) MakePathsAbsolute(spec, here);
  return is_local;
}

absl::StatusOr<CoordinatorClient> Session::Connect() const {
  ASSIGN_OR_RETURN(const Destination destination, Find());
  RETURN_IF_ERROR(FindLeader(destination.target));
  return CoordinatorClient(destination.target, destination.where);
}

void Session::TellEmpty(const std::string& what, const CoordinatorClient& client) const {
  if (!is_for_people()) return;
  std::fprintf(stderr, "no %s at %s\n", what.c_str(), client.where().c_str());
}

void Session::Print(const google::protobuf::Message& message, const std::string& table,
                    const std::string& name, const std::string& wide) const {
  switch (output()) {
    case OutputFormat::kWide:
      std::fputs((wide.empty() ? table : wide).c_str(), stdout);
      return;
    case OutputFormat::kJsonPath:
      std::fputs(ToJsonPath(message, absl::string_view(output_name).substr(kJsonPathPrefix.size()))
                     .c_str(),
                 stdout);
      return;
    case OutputFormat::kSpec:  // only muster get allows it, and prints specs itself
    case OutputFormat::kTable:
      std::fputs(table.c_str(), stdout);
      return;
    case OutputFormat::kJson:
      std::fputs(ToJson(message).c_str(), stdout);
      return;
    case OutputFormat::kYaml:
      std::fputs(ToYamlText(message).c_str(), stdout);
      return;
    case OutputFormat::kName:
      std::fputs(name.c_str(), stdout);
      return;
  }
}

void Session::Fail(const absl::Status& status) {
  if (status.ok()) return;
  exit_code = ExitCodeOf(status);
  if (const int signalled = SignalExitCode(); signalled != 0) exit_code = signalled;
  const std::string message(status.message()), reason(ReasonOf(status));
  // Each fault has its own line, which begins with its place.
  const bool is_list = FaultsOf(status).size() > 1;
  const std::string text = is_list ? absl::StrCat("several faults [", reason, "]\n", message)
                                   : absl::StrCat(message, " [", reason, "]");
  std::fprintf(stderr, "muster: %s\n", text.c_str());
}

int Session::SignalExitCode() const {
  const int signal = interrupt == nullptr ? 0 : interrupt->signal();
  return signal == 0 ? 0 : kExitSignalBase + signal;
}

void BuildCommandLine(Command program, Session& session) {
  program.SetDescription(
      "muster trains neural networks. [REASON]s and exit codes: docs/operations");
  program.SetFooter(kFooter);
  program.RequireCommand();
  const Option server =
      program.AddOption("--server", session.server, "Coordinator, HOST:PORT[,HOST:PORT]")
          .FromEnvironment("MUSTER_SERVER");
  const Option tls = program.AddOption("--tls", session.tls, "Folder: ca.crt, tls.crt, tls.key")
                         .FromEnvironment("MUSTER_TLS");
  const Option token_file =
      program.AddOption("--token-file", session.token_file, "File; needs --tls")
          .FromEnvironment("MUSTER_TOKEN_FILE");
  const Option context = program.AddOption("--context", session.context, "Coordinator by name")
                             .FromEnvironment("MUSTER_CONTEXT");
  // The values of the environment belong together: the token is for that server. If the command
  // line names another coordinator with --context, that one must not get the token.
  program.SetPreparation([=, &session] {
    if (!program.on_command_line(context)) {
      if (!session.server.empty()) session.context.clear();
      return;
    }
    if (!program.on_command_line(server)) session.server.clear();
    if (!program.on_command_line(tls)) session.tls.clear();
    if (!program.on_command_line(token_file)) session.token_file.clear();
  });
  program
      .AddOption("-o,--output", session.output_name,
                 "table, wide, json, yaml, name or jsonpath={.PATH}")
      .Check(OutputFault);
  program.SetCommandList([program] { return GroupedCommands(program); });
  AddRunCommand(program, session);
  AddLaunchCommand(program, session);
  AddLocalCommands(program, session);
  AddJobCommands(program, session);
  AddLookCommands(program, session);
  AddCheckpointCommands(program, session);
  AddFleetCommands(program, session);
  AddAccessCommands(program, session);
  AddAdminCommands(program, session);
  AddModelCommands(program, session);
  AddDataCommands(program, session);
  AddBenchCommands(program, session);
  AddChaosCommand(program, session);
  AddRenderCommand(program, session);
  AddConvertCommand(program, session);
  AddSetupCommands(program, session);
  SetGroup(
      program, kJobGroup,
      {"run", "launch", "submit", "list", "get", "describe", "wait", "cancel", "suspend", "resume",
       "scale", "update", "retry", "clone", "delete", "checkpoint", "validate", "render"});
  SetGroup(
      program, kLookGroup,
      {"watch", "events", "logs", "metrics", "top", "links", "trace", "model", "data", "bench"});
  SetGroup(program, kClusterGroup,
           {"local", "members", "certs", "token", "admin", "context", "chaos"});
  SetGroup(program, kHelpGroup, {"init", "explain", "doctor", "completion", "version"});
}

std::string UnknownCommand(Command program, const std::vector<std::string>& words) {
  Command command = program;
  for (size_t i = 0; i < words.size(); ++i) {
    if (absl::StartsWith(words[i], "-")) {
      const std::optional<Option> option = program.FindOption(words[i]);
      if (option && option->takes_value()) ++i;
      continue;
    }
    const std::vector<Command> known = command.commands();
    if (known.empty()) return "";  // a leaf: the other words are its arguments
    const std::optional<Command> next = command.FindCommand(words[i]);
    if (!next) {
      std::vector<std::string> names;
      for (const Command& one : known) names.push_back(one.name());
      const std::string nearest = NearestName(words[i], names);
      return absl::StrCat("unknown command '", words[i], "'; ",
                          nearest.empty()
                              ? absl::StrCat("the commands are ", absl::StrJoin(names, ", "))
                              : absl::StrCat("did you mean '", nearest, "'?"));
    }
    command = *next;
  }
  return "";
}

int RunCommandLine(int argc, char** argv, Session& session) {
  CommandLine line("muster");
  BuildCommandLine(line.program(), session);
  const absl::Status status = line.Run(argc, argv);
  if (status.ok()) return session.exit_code;
  // An unknown command gets a suggestion. Other faults get CLI11's message.
  std::string message = UnknownCommand(line.program(), {argv + 1, argv + argc});
  if (message.empty()) message = std::string(status.message());
  std::cerr << "muster: " << message << "\nmuster --help lists commands and options.\n";
  return kExitUsage;
}

}  // namespace muster::cli
