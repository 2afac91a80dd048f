// Implements muster chaos: kills members of a local cluster or scales a job while it trains, and
// reports the cost.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "cli/chaos/chaos.h"
#include "cli/commands/evaluations.h"
#include "cli/commands/session.h"
#include "cli/framework/exit_code.h"
#include "cli/local/cluster_lock.h"
#include "cli/local/job_cluster.h"
#include "cli/local/local_cluster.h"
#include "cli/text/job_text.h"
#include "cli/text/progress_display.h"
#include "google/protobuf/struct.pb.h"
#include "lib/job/resource_name.h"
#include "lib/status/status.h"

namespace muster::cli {
namespace {

struct ChaosCommand {
  JobClusterOptions job;
  std::string running;  // --job
  bool local = false;
  bool overlap = false;
  std::string roles;  // "": see RolesFor()
  std::string every = "10s";
  std::string duration = "5m";
  std::string deadline = "60s";
  std::string stop_for = "8s";
  std::string signal = "KILL";
  std::optional<uint64_t> seed;
  std::optional<bool> compare;  // unset: if RepeatsToTheBit()
  bool compare_flag = false;
};

absl::StatusOr<absl::Duration> ParseSpan(const std::string& option, const std::string& text) {
  absl::Duration span;
  if (!absl::ParseDuration(text, &span) || span <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat(option, " ", text, ": expects a duration such as 500ms, 90s or 10m"));
  }
  return span;
}

absl::StatusOr<ChaosOptions> OptionsOf(const ChaosCommand& command, const Session& session) {
  ChaosOptions options;
  ASSIGN_OR_RETURN(options.every, ParseSpan("--kill-every", command.every));
  ASSIGN_OR_RETURN(options.duration, ParseSpan("--for", command.duration));
  ASSIGN_OR_RETURN(options.deadline, ParseSpan("--deadline", command.deadline));
  ASSIGN_OR_RETURN(options.stop_for, ParseSpan("--stop-for", command.stop_for));
  options.signal = command.signal == "STOP" ? SIGSTOP : SIGKILL;
  if (options.signal == SIGSTOP && options.stop_for >= options.deadline) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--deadline ", command.deadline, ": must be longer than --stop-for ", command.stop_for));
  }
  options.seed = command.seed ? *command.seed : std::random_device()();
  options.overlaps = command.overlap;
  options.interrupt = session.interrupt;
  options.say = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  return options;
}

bool IsElastic(const v1::WorkerCount& workers) {
  return workers.max() > std::max(1, workers.min());
}

// Returns what to strike: `roles`, or by default every role, and the number of workers if it does
// not change the result.
absl::StatusOr<std::vector<ChaosRole>> RolesFor(const std::string& roles,
                                                const v1::WorkerCount& workers) {
  const bool scales = IsElastic(workers) && workers.logical() > 0;
  ASSIGN_OR_RETURN(std::vector<ChaosRole> all,
                   ParseChaosRoles(!roles.empty() ? roles
                                   : scales       ? "ps,worker,coordinator,scale"
                                                  : "ps,worker,coordinator"));
  if (std::ranges::count(all, ChaosRole::kScale) > 0 && !IsElastic(workers)) {
    return absl::InvalidArgumentError(
        "--roles scale: the job has one number of workers; remove --workers, or give "
        "resources.workers.max above min");
  }
  return all;
}

// Returns whether the job gives the same bits whichever member dies (docs/architecture.md, section
// 8). That needs logical workers or a fixed number of workers, resuming from a version that all
// shards have, and no state that only the lost member had.
bool RepeatsToTheBit(const v1::JobSpec& spec) {
  const v1::SyncSpec& sync = spec.sync();
  const v1::WorkerCount& workers = spec.resources().workers();
  if (IsElastic(workers) && workers.logical() == 0) return false;
  if (sync.mode() == v1::SSP || sync.mode() == v1::ASP || sync.backup_workers() > 0) return false;
  switch (sync.compression().kind()) {  // other codecs feed their error back into later steps
    case v1::COMPRESSION_KIND_UNSPECIFIED:
    case v1::COMPRESSION_NONE:
    case v1::COMPRESSION_FP16:
    case v1::COMPRESSION_BF16:
      return true;
    default:
      return false;
  }
}

// ---------------------------------------------------------------- the final checkpoint

using FileHashes = std::map<std::string, std::string>;  // SHA-256 by file name

absl::StatusOr<FileHashes> FinalHashes(CoordinatorClient& client, const v1::Job& job) {
  ASSIGN_OR_RETURN(const v1::Checkpoint checkpoint, client.GetCheckpoint(job.checkpoint()));
  FileHashes hashes;
  for (const v1::CheckpointFile& file : checkpoint.files()) hashes[file.name()] = file.sha256();
  return hashes;
}

