// Implements muster doctor, context, init, explain and completion.
#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/commands/completion.h"
#include "cli/commands/session.h"
#include "cli/contexts.h"
#include "cli/doctor.h"
#include "cli/field_help.h"
#include "cli/framework/exit_code.h"
#include "cli/job_template.h"
#include "google/protobuf/struct.pb.h"
#include "lib/fleet/address.h"
#include "lib/status/status.h"
#include "lib/version/build.h"

namespace muster::cli {
namespace {

// ---------------------------------------------------------------- doctor

// Returns the finding for an unreachable coordinator. It is only a note if the user chose no
// coordinator, because a machine can be examined without one.
Finding Unreachable(const absl::Status& why, bool is_chosen) {
  if (!is_chosen && absl::IsUnavailable(why)) {
    return {"coordinator", Finding::kNote, std::string(why.message()), ""};
  }
  return {"coordinator", Finding::kFault, std::string(why.message()),
          "check its address, its log and the network between (firewall, NetworkPolicy)"};
}

// Examines the coordinator: its version, security, clock and members.
std::vector<Finding> ExamineCoordinator(const Session& session) {
  const auto destination = session.Find();
  if (!destination.ok()) {
    const bool has_ended = absl::IsUnavailable(destination.status());
    return {{"coordinator", Finding::kFault, std::string(destination.status().message()),
             has_ended ? "muster local up"
                       : "see --server, --tls, --token-file and --context in muster --help"}};
  }
  const bool is_chosen = destination->is_chosen;
  auto client = session.Connect();
  if (!client.ok()) return {Unreachable(client.status(), is_chosen)};
  const absl::Time asked = absl::Now();
  const auto info = client->GetServerInfo();
  const absl::Time answered = absl::Now();
  if (!info.ok()) return {Unreachable(info.status(), is_chosen)};
  std::vector<Finding> findings;
  findings.push_back(
      {"coordinator", Finding::kFine,
       absl::StrCat(client->where(), ": version ", info->version(), ", ", info->security(),
                    ", store ", info->store(), ", start number ", info->term(), ", up ",
                    absl::FormatDuration(absl::Seconds(info->uptime().seconds())))});
  if (const std::string mine = ThisBuild().version; info->version() != mine) {
    findings.push_back(
        {"version", Finding::kWarning,
         absl::StrCat("this program is ", mine, ", the coordinator ", info->version()),
         "run the same version everywhere"});
  }
  const auto& time = info->server_time();
  findings.push_back(ExamineClock(
      {.asked = asked,
       .answered = answered,
       .server = absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos())}));
  if (const auto members = client->ListMembers(); members.ok()) {
    int workers = 0, ps = 0;
    for (const v1::Member& member : members->members()) {
      (member.role() == v1::PS ? ps : workers) += 1;
    }
    const bool none = workers == 0 || ps == 0;
    findings.push_back({"members", none ? Finding::kWarning : Finding::kFine,
                        absl::StrCat(workers, " workers and ", ps, " ps are attached"),
                        none ? "start some; jobs wait for them" : ""});
  }
  return findings;
}

absl::Status Doctor(const std::string& state_dir, Session& session) {
  std::vector<Finding> findings = ExamineMachine({.state_dir = state_dir});
  if (!session.tls.empty()) findings.push_back(ExamineTls(session.tls, absl::Now()));
  for (Finding& finding : ExamineCoordinator(session)) findings.push_back(std::move(finding));
  google::protobuf::Struct report;
  auto& list = *(*report.mutable_fields())["findings"].mutable_list_value();
  std::string names;
  static constexpr const char* kLevels[] = {"ok", "note", "warning", "fault"};
  for (const Finding& finding : findings) {
    auto& fields = *list.add_values()->mutable_struct_value()->mutable_fields();
    fields["name"].set_string_value(finding.name);
    fields["level"].set_string_value(kLevels[finding.level]);
    fields["what"].set_string_value(finding.what);
    if (!finding.cure.empty()) fields["do"].set_string_value(finding.cure);
    if (finding.level == Finding::kFault) session.exit_code = kExitJobFailed;
    absl::StrAppend(&names, finding.name, "\n");
  }
  session.Print(report, DoctorText(findings, Terminal::Of(fileno(stdout)).color), names);
  return absl::OkStatus();
}

// ---------------------------------------------------------------- context

absl::Status AddContext(const std::string& name, const Session& session) {
  if (session.server.empty()) {
    return absl::InvalidArgumentError("give its address with --server HOST:PORT");
  }
  RETURN_IF_ERROR(CheckAddresses(session.server));
  const std::string path = ContextsPath();
  ASSIGN_OR_RETURN(Contexts contexts, ReadContexts(path));
  contexts.by_name[name] = {session.server, session.tls, session.token_file};
  RETURN_IF_ERROR(WriteContexts(path, contexts));
  std::printf("%s\n", name.c_str());
  if (contexts.current != name) {
    std::fprintf(stderr, "to use it by default: muster context use %s\n", name.c_str());
  }
  return absl::OkStatus();
}

absl::Status UseContext(const std::string& name) {
  const std::string path = ContextsPath();
  ASSIGN_OR_RETURN(Contexts contexts, ReadContexts(path));
  if (name != "none") RETURN_IF_ERROR(FindContext(contexts, name).status());
  contexts.current = name == "none" ? "" : name;
  RETURN_IF_ERROR(WriteContexts(path, contexts));
  std::printf("%s is in use\n", name.c_str());
  return absl::OkStatus();
}

absl::Status RemoveContext(const std::string& name) {
  const std::string path = ContextsPath();
  ASSIGN_OR_RETURN(Contexts contexts, ReadContexts(path));
  RETURN_IF_ERROR(FindContext(contexts, name).status());
  contexts.by_name.erase(name);
  if (contexts.current == name) contexts.current.clear();
  return WriteContexts(path, contexts);
}

absl::Status ListContexts(const Session& session) {
  ASSIGN_OR_RETURN(const Contexts contexts, ReadContexts(ContextsPath()));
  Table table({"", "NAME", "SERVER", "TLS", "TOKEN FILE"});
  google::protobuf::Struct report;
  (*report.mutable_fields())["current"].set_string_value(contexts.current);
  auto& list = *(*report.mutable_fields())["contexts"].mutable_list_value();
  std::string names;
  for (const auto& [name, context] : contexts.by_name) {
    auto shown = [](const std::string& text) { return text.empty() ? "-" : text; };
    table.Add({name == contexts.current ? "*" : "", name, context.server, shown(context.tls),
               shown(context.token_file)});
    auto& fields = *list.add_values()->mutable_struct_value()->mutable_fields();
    fields["name"].set_string_value(name);
    fields["server"].set_string_value(context.server);
    fields["tls"].set_string_value(context.tls);
    fields["token_file"].set_string_value(context.token_file);
    absl::StrAppend(&names, name, "\n");
  }
  session.Print(report, table.ToString(), names);
  if (contexts.by_name.empty()) {
    std::fprintf(stderr, "no contexts; `muster context add NAME --server HOST:PORT` adds one\n");
  }
  return absl::OkStatus();
}

void AddContextCommands(Command program, Session& session) {
  Command context = program.AddCommand("context", "Coordinators by name",
                                       "muster context add prod --server muster.example.org:7070 "
                                       "--tls ~/tls\n  muster context use prod");
  context.RequireCommand();
  auto name = std::make_shared<std::string>();
  Command add = context.AddCommand("add", "Save --server, --tls and --token-file by a name",
                                   "muster context add prod --server muster.example.org:7070");
  add.AddOption("NAME", *name, "Its name").Required();
  add.SetAction([name, &session] { session.Fail(AddContext(*name, session)); });
  Command use = context.AddCommand("use", "Use one by default", "muster context use prod");
  use.AddOption("NAME", *name, "A name from muster context list, or none").Required();
  use.SetAction([name, &session] { session.Fail(UseContext(*name)); });
  Command remove = context.AddCommand("remove", "Remove one", "muster context remove prod");
  remove.AddOption("NAME", *name, "As muster context list shows it").Required();
  remove.SetAction([name, &session] { session.Fail(RemoveContext(*name)); });
  context.AddCommand("list", "All contexts; the current one has a star", "muster context list")
      .SetAction([&session] { session.Fail(ListContexts(session)); });
}

// ---------------------------------------------------------------- init, explain, completion

struct InitOptions {
  std::string file;  // to create; "": print it
  std::string model;
  std::string onnx;
};

absl::Status Init(const InitOptions& options) {
  const std::string& file = options.file;
  const std::string shown = file.empty() ? "job.yaml" : file;
  ASSIGN_OR_RETURN(const std::string text,
                   options.onnx.empty()
                       ? JobTemplate(options.model.empty() ? "gpt" : options.model, shown)
                       : OnnxJobTemplate(options.onnx, shown));
  if (file.empty()) {
    std::fputs(text.c_str(), stdout);
    return absl::OkStatus();
  }
  std::FILE* const out = std::fopen(file.c_str(), "wx");  // "x": never overwrite a file
  if (out == nullptr) return absl::ErrnoToStatus(errno, file);
  const bool written = std::fwrite(text.data(), 1, text.size(), out) == text.size();
  if (std::fclose(out) != 0 || !written) {
    return absl::ResourceExhaustedError(absl::StrCat(file, ": cannot be written"));
  }
  std::printf("%s\n", file.c_str());
  return absl::OkStatus();
}

absl::Status Explain(const std::string& field) {
  ASSIGN_OR_RETURN(const std::string text, ExplainField(field));
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

absl::Status Complete(Command program, const std::string& shell) {
  ASSIGN_OR_RETURN(const std::string script, CompletionScript(program, shell));
  std::fputs(script.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace

void AddSetupCommands(Command program, Session& session) {
  auto folder = std::make_shared<std::string>(".");
  Command doctor =
      program.AddCommand("doctor", "Check what Muster can use on this machine",
                         "muster doctor\n  muster doctor --server muster.example.org:7070");
  doctor.AddOption("--state-dir", *folder, "Folder whose disk to check; default: this one");
  doctor.SetAction([folder, &session] { session.Fail(Doctor(*folder, session)); });

  AddContextCommands(program, session);

  auto options = std::make_shared<InitOptions>();
  Command init = program.AddCommand("init", "Write a job file with comments",
                                    "muster init job.yaml --model resnet50\n"
                                    "  muster init job.yaml --onnx model.onnx");
  init.AddOption("FILE", options->file, "File to create; default: print it");
  init.AddOption("--model", options->model, "Zoo model: gpt, mlp, resnet50, ...; default gpt")
      .Excludes(init.AddOption("--onnx", options->onnx, "Your own model, in an ONNX file"));
  init.SetAction([options, &session] { session.Fail(Init(*options)); });

  auto field = std::make_shared<std::string>();
  Command explain = program.AddCommand("explain", "Explain a field of the job file",
                                       "muster explain training.optimizer.adamw");
  explain.AddOption("FIELD", *field, "Its path; default: the whole file");
  explain.SetAction([field, &session] { session.Fail(Explain(*field)); });

  auto shell = std::make_shared<std::string>();
  Command completion = program.AddCommand("completion", "Script that completes commands in a shell",
                                          "muster completion bash > ~/.muster-completion.bash\n"
                                          "  muster completion fish > "
                                          "~/.config/fish/completions/muster.fish");
  completion.AddOption("SHELL", *shell, "bash, zsh or fish").Required();
  completion.SetAction([shell, program, &session] { session.Fail(Complete(program, *shell)); });
}

}  // namespace muster::cli
