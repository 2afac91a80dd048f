// muster members, validate, version.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/commands/session.h"
#include "cli/local/job_check.h"
#include "cli/text/job_text.h"
#include "google/protobuf/struct.pb.h"
#include "lib/job/job_file.h"
#include "lib/job/job_validation.h"
#include "lib/status/status.h"
#include "lib/version/build.h"

namespace muster::cli {
namespace {

absl::Status Members(const Session& session) {
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  ASSIGN_OR_RETURN(const v1::ListMembersResponse response, client.ListMembers());
  const std::vector<v1::Member> members(response.members().begin(), response.members().end());
  std::string names;
  for (const v1::Member& member : members) absl::StrAppend(&names, member.name(), "\n");
  session.Print(response, MemberTable(members, absl::Now()) + InsecureNotice(response), names);
  if (members.empty()) session.TellEmpty("members", client);
  return absl::OkStatus();
}

absl::Status Drain(const std::string& name, const Session& session) {
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  RETURN_IF_ERROR(client.DrainMember(name));
  session.Print(
      v1::DrainMemberResponse(),
      absl::StrCat(name, " is told to leave; muster members shows it until its jobs go on ",
                   "without it\n"),
      absl::StrCat(name, "\n"));
  return absl::OkStatus();
}

struct ValidateOptions {
  std::string file;
  std::vector<std::string> settings;
};

absl::Status Validate(const ValidateOptions& options, const Session& session) {
  ASSIGN_OR_RETURN(const JobOverrides overrides, ParseOverrides(options.settings));
  ASSIGN_OR_RETURN(const std::string text, ReadJobFile(options.file));
  ASSIGN_OR_RETURN(CheckedJob checked, CheckJobFile(text, options.file, overrides));
  std::fputs(WarningLines(checked.warnings).c_str(), stderr);
  v1::JobSpec& spec = checked.spec;
  FillDefaults(spec);
  if (session.output() == OutputFormat::kYaml) {
    std::fputs(ToYaml(spec).c_str(), stdout);  // a job file again, not an API message
  } else {
    session.Print(spec, absl::StrCat("OK  ", options.file, "\n"), absl::StrCat(spec.name(), "\n"));
  }
  return absl::OkStatus();
}

void PrintVersion(const Session& session) {
  const Build build = ThisBuild();
  google::protobuf::Struct version;
  auto& fields = *version.mutable_fields();
  fields["version"].set_string_value(build.version);
  fields["commit"].set_string_value(build.commit);
  fields["build"].set_string_value(build.kind);
  fields["cuda"].set_bool_value(build.cuda);
  fields["compiler"].set_string_value(build.compiler);
  session.Print(version, ToText(build), absl::StrCat(build.version, "\n"));
}

}  // namespace

void AddFleetCommands(Command program, Session& session) {
  Command members =
      program.AddCommand("members", "Workers and ps that are attached", "muster members -o json");
  members.SetAction([members, &session] {
    if (!members.command_given()) session.Fail(Members(session));
  });
  auto name = std::make_shared<std::string>();
  Command drain = members.AddCommand("drain", "Let a member's jobs go on without it; then it ends",
                                     "muster members drain worker-3");
  drain.AddOption("NAME", *name, "As muster members lists it").Required();
  drain.SetAction([name, &session] { session.Fail(Drain(*name, session)); });

  auto options = std::make_shared<ValidateOptions>();
  Command validate = program.AddCommand("validate", "List every fault of a job file",
                                        "muster validate job.yaml --set training.steps=500");
  validate.AddOption("FILE", options->file, "Job file (docs/job_spec.md)").Required();
  validate.AddOption("--set", options->settings, "FIELD=VALUE instead of the file's")
      .OneValueEach();
  validate.SetAction([options, &session] { session.Fail(Validate(*options, session)); });

  program
      .AddCommand("version", "Version, commit and build of this program", "muster version -o json")
      .SetAction([&session] { PrintVersion(session); });
}

}  // namespace muster::cli