// Returns the hash of the first model file.
std::string ModelHash(const FileHashes& hashes) {
  const auto model = hashes.lower_bound("model-");
  return model == hashes.end() ? "" : model->second;
}

struct Outcome {
  uint64_t seed = 0;
  ChaosReport chaos;
  FileHashes final;         // empty if the job did not succeed
  std::string undisturbed;  // id of the undisturbed job; "": not compared
  std::optional<FileHashes> undisturbed_final;

  bool differs() const { return undisturbed_final && *undisturbed_final != final; }
};

// Returns what went wrong, or "".
std::string FaultOf(const Outcome& outcome) {
  const v1::Job& job = outcome.chaos.job;
  const std::string id = JobIdOf(job.name());
  if (!outcome.chaos.fault.empty()) return absl::StrCat(id, ": ", outcome.chaos.fault);
  if (!TrainedWell(job)) {
    return absl::StrCat(id, " is ", v1::JobState_Name(job.state()), ": ", job.reason(), ": ",
                        job.message());
  }
  if (outcome.differs()) {
    return absl::StrCat("the final checkpoint of ", id, " differs from that of ",
                        outcome.undisturbed, ", which ran without strikes");
  }
  if (!outcome.chaos.other_ends.empty()) {
    return absl::StrCat("members ended without a strike: ",
                        absl::StrJoin(outcome.chaos.other_ends, ", "));
  }
  return "";
}

// ---------------------------------------------------------------- what is printed

constexpr ChaosRole kAllRoles[] = {ChaosRole::kPs, ChaosRole::kWorker, ChaosRole::kCoordinator,
                                   ChaosRole::kScale};

std::string Seconds(absl::Duration span) {
  return absl::StrFormat("%.2f s", absl::ToDoubleSeconds(span));
}

void AddRow(Table& table, const std::string& name, const RecoveryFigures& figures) {
  const bool any = figures.recovered > 0;
  table.Add({name, absl::StrCat(figures.strikes), absl::StrCat(figures.recovered),
             any ? Seconds(figures.median) : "-", any ? Seconds(figures.p99) : "-",
             any ? Seconds(figures.longest) : "-"});
}

std::string TextOf(const Outcome& outcome) {
  const ChaosReport& chaos = outcome.chaos;
  Table table({"STRUCK", "TIMES", "RECOVERED", "MEDIAN", "P99", "LONGEST"});
  for (const ChaosRole role : kAllRoles) {
    const RecoveryFigures figures = FiguresOf(chaos.strikes, role);
    if (figures.strikes > 0) AddRow(table, std::string(NameOf(role)), figures);
  }
  AddRow(table, "all", FiguresOf(chaos.strikes));
  std::vector<std::string> recoveries;
  for (const auto& [reason, count] : chaos.recoveries) {
    recoveries.push_back(absl::StrCat(count, " ", reason));
  }
  std::string text = table.ToString();
  absl::StrAppend(&text, "\nseed                ", outcome.seed, "\n");
  absl::StrAppend(&text, "job                 ", JobIdOf(chaos.job.name()), " ",
                  v1::JobState_Name(chaos.job.state()), " at step ", chaos.job.progress().step(),
                  ", generation ", chaos.job.generation(), "\n");
  absl::StrAppend(&text, "recoveries          ",
                  recoveries.empty() ? "none" : absl::StrJoin(recoveries, ", "), "\n");
  absl::StrAppend(&text, "steps made again    ", chaos.steps_again, "\n");
  if (!outcome.final.empty()) {
    absl::StrAppend(&text, "final model         SHA-256 ", ModelHash(outcome.final), "\n");
  }
  absl::StrAppend(&text, "undisturbed         ");
  if (!outcome.undisturbed_final) return text + "not compared\n";
  absl::StrAppend(&text, "SHA-256 ", ModelHash(*outcome.undisturbed_final), " (",
                  outcome.undisturbed, "): ", outcome.differs() ? "DIFFERS" : "identical", "\n");
  return text;
}

google::protobuf::Struct MessageOf(const RecoveryFigures& figures) {
  google::protobuf::Struct message;
  auto& fields = *message.mutable_fields();
  fields["times"].set_number_value(figures.strikes);
  fields["recovered"].set_number_value(figures.recovered);
  fields["median_seconds"].set_number_value(absl::ToDoubleSeconds(figures.median));
  fields["p99_seconds"].set_number_value(absl::ToDoubleSeconds(figures.p99));
  fields["longest_seconds"].set_number_value(absl::ToDoubleSeconds(figures.longest));
  return message;
}

