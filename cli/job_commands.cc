// muster submit, list, get, describe, watch, wait, cancel, suspend, resume, delete.
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "cli/exit_code.h"
#include "cli/job_check.h"
#include "cli/job_text.h"
#include "cli/progress_display.h"
#include "cli/session.h"
#include "lib/job/job_file.h"
#include "lib/job/resource_name.h"
#include "lib/status/status.h"
#include "lib/suggestion/suggestion.h"

namespace muster::cli {
namespace {

using WatchStep = CoordinatorClient::WatchStep;

void PrintJob(const Session& session, const v1::Job& job) {
  session.Print(job, JobTable({job}, absl::Now()), absl::StrCat(JobIdOf(job.name()), "\n"));
}

absl::Status PrintJobOr(const Session& session, const absl::StatusOr<v1::Job>& job) {
  if (job.ok()) PrintJob(session, *job);
  return job.status();
}

absl::StatusOr<v1::JobState> ParseState(const std::string& name) {
  v1::JobState state;
  if (v1::JobState_Parse(absl::AsciiStrToUpper(name), &state) &&
      state != v1::JOB_STATE_UNSPECIFIED) {
    return state;
  }
  std::vector<std::string> known;
  for (int number = 1; number < v1::JobState_ARRAYSIZE; ++number) {
    if (v1::JobState_IsValid(number)) {
      known.push_back(v1::JobState_Name(static_cast<v1::JobState>(number)));
    }
  }
  const std::string nearest = NearestName(name, known);
  return absl::InvalidArgumentError(
      absl::StrCat("unknown state '", name, "'; ",
                   nearest.empty() ? absl::StrCat("there are ", absl::StrJoin(known, ", "))
                                   : absl::StrCat("did you mean '", nearest, "'?")));
}

absl::StatusOr<absl::Time> DeadlineIn(const std::string& timeout) {
  if (timeout.empty()) return absl::InfiniteFuture();
  absl::Duration duration;
  if (!absl::ParseDuration(timeout, &duration) || duration <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--timeout ", timeout, ": expects a duration such as 90s, 10m or 2h"));
  }
  return absl::Now() + duration;
}

// Waits with a progress display until `done` holds or the job has ended; the job as it was last
// seen.
absl::StatusOr<v1::Job> Await(const Session& session, CoordinatorClient& client,
                              const std::string& id, absl::Time deadline,
                              const std::function<bool(const v1::Job&)>& done) {
  ProgressDisplay display(Terminal::Of(fileno(stderr)));
  v1::Job last;
  const absl::Status status =
      client.Watch(id,
                   {.deadline = deadline,
                    .on_outage =
                        [&](const absl::Status& outage) {
                          display.Say(absl::StrCat(outage.message(), "; trying again"));
                        },
                    .interrupt = session.interrupt},
                   [&](const v1::WatchJobResponse& update) {
                     last = update.job();
                     display.Update(last, absl::Now());
                     return done(last) ? WatchStep::kStop : WatchStep::kContinue;
                   });
  if (absl::IsDeadlineExceeded(status)) {
    return absl::DeadlineExceededError(
        absl::StrCat(id, " is still ", v1::JobState_Name(last.state())));
  }
  RETURN_IF_ERROR(status);
  return last;
}

// Prints how the job ended and makes anything but a job that trained well a failure of the command.
void PrintEnd(Session& session, const v1::Job& job) {
  session.Print(job, JobSummary(job, job.checkpoint()), absl::StrCat(JobIdOf(job.name()), "\n"));
  if (TrainedWell(job)) return;
  std::fprintf(stderr, "%s: %s\n", job.reason().c_str(), job.message().c_str());
  session.exit_code = kExitJobFailed;
}

// ---------------------------------------------------------------- submit

struct SubmitOptions {
  std::string file;
  std::vector<std::string> settings;
  std::string request_id;
  bool wait = false;
};

absl::Status Submit(const SubmitOptions& options, Session& session) {
  ASSIGN_OR_RETURN(const JobOverrides overrides, ParseOverrides(options.settings));
  ASSIGN_OR_RETURN(const std::string text, ReadJobFile(options.file));
  v1::CreateJobRequest request;
  ASSIGN_OR_RETURN(*request.mutable_spec(), ParseJobFile(text, options.file, overrides));
  request.set_request_id(options.request_id);
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  auto job = client.CreateJob(request);
  if (!job.ok()) return LocateFaults(job.status(), text, options.file, overrides);
  std::fputs(WarningLines({job->warnings().begin(), job->warnings().end()}).c_str(), stderr);
  if (!options.wait) {
    PrintJob(session, *job);
    return absl::OkStatus();
  }
  const std::string id = JobIdOf(job->name());
  ASSIGN_OR_RETURN(const v1::Job ended,
                   Await(session, client, id, absl::InfiniteFuture(),
                         [](const v1::Job& now) { return IsTerminal(now.state()); }));
  PrintEnd(session, ended);
  return absl::OkStatus();
}

// ---------------------------------------------------------------- list, get, describe

absl::Status List(const std::vector<std::string>& states, const Session& session) {
  v1::ListJobsRequest request;
  request.set_view(v1::JOB_VIEW_BASIC);
  for (const std::string& name : states) {
    ASSIGN_OR_RETURN(const v1::JobState state, ParseState(name));
    request.add_states(state);
  }
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  ASSIGN_OR_RETURN(const v1::ListJobsResponse response, client.ListJobs(request));
  const std::vector<v1::Job> jobs(response.jobs().begin(), response.jobs().end());
  std::string names;
  for (const v1::Job& job : jobs) absl::StrAppend(&names, JobIdOf(job.name()), "\n");
  session.Print(response, JobTable(jobs, absl::Now()), names);
  return absl::OkStatus();
}

absl::Status Describe(const std::string& id, const Session& session) {
  v1::WatchJobResponse first;
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  RETURN_IF_ERROR(
      client.Watch(id, {.interrupt = session.interrupt}, [&](const v1::WatchJobResponse& update) {
        *first.mutable_job() = update.job();
        first.mutable_events()->MergeFrom(update.events());
        return CoordinatorClient::MoreEventsFollow(update) ? WatchStep::kContinue
                                                           : WatchStep::kStop;
      }));
  const std::vector<v1::JobEvent> events(first.events().begin(), first.events().end());
  session.Print(first, DescribeJob(first.job(), events, absl::Now()), absl::StrCat(id, "\n"));
  return absl::OkStatus();
}

absl::Status Delete(const std::string& job, const Session& session) {
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  RETURN_IF_ERROR(client.DeleteJob(job));
  std::fprintf(stderr, "%s deleted\n", job.c_str());
  return absl::OkStatus();
}

using JobCall = absl::StatusOr<v1::Job> (CoordinatorClient::*)(const std::string& job);
absl::StatusOr<v1::Job> Ask(const Session& session, const std::string& job, JobCall call) {
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  return (client.*call)(job);
}

// ---------------------------------------------------------------- watch, wait

absl::Status Watch(const std::string& id, Session& session) {
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  ProgressDisplay display(Terminal::Of(fileno(stderr)));
  v1::Job last;
  RETURN_IF_ERROR(client.Watch(id,
                               {.on_outage =
                                    [&](const absl::Status& outage) {
                                      display.Say(absl::StrCat(outage.message(), "; trying again"));
                                    },
                                .interrupt = session.interrupt},
                               [&](const v1::WatchJobResponse& update) {
                                 last = update.job();
                                 display.Clear();
                                 std::string events;
                                 for (const v1::JobEvent& event : update.events()) {
                                   absl::StrAppend(&events, EventLine(event), "\n");
                                 }
                                 session.Print(update, events, events);
                                 std::fflush(stdout);
                                 display.Update(last, absl::Now());
                                 return WatchStep::kContinue;
                               }));
  if (last.state() != v1::SUCCEEDED) session.exit_code = kExitJobFailed;
  return absl::OkStatus();
}

struct WaitOptions {
  std::string job;
  std::string state;
  std::string timeout;
};

absl::Status Wait(const WaitOptions& options, Session& session) {
  ASSIGN_OR_RETURN(const absl::Time deadline, DeadlineIn(options.timeout));
  v1::JobState wanted = v1::SUCCEEDED;
  if (!options.state.empty()) {
    ASSIGN_OR_RETURN(wanted, ParseState(options.state));
  }
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  ASSIGN_OR_RETURN(const v1::Job job,
                   Await(session, client, options.job, deadline,
                         [&](const v1::Job& now) { return now.state() == wanted; }));
  if (job.state() == wanted) {
    PrintJob(session, job);
  } else {
    PrintEnd(session, job);
    session.exit_code = kExitJobFailed;
  }
  return absl::OkStatus();
}

// ---------------------------------------------------------------- cancel, suspend, resume, delete

absl::Status Suspend(const std::string& id, bool wait, Session& session) {
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  ASSIGN_OR_RETURN(v1::Job job, client.SuspendJob(id));
  if (wait) {
    ASSIGN_OR_RETURN(job, Await(session, client, id, absl::InfiniteFuture(),
                                [](const v1::Job& now) { return now.state() == v1::SUSPENDED; }));
    if (job.state() != v1::SUSPENDED) session.exit_code = kExitConflict;  // it ended before
  }
  PrintJob(session, job);
  return absl::OkStatus();
}

struct ResumeOptions {
  std::string job;
  int workers_min = 0;
  int workers_max = 0;
  int ps = 0;
};

absl::Status Resume(const ResumeOptions& options, const Session& session) {
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  v1::ResumeJobRequest request;
  request.set_name(JobName(JobIdOf(options.job)));
  if (options.workers_min > 0 || options.workers_max > 0 || options.ps > 0) {
    ASSIGN_OR_RETURN(const v1::Job job, client.GetJob(options.job));
    v1::ResourceSpec& resources = *request.mutable_resources();
    resources = job.spec().resources();
    if (options.workers_min > 0) resources.mutable_workers()->set_min(options.workers_min);
    if (options.workers_max > 0) resources.mutable_workers()->set_max(options.workers_max);
    if (options.ps > 0) resources.set_ps(options.ps);
  }
  return PrintJobOr(session, client.ResumeJob(request));
}

// A command with one argument, the job's id.
CLI::App* AddJobCommand(CLI::App& app, const std::string& name, const std::string& description,
                        const std::string& example, std::string& job) {
  CLI::App* command = AddCommand(app, name, description, example);
  command->add_option("JOB", job, "Its id, char-gpt-7")->required();
  return command;
}

void AddSubmit(CLI::App& app, Session& session) {
  auto options = std::make_shared<SubmitOptions>();
  CLI::App* submit = AddCommand(app, "submit", "Queue a job from a file",
                                "muster submit job.yaml --set training.steps=500 --wait");
  submit->add_option("FILE", options->file, "Job file (docs/job_spec.md)")->required();
  submit->add_option("--set", options->settings, "FIELD=VALUE instead of the file's")
      ->allow_extra_args(false);
  submit->add_option("--request-id", options->request_id, "Submitting twice makes one job");
  submit->add_flag("--wait", options->wait, "Until it ends; exit code 1 if it fails");
  submit->callback([options, &session] { session.Fail(Submit(*options, session)); });
}

void AddReading(CLI::App& app, Session& session) {
  auto states = std::make_shared<std::vector<std::string>>();
  CLI::App* list = AddCommand(app, "list", "Jobs, newest first", "muster list --state running");
  list->add_option("--state", *states, "Only these: queued, running, ...")
      ->allow_extra_args(false)
      ->delimiter(',');
  list->callback([states, &session] { session.Fail(List(*states, session)); });

  auto job = std::make_shared<std::string>();
  AddJobCommand(app, "get", "One job", "muster get char-gpt-7 -o json", *job)
      ->callback([job, &session] {
        session.Fail(PrintJobOr(session, Ask(session, *job, &CoordinatorClient::GetJob)));
      });
  AddJobCommand(app, "describe", "Everything about a job", "muster describe char-gpt-7", *job)
      ->callback([job, &session] { session.Fail(Describe(*job, session)); });
  AddJobCommand(app, "watch", "Events and progress until it ends", "muster watch char-gpt-7", *job)
      ->callback([job, &session] { session.Fail(Watch(*job, session)); });
}

void AddWait(CLI::App& app, Session& session) {
  auto options = std::make_shared<WaitOptions>();
  CLI::App* wait = AddJobCommand(app, "wait", "Until a job ends or reaches a state",
                                 "muster wait char-gpt-7 --for running --timeout 5m", options->job);
  wait->add_option("--for", options->state, "State; default: succeeded");
  wait->add_option("--timeout", options->timeout, "90s, 10m, 2h; exit code 4 when over");
  wait->callback([options, &session] { session.Fail(Wait(*options, session)); });
}

void AddChanging(CLI::App& app, Session& session) {
  auto job = std::make_shared<std::string>();
  AddJobCommand(app, "cancel", "End a job now; checkpoints stay", "muster cancel char-gpt-7", *job)
      ->callback([job, &session] {
        session.Fail(PrintJobOr(session, Ask(session, *job, &CoordinatorClient::CancelJob)));
      });

  auto wait = std::make_shared<bool>(false);
  CLI::App* suspend = AddJobCommand(app, "suspend", "Checkpoint and release the members",
                                    "muster suspend char-gpt-7 --wait", *job);
  suspend->add_flag("--wait", *wait, "Until it is suspended");
  suspend->callback([job, wait, &session] { session.Fail(Suspend(*job, *wait, session)); });

  auto options = std::make_shared<ResumeOptions>();
  CLI::App* resume = AddJobCommand(app, "resume", "Queue a suspended job again",
                                   "muster resume char-gpt-7 --workers-max 4", options->job);
  resume->add_option("--workers-min", options->workers_min, "Instead of the job's")
      ->check(CLI::PositiveNumber.description(""));
  resume->add_option("--workers-max", options->workers_max, "Instead of the job's")
      ->check(CLI::PositiveNumber.description(""));
  resume->add_option("--ps", options->ps, "Parameter servers instead of the job's")
      ->check(CLI::PositiveNumber.description(""));
  resume->callback([options, &session] { session.Fail(Resume(*options, session)); });

  AddJobCommand(app, "delete", "Forget an ended job and its checkpoints", "muster delete line-3",
                *job)
      ->callback([job, &session] { session.Fail(Delete(*job, session)); });
}

}  // namespace

void AddJobCommands(CLI::App& app, Session& session) {
  AddSubmit(app, session);
  AddReading(app, session);
  AddWait(app, session);
  AddChanging(app, session);
}

}  // namespace muster::cli
