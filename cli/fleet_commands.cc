// muster members, validate, version.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/job_check.h"
#include "cli/job_text.h"
#include "cli/session.h"
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

void AddFleetCommands(CLI::App& app, Session& session) {
  CLI::App* members =
      AddCommand(app, "members", "Workers and ps that are attached", "muster members -o json");
  members->callback([members, &session] {
    if (members->get_subcommands().empty()) session.Fail(Members(session));
  });
  auto name = std::make_shared<std::string>();
  CLI::App* drain =
      AddCommand(*members, "drain", "Let a member's jobs go on without it; then it ends",
                 "muster members drain worker-3");
  drain->add_option("NAME", *name, "As muster members lists it")->required();
  drain->callback([name, &session] { session.Fail(Drain(*name, session)); });

  auto options = std::make_shared<ValidateOptions>();
  CLI::App* validate = AddCommand(app, "validate", "List every fault of a job file",
                                  "muster validate job.yaml --set training.steps=500");
  validate->add_option("FILE", options->file, "Job file (docs/job_spec.md)")->required();
  validate->add_option("--set", options->settings, "FIELD=VALUE instead of the file's")
      ->allow_extra_args(false);
  validate->callback([options, &session] { session.Fail(Validate(*options, session)); });

  AddCommand(app, "version", "Version, commit and build of this program", "muster version -o json")
      ->callback([&session] { PrintVersion(session); });
}

}  // namespace muster::cli
