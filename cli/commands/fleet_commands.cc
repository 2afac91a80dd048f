// Implements muster members, validate and version.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "cli/commands/session.h"
#include "cli/local/job_check.h"
#include "cli/text/job_text.h"
#include "google/protobuf/struct.pb.h"
#include "lib/job/job_file.h"
#include "lib/job/job_validation.h"
#include "lib/job/resource_name.h"
#include "lib/plan/sum_tree.h"
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
      absl::StrCat(name, " is asked to leave; muster members lists it until its jobs continue ",
                   "without it\n"),
      absl::StrCat(name, "\n"));
  return absl::OkStatus();
}

struct ValidateOptions {
  std::string file;
  std::vector<std::string> settings;
};

// The coordinator's decision whether it would accept a job.
struct Verdict {
  bool is_asked = false;
  bool is_local = false;  // it reads the same files as this process
  absl::Status faults;    // OK if it would accept the job
  std::vector<std::string> warnings;
  std::string unchecked;  // what could not be checked, and why, or ""
};

bool ReadsFiles(const v1::JobSpec& spec) {
  return spec.data().has_text() || spec.data().has_idx() || spec.data().has_npy();
}

// Returns a note about the checks that only a coordinator can make. `coordinator` says why none
// made them.
std::string UncheckedWithout(const std::string& coordinator, const v1::JobSpec& spec) {
  const std::string& from = spec.checkpoint().resume_from();
  return absl::StrCat("not checked, because ", coordinator,
                      ": whether it may read the files (--data_roots)",
                      ParseCheckpointRef(from) ? absl::StrCat(", and the checkpoint ", from) : "");
}

// Validates the job at the coordinator, which stores nothing. An unreachable coordinator is not an
// error. Returns the errors of Find() except UNAVAILABLE.
absl::StatusOr<Verdict> AskCoordinator(v1::JobSpec spec, const Session& session) {
  Verdict verdict;
  const auto destination = session.Find();
  if (absl::IsUnavailable(destination.status())) {
    verdict.unchecked = UncheckedWithout(std::string(destination.status().message()), spec);
    return verdict;
  }
  RETURN_IF_ERROR(destination.status());
  CoordinatorClient client(destination->target, destination->where);
  const auto info = client.GetServerInfo();
  if (!info.ok()) {
    const std::string why = absl::IsUnavailable(info.status())
                                ? absl::StrCat("no coordinator answers at ", destination->where)
                                : std::string(info.status().message());
    verdict.unchecked = UncheckedWithout(why, spec);
    return verdict;
  }
  verdict.is_local = Session::UsePathsOfHere(*destination, spec);
  v1::CreateJobRequest request;
  *request.mutable_spec() = spec;
  request.set_validate_only(true);
  const auto job = client.CreateJob(request);
  if (!job.ok() && !absl::IsInvalidArgument(job.status())) {
    verdict.unchecked = UncheckedWithout(std::string(job.status().message()), spec);
    return verdict;
  }
  verdict.is_asked = true;
  verdict.faults = job.status();
  if (!job.ok()) return verdict;
  verdict.warnings.assign(job->warnings().begin(), job->warnings().end());
  if (!info->data_visible() && !verdict.is_local && ReadsFiles(spec)) {
    verdict.unchecked = "not checked: the data, which only the workers see (--data_visible=false)";
  }
  return verdict;
}

// Returns a line about the logical workers of a valid job. If the job has none, its number of
// workers may change and its mode allows logical ones, the line proposes them. Otherwise "".
std::string LogicalWorkersLine(const v1::JobSpec& spec) {
  const v1::WorkerCount& workers = spec.resources().workers();
  const int64_t logical = workers.logical(), batch = spec.data().batch_size();
  if (logical > 0) {
    const int64_t least = batch / logical;
    const bool is_even = batch % logical == 0;
    const std::string samples = absl::StrCat(least, is_even ? "" : absl::StrCat(" or ", least + 1),
                                             is_even && least == 1 ? " sample" : " samples");
    const auto number = [](std::string* text, const UsefulWorkers& useful) {
      absl::StrAppend(text, useful.workers);
    };
    return absl::StrCat(logical, logical == 1 ? " logical worker" : " logical workers", " of ",
                        samples, "; useful numbers of workers: ",
                        absl::StrJoin(UsefulWorkersOf(logical), ", ", number), "\n");
  }
  if (workers.max() <= workers.min()) return "";
  v1::JobSpec with = spec;
  with.mutable_resources()->mutable_workers()->set_logical(workers.max());
  if (!ValidateJobSpec(with).empty()) return "";
  return absl::StrCat("with resources.workers.logical: ", workers.max(),
                      " the result has the same bits for any number of workers\n");
}

absl::Status Validate(const ValidateOptions& options, const Session& session) {
  ASSIGN_OR_RETURN(const JobOverrides overrides, ParseOverrides(options.settings));
  ASSIGN_OR_RETURN(const std::string text, ReadJobFile(options.file));
  ASSIGN_OR_RETURN(v1::JobSpec spec, ParseJobFile(text, options.file, overrides));
  ASSIGN_OR_RETURN(const Verdict verdict, AskCoordinator(spec, session));
  if (!verdict.faults.ok()) return LocateFaults(verdict.faults, text, options.file, overrides);
  std::vector<std::string> warnings = verdict.warnings;
  // The files of a remote cluster are not on this machine, so they cannot be checked here.
  if (!verdict.is_asked || verdict.is_local) {
    ASSIGN_OR_RETURN(CheckedJob checked, CheckJobFile(text, options.file, overrides));
    if (!verdict.is_asked) warnings = std::move(checked.warnings);
    if (!checked.memory_warning.empty()) warnings.push_back(std::move(checked.memory_warning));
  }
  std::fputs(WarningLines(warnings).c_str(), stderr);
  if (!verdict.unchecked.empty()) std::fprintf(stderr, "%s\n", verdict.unchecked.c_str());
  FillDefaults(spec);
  if (session.output() == OutputFormat::kYaml) {
    std::fputs(ToYaml(spec).c_str(), stdout);  // as a job file, not as an API message
  } else {
    session.Print(spec, absl::StrCat("OK  ", options.file, "\n", LogicalWorkersLine(spec)),
                  absl::StrCat(spec.name(), "\n"));
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
      program.AddCommand("members", "Attached workers and ps", "muster members -o json");
  members.SetAction([members, &session] {
    if (!members.command_given()) session.Fail(Members(session));
  });
  auto name = std::make_shared<std::string>();
  Command drain = members.AddCommand("drain", "Move its jobs to other members; then it ends",
                                     "muster members drain worker-3");
  drain.AddOption("NAME", *name, "As muster members lists it").Required();
  drain.SetAction([name, &session] { session.Fail(Drain(*name, session)); });

  auto options = std::make_shared<ValidateOptions>();
  Command validate = program.AddCommand("validate", "List every fault of a job file",
                                        "muster validate job.yaml --set training.steps=500");
  validate.AddOption("FILE", options->file, "Job file (docs/job_spec.md)").Required();
  validate.AddOption("--set", options->settings, "FIELD=VALUE, replaces a field of the file")
      .OneValueEach();
  validate.SetAction([options, &session] { session.Fail(Validate(*options, session)); });

  program
      .AddCommand("version", "Version, commit and build of this program", "muster version -o json")
      .SetAction([&session] { PrintVersion(session); });
}

}  // namespace muster::cli