google::protobuf::Struct MessageOf(const Strike& strike) {
  google::protobuf::Struct message;
  auto& fields = *message.mutable_fields();
  fields["member"].set_string_value(strike.member);
  fields["at_seconds"].set_number_value(absl::ToDoubleSeconds(strike.at));
  fields["step"].set_number_value(static_cast<double>(strike.step));
  if (strike.recovered()) {
    fields["recovery_seconds"].set_number_value(absl::ToDoubleSeconds(strike.recovery));
  }
  return message;
}

google::protobuf::Struct MessageOf(const Outcome& outcome) {
  const ChaosReport& chaos = outcome.chaos;
  google::protobuf::Struct message;
  auto& fields = *message.mutable_fields();
  // As text, because a double holds only 53 bits.
  fields["seed"].set_string_value(absl::StrCat(outcome.seed));
  fields["job"].set_string_value(JobIdOf(chaos.job.name()));
  fields["state"].set_string_value(v1::JobState_Name(chaos.job.state()));
  fields["fault"].set_string_value(FaultOf(outcome));
  fields["steps_again"].set_number_value(static_cast<double>(chaos.steps_again));
  auto& struck = *fields["struck"].mutable_struct_value()->mutable_fields();
  for (const ChaosRole role : kAllRoles) {
    *struck[std::string(NameOf(role))].mutable_struct_value() =
        MessageOf(FiguresOf(chaos.strikes, role));
  }
  *struck["all"].mutable_struct_value() = MessageOf(FiguresOf(chaos.strikes));
  auto& recoveries = *fields["recoveries"].mutable_struct_value()->mutable_fields();
  for (const auto& [reason, count] : chaos.recoveries) recoveries[reason].set_number_value(count);
  auto& strikes = *fields["strikes"].mutable_list_value();
  for (const Strike& strike : chaos.strikes) {
    *strikes.add_values()->mutable_struct_value() = MessageOf(strike);
  }
  auto& ends = *fields["other_ends"].mutable_list_value();
  for (const std::string& end : chaos.other_ends) ends.add_values()->set_string_value(end);
  fields["model_sha256"].set_string_value(ModelHash(outcome.final));
  if (outcome.undisturbed_final) {
    fields["undisturbed_job"].set_string_value(outcome.undisturbed);
    fields["undisturbed_model_sha256"].set_string_value(ModelHash(*outcome.undisturbed_final));
    fields["identical"].set_bool_value(!outcome.differs());
  }
  return message;
}

// ---------------------------------------------------------------- the run

absl::StatusOr<std::string> Submit(CoordinatorClient& client, const v1::JobSpec& spec) {
  v1::CreateJobRequest request;
  *request.mutable_spec() = spec;
  ASSIGN_OR_RETURN(const v1::Job job, client.CreateJob(request));
  return JobIdOf(job.name());
}

// Runs the same job on the same members without strikes.
absl::Status RunUndisturbed(CoordinatorClient& client, const v1::JobSpec& spec,
                            const Session& session, Outcome& outcome) {
  ASSIGN_OR_RETURN(outcome.undisturbed, Submit(client, spec));
  ProgressDisplay display(Terminal::Of(fileno(stderr)), EvaluationsOf(client, outcome.undisturbed));
  display.Say(absl::StrCat(outcome.undisturbed, " is the undisturbed run to compare with"));
  v1::Job last;
  RETURN_IF_ERROR(client.Watch(outcome.undisturbed, {.interrupt = session.interrupt},
                               [&](const v1::WatchJobResponse& update) {
                                 last = update.job();
                                 display.Update(last, absl::Now());
                                 return CoordinatorClient::WatchStep::kContinue;
                               }));
  if (!TrainedWell(last)) {
    return absl::FailedPreconditionError(absl::StrCat(
        outcome.undisturbed, " fails without strikes, too: ", last.reason(), ": ", last.message()));
  }
  ASSIGN_OR_RETURN(outcome.undisturbed_final, FinalHashes(client, last));
  return absl::OkStatus();
}

