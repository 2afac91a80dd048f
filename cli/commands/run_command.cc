// Implements muster run: trains a job from a file on its own cluster, and stops the cluster.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/commands/evaluations.h"
#include "cli/commands/session.h"
#include "cli/commands/text_sampler.h"
#include "cli/framework/exit_code.h"
#include "cli/local/job_cluster.h"
#include "cli/local/local_cluster.h"
#include "cli/text/job_text.h"
#include "cli/text/progress_display.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "lib/job/resource_name.h"
#include "lib/status/status.h"

namespace muster::cli {
namespace {

constexpr absl::Duration kSaveTimeout = absl::Minutes(2);

std::string MetricsText(const LocalCluster& cluster) {
  auto fleet = cluster.ListMembers();
  if (!fleet.ok()) return "";
  std::string text = absl::StrCat("metrics  ", fleet->coordinator_metrics_url(), "  coordinator\n");
  for (const v1::Member& member : fleet->members()) {
    absl::StrAppend(&text, "         ", member.metrics_url(), "  ", member.name(), "\n");
  }
  return text;
}

std::string LogPaths(const LocalCluster& cluster) {
  std::string text = "logs:\n";
  for (const std::string& name : cluster.names()) {
    absl::StrAppend(&text, "  ", cluster.log_path(name), "\n");
  }
  return text;
}

std::string SampleFrom(const std::string& directory) {
  if (directory.empty()) return "";
  auto checkpoint = CheckpointReader::Open(directory);
  if (!checkpoint.ok() || !HasText(**checkpoint)) return "";
  auto text = SampleText(**checkpoint, {});
  if (!text.ok()) return absl::StrCat("no sample: ", text.status().message(), "\n");
  return absl::StrCat("\n--- a sample of what the model writes ---\n", *text,
                      "\n-----------------------------------------\n");
}

// Watches the job until it ends. After a signal it suspends the job, which saves the last step. A
// second signal ends the program at once.
absl::StatusOr<v1::Job> Follow(CoordinatorClient& client, const std::string& id, Session& session) {
  ProgressDisplay display(Terminal::Of(fileno(stderr)), EvaluationsOf(client, id));
  v1::Job last;
  uint64_t shown = 0;  // the revision of the last event that was examined
  const auto say_warnings = [&](const v1::WatchJobResponse& update) {
    for (const v1::JobEvent& event : update.events()) {
      if (event.revision() <= shown) continue;  // the second watch begins with the first event
      shown = event.revision();
      if (const std::string warning = WarningLine(event); !warning.empty()) display.Say(warning);
    }
  };
  auto on_update = [&](const v1::WatchJobResponse& update) {
    last = update.job();
    say_warnings(update);
    display.Update(last, absl::Now());
    return CoordinatorClient::WatchStep::kContinue;
  };
  absl::Status status = client.Watch(id, {.interrupt = session.interrupt}, on_update);
  if (session.SignalExitCode() == 0) {
    RETURN_IF_ERROR(status);
    return last;
  }
  display.Say("saving the job; interrupt again to end at once");
  RETURN_IF_ERROR(client.SuspendJob(id).status());
  const auto until_saved = [&](const v1::WatchJobResponse& update) {
    last = update.job();
    say_warnings(update);
    return last.state() == v1::SUSPENDED ? CoordinatorClient::WatchStep::kStop
                                         : CoordinatorClient::WatchStep::kContinue;
  };
  // Without `interrupt`, because the first signal would end this watch at once.
  RETURN_IF_ERROR(client.Watch(id, {.deadline = absl::Now() + kSaveTimeout}, until_saved));
  return last;
}

std::string AdviceToGoOn(const JobClusterOptions& options, const Session& session,
                         const v1::Job& job, const std::string& checkpoint) {
  if (checkpoint.empty()) return "interrupted before the first step was trained\n";
  const std::string output =
      session.output_name == "table" ? "" : absl::StrCat(" -o ", ShellWord(session.output_name));
  return absl::StrCat("interrupted at step ", job.progress().step(), " of ",
                      job.progress().total_steps(), "; to continue from there:\n  muster run ",
                      ArgumentsToResume(options, checkpoint), output, "\n");
}

absl::Status RunJob(const JobClusterOptions& options, Session& session) {
  ASSIGN_OR_RETURN(const v1::JobSpec spec, ReadJob(options));
  // With a registration, a signal no longer ends this process at once. The cluster must be shut
  // down first.
  Interrupt::Registration registration(*session.interrupt, [] {});
  ASSIGN_OR_RETURN(const JobCluster own, StartClusterFor(spec, options, "muster run"));
  const LocalCluster& cluster = *own.cluster;
  const std::string metrics = MetricsText(cluster);
  std::fprintf(stderr, "coordinator %s, state and logs in %s\n%s", cluster.address().c_str(),
               cluster.dir().c_str(), metrics.c_str());
  if (session.SignalExitCode() != 0) return absl::CancelledError("interrupted");

  CoordinatorClient client(cluster.address());
  v1::CreateJobRequest request;
  *request.mutable_spec() = spec;
  ASSIGN_OR_RETURN(v1::Job job, client.CreateJob(request));
  std::fputs(WarningLines({job.warnings().begin(), job.warnings().end()}).c_str(), stderr);
  const std::string id = JobIdOf(job.name());
  ASSIGN_OR_RETURN(job, Follow(client, id, session));

  std::string directory;
  if (!job.checkpoint().empty()) {
    if (auto checkpoint = client.GetCheckpoint(job.checkpoint()); checkpoint.ok()) {
      directory = checkpoint->directory();
    }
  }
  if (job.state() == v1::SUCCEEDED) {
    session.Print(job, absl::StrCat(JobSummary(job, directory), SampleFrom(directory)),
                  absl::StrCat(id, "\n"));
  } else {
    session.Print(job, JobSummary(job, directory), absl::StrCat(id, "\n"));
  }
  if (session.SignalExitCode() != 0) {
    session.exit_code = session.SignalExitCode();
    std::fputs(AdviceToGoOn(options, session, job, directory).c_str(), stderr);
  } else if (!TrainedWell(job)) {
    std::fprintf(stderr, "%s: %s\n%s", job.reason().c_str(), job.message().c_str(),
                 LogPaths(cluster).c_str());
    session.exit_code = kExitJobFailed;
  }
  return absl::OkStatus();
}

}  // namespace

void AddRunCommand(Command program, Session& session) {
  auto options = std::make_shared<JobClusterOptions>();
  Command run = program.AddCommand("run", "Train a job on its own cluster on this machine",
                                   "muster run examples/char_gpt.yaml --set training.steps=200");
  run.AddOption("FILE", options->file, "Job file (docs/job_spec.md)").Required();
  run.AddOption("--set", options->settings, "FIELD=VALUE, replaces a field of the file")
      .OneValueEach();
  run.AddOption("--dir", options->dir, "State and logs; default: ./muster-runs/NAME-N");
  run.AddOption("--ps", options->ps, "Parameter servers; default: the job's").Within(1, 64);
  run.AddOption("--workers", options->workers, "Workers; default: the job's maximum").Within(1, 64);
  run.AddOption("--devices", options->devices, "Devices of each worker: cpu, cpu:2");
  run.AddOption("--threads", options->threads, "Threads of each device; default: they share cores")
      .Within(1, 1024);
  run.SetAction([options, &session] { session.Fail(RunJob(*options, session)); });
}

}  // namespace muster::cli