absl::Status RunOn(LocalCluster& cluster, const std::optional<v1::JobSpec>& spec,
                   const ChaosCommand& command, ChaosOptions options, Session& session) {
  CoordinatorClient client(cluster.address());
  Outcome outcome{.seed = options.seed};
  std::string job = command.running;
  if (!spec) {
    ASSIGN_OR_RETURN(const v1::Job running, client.GetJob(job));
    ASSIGN_OR_RETURN(options.roles, RolesFor(command.roles, running.spec().resources().workers()));
  } else {
    if (command.compare.value_or(RepeatsToTheBit(*spec))) {
      RETURN_IF_ERROR(RunUndisturbed(client, *spec, session, outcome));
    }
    ASSIGN_OR_RETURN(job, Submit(client, *spec));
  }
  std::fprintf(stderr, "%s is disturbed with --seed %s; logs in %s/logs\n", job.c_str(),
               absl::StrCat(outcome.seed).c_str(), cluster.dir().c_str());
  ASSIGN_OR_RETURN(outcome.chaos, RunChaos(job, cluster, client, options));
  if (outcome.chaos.job.state() == v1::SUCCEEDED) {
    ASSIGN_OR_RETURN(outcome.final, FinalHashes(client, outcome.chaos.job));
  }
  if (outcome.chaos.strikes.empty() && FaultOf(outcome).empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(job,
                     " ended before the first strike; give it more steps (--set "
                     "training.steps=...) or a shorter --kill-every"));
  }
  session.Print(MessageOf(outcome), TextOf(outcome), absl::StrCat(job, "\n"));
  if (const std::string fault = FaultOf(outcome); !fault.empty()) {
    std::fprintf(stderr, "%s\n", fault.c_str());
    session.exit_code = kExitJobFailed;
  }
  return absl::OkStatus();
}

absl::Status Chaos(const ChaosCommand& command, Session& session) {
  ASSIGN_OR_RETURN(ChaosOptions options, OptionsOf(command, session));
  if (command.running.empty() == command.job.file.empty()) {
    return absl::InvalidArgumentError("give either FILE, or --job with a job of the local cluster");
  }
  std::optional<v1::JobSpec> spec;
  if (!command.job.file.empty()) {
    ASSIGN_OR_RETURN(spec, ReadJob(command.job));
    ASSIGN_OR_RETURN(options.roles, RolesFor(command.roles, spec->resources().workers()));
  } else if (command.compare.value_or(false)) {
    return absl::InvalidArgumentError("--compare runs the job twice: it needs FILE, not --job");
  }
  // With a registration, a signal no longer ends this process at once. The cluster must be shut
  // down first.
  Interrupt::Registration registration(*session.interrupt, [] {});
  if (command.local || !spec) {
    const std::string dir = command.job.dir.empty() ? DefaultLocalDir() : command.job.dir;
    ASSIGN_OR_RETURN(const auto lock, ClusterLock::Take(dir, "muster chaos"));
    ASSIGN_OR_RETURN(const std::unique_ptr<LocalCluster> cluster, LocalCluster::Open(dir));
    return RunOn(*cluster, spec, command, options, session);
  }
  ASSIGN_OR_RETURN(const JobCluster own, StartClusterFor(*spec, command.job, "muster chaos"));
  return RunOn(*own.cluster, spec, command, options, session);
}

}  // namespace

void AddChaosCommand(Command program, Session& session) {
  auto command = std::make_shared<ChaosCommand>();
  Command chaos = program.AddCommand("chaos", "Kill members while a job trains; report the cost",
                                     "muster chaos examples/mnist_lenet.yaml --for 1m");
  chaos.AddOption("FILE", command->job.file, "Job file; trains on its own cluster");
  chaos.AddOption("--set", command->job.settings, "FIELD=VALUE, replaces a field of the file")
      .OneValueEach();
  chaos.AddOption("--job", command->running, "A job of the local cluster instead of FILE");
  chaos.AddFlag("--local", command->local, "Train FILE on the local cluster");
  chaos.AddOption("--dir", command->job.dir, "Its folder; default: new or ~/.muster/local");
  chaos.AddOption("--ps", command->job.ps, "Parameter servers; default: the job's").Within(1, 64);
  chaos.AddOption("--workers", command->job.workers, "Workers; default: the job's maximum")
      .Within(1, 64);
  chaos.AddOption("--devices", command->job.devices, "Devices of each worker: cpu, cuda:0");
  chaos.AddOption("--roles", command->roles, "ps,worker,coordinator; scale by default if logical");
  chaos.AddOption("--kill-every", command->every, "Mean time after a recovery; default: 10s");
  chaos.AddFlag("--overlap", command->overlap, "Also strike during recoveries");
  chaos.AddOption("--for", command->duration, "How long to strike; default: 5m");
  chaos.AddOption("--signal", command->signal, "KILL, or STOP for a while; default: KILL")
      .OneOf({"KILL", "STOP"});
  chaos.AddOption("--stop-for", command->stop_for, "STOP: time until CONT; default: 8s");
  chaos.AddOption("--deadline", command->deadline, "Longest recovery; default: 60s");
  chaos.AddOption("--seed", command->seed, "For members and times; default: random");
  const Option compare = chaos.AddFlag("--compare,!--no-compare", command->compare_flag,
                                       "Undisturbed run first; default: if reproducible");
  chaos.SetAction([command, compare, &session] {
    if (compare.given()) command->compare = command->compare_flag;
    session.Fail(Chaos(*command, session));
  });
}

}  // namespace muster::cli
