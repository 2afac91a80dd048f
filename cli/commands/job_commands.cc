// Implements muster submit, list, get, describe, watch, wait, cancel, suspend, resume, scale,
// update, retry, clone and delete.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "cli/commands/evaluations.h"
#include "cli/commands/session.h"
#include "cli/framework/exit_code.h"
#include "cli/local/job_check.h"
#include "cli/text/curve.h"
#include "cli/text/event_fold.h"
#include "cli/text/job_text.h"
#include "cli/text/progress_display.h"
#include "google/protobuf/map.h"
#include "lib/job/job_file.h"
#include "lib/job/job_validation.h"
#include "lib/job/resource_name.h"
#include "lib/plan/worker_devices.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"
#include "lib/suggestion/suggestion.h"

namespace muster::cli {
namespace {

using WatchStep = CoordinatorClient::WatchStep;

constexpr absl::Duration kCurveInterval = absl::Seconds(2);

std::string NamesOf(absl::Span<const v1::Job> jobs) {
  std::string names;
  for (const v1::Job& job : jobs) absl::StrAppend(&names, JobIdOf(job.name()), "\n");
  return names;
}

void PrintJob(const Session& session, const v1::Job& job) {
  session.Print(job, JobTable({job}, absl::Now()), NamesOf({job}),
                WideJobTable({job}, absl::Now()));
}

// Prints one job as a job, and several as the list that `muster list` prints.
void PrintJobs(const Session& session, const std::vector<v1::Job>& jobs) {
  if (jobs.size() == 1) return PrintJob(session, jobs[0]);
  v1::ListJobsResponse list;
  for (const v1::Job& job : jobs) *list.add_jobs() = job;
  session.Print(list, JobTable(jobs, absl::Now()), NamesOf(jobs), WideJobTable(jobs, absl::Now()));
}

// Prints each job as a job file, a document of one YAML stream.
void PrintSpecs(const Session&, const std::vector<v1::Job>& jobs) {
  for (size_t i = 0; i < jobs.size(); ++i) {
    std::fputs(absl::StrCat(i > 0 ? "---\n" : "", ToYaml(jobs[i].spec())).c_str(), stdout);
  }
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
                   nearest.empty() ? absl::StrCat("the states are ", absl::StrJoin(known, ", "))
                                   : absl::StrCat("did you mean '", nearest, "'?")));
}

absl::StatusOr<absl::Duration> ParseDuration(const std::string& option, const std::string& text) {
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration) || duration <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat(option, " ", text, ": expects a duration such as 90s, 10m or 2h"));
  }
  return duration;
}

absl::StatusOr<absl::Time> DeadlineIn(const std::string& timeout) {
  if (timeout.empty()) return absl::InfiniteFuture();
  ASSIGN_OR_RETURN(const absl::Duration duration, ParseDuration("--timeout", timeout));
  return absl::Now() + duration;
}

// Returns the error of a command that a signal ended. The job itself continues.
absl::Status GoesOn(const std::string& job, const v1::Job& last) {
  const std::string id = JobIdOf(job);
  const std::string state = last.name().empty()
                                ? ""
                                : absl::StrCat(" (", v1::JobState_Name(last.state()), " at step ",
                                               StepText(last.progress()), ")");
  return WithReason(absl::CancelledError(absl::StrCat(id, " continues without this command", state,
                                                      "; muster watch ", id, " shows it again")),
                    "INTERRUPTED");
}

// Shows the progress until `done` is true for an update, or until the job ends. Returns the last
// state of the job, DEADLINE_EXCEEDED at the deadline, CANCELLED on a signal.
absl::StatusOr<v1::Job> Await(const Session& session, CoordinatorClient& client,
                              const std::string& id, absl::Time deadline,
                              const std::function<bool(const v1::WatchJobResponse&)>& done) {
  ProgressDisplay display(Terminal::Of(fileno(stderr)), EvaluationsOf(client, id));
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
                     return done(update) ? WatchStep::kStop : WatchStep::kContinue;
                   });
  if (absl::IsDeadlineExceeded(status)) {
    return absl::DeadlineExceededError(
        absl::StrCat(id, " is still ", v1::JobState_Name(last.state())));
  }
  if (session.SignalExitCode() != 0 && absl::IsCancelled(status)) return GoesOn(id, last);
  RETURN_IF_ERROR(status);
  return last;
}

// Prints the result of the job. The command fails unless the job trained well.
void PrintEnd(Session& session, const v1::Job& job) {
  session.Print(job, JobSummary(job, CheckpointIdOf(job.checkpoint())),
                absl::StrCat(JobIdOf(job.name()), "\n"));
  if (TrainedWell(job)) return;
  std::fprintf(stderr, "%s: %s\n", job.reason().c_str(), job.message().c_str());
  session.exit_code = kExitJobFailed;
}

// ---------------------------------------------------------------- submit

struct SubmitOptions {
  std::string file;
  std::vector<std::string> settings;
  std::string request_id;
  std::string coordinator_wait;  // "": none
  bool wait = false;
};

absl::Status Submit(const SubmitOptions& options, Session& session) {
  ASSIGN_OR_RETURN(const JobOverrides overrides, ParseOverrides(options.settings));
  ASSIGN_OR_RETURN(const std::string text, ReadJobFile(options.file));
  v1::CreateJobRequest request;
  ASSIGN_OR_RETURN(*request.mutable_spec(), ParseJobFile(text, options.file, overrides));
  request.set_request_id(options.request_id);
  CoordinatorClient::CreateOptions create;
  if (!options.coordinator_wait.empty()) {
    ASSIGN_OR_RETURN(create.away_max,
                     ParseDuration("--wait-for-coordinator", options.coordinator_wait));
    create.on_outage = [&](const absl::Status& outage) {
      std::fprintf(stderr, "%s; trying again for up to %s\n", std::string(outage.message()).c_str(),
                   options.coordinator_wait.c_str());
    };
  }
  ASSIGN_OR_RETURN(const Session::Destination destination, session.Find());
  Session::UsePathsOfHere(destination, *request.mutable_spec());
  CoordinatorClient client(destination.target, destination.where);
  const absl::StatusOr<v1::Job> job = client.CreateJob(request, create);
  if (!job.ok()) return LocateFaults(job.status(), text, options.file, overrides);
  std::fputs(WarningLines({job->warnings().begin(), job->warnings().end()}).c_str(), stderr);
  if (!options.wait) {
    PrintJob(session, *job);
    return absl::OkStatus();
  }
  const std::string id = JobIdOf(job->name());
  ASSIGN_OR_RETURN(const v1::Job ended, Await(session, client, id, absl::InfiniteFuture(),
                                              [](const v1::WatchJobResponse& now) {
                                                return IsTerminal(now.job().state());
                                              }));
  PrintEnd(session, ended);
  return absl::OkStatus();
}

// ---------------------------------------------------------------- list, get, describe

struct ListOptions {
  std::vector<std::string> states;
  std::string selector;
  std::string sort;
  bool watch = false;
};

// Returns the row of a job at a fixed age, because a change of its age is not news.
std::string RowOf(const v1::Job& job, OutputFormat format) {
  const absl::Span<const v1::Job> one = absl::MakeConstSpan(&job, 1);
  return format == OutputFormat::kWide ? WideJobTable(one, absl::UnixEpoch())
                                       : JobTable(one, absl::UnixEpoch());
}

// Prints all jobs, then changes as they come: rows of a table, or one message per line. A row is
// printed only if it differs from the job's previous row.
absl::Status WatchList(const v1::WatchJobsRequest& request, const Session& session) {
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  bool is_first = true;
  const OutputFormat format = session.output();
  const bool has_rows = format == OutputFormat::kTable || format == OutputFormat::kWide ||
                        format == OutputFormat::kName;
  absl::flat_hash_map<std::string, std::string> shown;  // last row by job
  const absl::Status ended = client.WatchAll(
      request, {.interrupt = session.interrupt}, [&](const v1::WatchJobsResponse& update) {
        std::vector<v1::Job> jobs(update.jobs().begin(), update.jobs().end());
        if (has_rows) {
          std::erase_if(jobs, [&](const v1::Job& job) {
            std::string row = RowOf(job, format);
            return std::exchange(shown[job.name()], row) == row;
          });
        }
        for (const std::string& name : update.removed()) shown.erase(name);
        std::string table = JobTable(jobs, absl::Now()), wide = WideJobTable(jobs, absl::Now());
        std::string names = NamesOf(jobs);
        if (!is_first) {  // no header
          table.erase(0, table.find('\n') + 1);
          wide.erase(0, wide.find('\n') + 1);
        }
        for (const std::string& name : update.removed()) {
          absl::StrAppend(&table, JobIdOf(name), "  is gone\n");
          absl::StrAppend(&wide, JobIdOf(name), "  is gone\n");
        }
        if (is_first || !jobs.empty() || !update.removed().empty()) {
          session.Print(update, table, names, wide);
          std::fflush(stdout);
        }
        is_first = false;
        return WatchStep::kContinue;
      });
  return absl::IsCancelled(ended) ? absl::OkStatus() : ended;
}

absl::Status List(const ListOptions& options, Session& session) {
  v1::ListJobsRequest request;
  request.set_view(v1::JOB_VIEW_BASIC);
  request.set_selector(options.selector);
  for (const std::string& name : options.states) {
    ASSIGN_OR_RETURN(const v1::JobState state, ParseState(name));
    request.add_states(state);
  }
  std::vector<v1::Job> none;
  if (!options.sort.empty()) RETURN_IF_ERROR(SortJobs(options.sort, none));
  if (options.watch) {
    if (!options.sort.empty()) {
      return absl::InvalidArgumentError(
          "--sort: --watch prints jobs in the order of their changes");
    }
    v1::WatchJobsRequest watched;
    *watched.mutable_states() = request.states();
    watched.set_selector(options.selector);
    RETURN_IF_ERROR(WatchList(watched, session));
    session.exit_code = session.SignalExitCode();
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  ASSIGN_OR_RETURN(v1::ListJobsResponse response, client.ListJobs(request));
  std::vector<v1::Job> jobs(response.jobs().begin(), response.jobs().end());
  if (!options.sort.empty()) {
    RETURN_IF_ERROR(SortJobs(options.sort, jobs));
    response.mutable_jobs()->Assign(jobs.begin(), jobs.end());
  }
  session.Print(response, JobTable(jobs, absl::Now()), NamesOf(jobs),
                WideJobTable(jobs, absl::Now()));
  if (jobs.empty()) {
    const bool is_filtered = !options.states.empty() || !options.selector.empty();
    session.TellEmpty(is_filtered ? "matching jobs" : "jobs", client);
  }
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
  session.Print(first, DescribeJob(first.job(), events, absl::Now()),
                absl::StrCat(JobIdOf(id), "\n"));
  return absl::OkStatus();
}

absl::Status Delete(const std::vector<std::string>& jobs, Session& session) {
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  absl::Status first;
  for (const std::string& job : jobs) {
    const absl::Status deleted = client.DeleteJob(job);
    if (deleted.ok()) std::fprintf(stderr, "%s deleted\n", JobIdOf(job).c_str());
    if (!first.ok()) session.Fail(deleted);
    first.Update(deleted);
  }
  return first;
}

// Calls `call` for each job and prints the jobs for which it succeeded. Errors are printed one by
// one; the first one decides the exit code.
using JobCall =
    absl::FunctionRef<absl::StatusOr<v1::Job>(CoordinatorClient& client, const std::string& job)>;
using PrintDone = absl::FunctionRef<void(const Session& session, const std::vector<v1::Job>& done)>;
absl::Status ForEach(Session& session, const std::vector<std::string>& jobs, JobCall call,
                     PrintDone print = PrintJobs) {
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  std::vector<v1::Job> done;
  int exit_code = 0;
  for (const std::string& job : jobs) {
    absl::StatusOr<v1::Job> answer = call(client, job);
    if (answer.ok()) {
      done.push_back(*std::move(answer));
    } else {
      if (jobs.size() == 1) return answer.status();
      session.Fail(answer.status());
      if (exit_code == 0) exit_code = session.exit_code;
    }
  }
  if (!done.empty()) print(session, done);
  session.exit_code = exit_code;
  return absl::OkStatus();
}

// ---------------------------------------------------------------- watch, wait

// Returns the curve of the loss so far, as wide as the terminal. Returns "" if there is no loss yet
// or the call fails.
std::string LossCurve(CoordinatorClient& client, const std::string& id, const Terminal& terminal) {
  v1::ReadJobMetricsRequest request;
  request.set_name(JobName(JobIdOf(id)));
  request.add_series("loss");
  request.set_points(4 * terminal.width);
  const auto metrics = client.ReadJobMetrics(request);
  if (!metrics.ok() || metrics->series().empty()) return "";
  return DrawCurve(metrics->series(0), {.width = terminal.width - 1, .height = 8}, InkOfLocale());
}

absl::Status Watch(const std::string& id, Session& session) {
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  const Terminal terminal = Terminal::Of(fileno(stderr));
  ProgressDisplay display(terminal, EvaluationsOf(client, id));
  absl::Time curve_due = absl::InfinitePast();
  v1::Job last;
  EventFold fold;
  auto print = [&](const v1::WatchJobResponse& update, absl::Span<const v1::JobEvent> events) {
    std::string lines;
    for (const v1::JobEvent& event : events) absl::StrAppend(&lines, EventLine(event), "\n");
    session.Print(update, lines, lines);
    std::fflush(stdout);
  };
  const absl::Status status = client.Watch(
      id,
      {.on_outage =
           [&](const absl::Status& outage) {
             display.Say(absl::StrCat(outage.message(), "; trying again"));
           },
       .interrupt = session.interrupt},
      [&](const v1::WatchJobResponse& update) {
        last = update.job();
        display.Clear();
        const std::vector<v1::JobEvent> events(update.events().begin(), update.events().end());
        print(update, fold.Take(events));
        const absl::Time now = absl::Now();
        if (terminal.interactive && now >= curve_due) {
          display.SetAbove(LossCurve(client, id, terminal));
          curve_due = now + kCurveInterval;
        }
        display.Update(last, now);
        return WatchStep::kContinue;
      });
  display.Clear();
  if (session.is_for_people() || session.output() == OutputFormat::kName) print({}, fold.Rest());
  if (session.SignalExitCode() != 0 && absl::IsCancelled(status)) return GoesOn(id, last);
  RETURN_IF_ERROR(status);
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
  // One update may contain several changes, so a state that has already passed is only in the
  // events. Events up to the revision of the first update are older than this wait and do not
  // count.
  std::optional<uint64_t> since;
  bool reached = false;
  ASSIGN_OR_RETURN(
      const v1::Job job,
      Await(session, client, options.job, deadline, [&](const v1::WatchJobResponse& now) {
        if (!since) since = now.job().revision();
        reached |= now.job().state() == wanted ||
                   std::ranges::any_of(now.events(), [&](const v1::JobEvent& event) {
                     return event.state() == wanted && event.revision() > *since;
                   });
        return reached;
      }));
  if (reached) {
    PrintJob(session, job);
    return absl::OkStatus();
  }
  PrintEnd(session, job);
  if (TrainedWell(job)) {
    std::fprintf(stderr, "%s has ended (%s) and was not %s during the wait\n", options.job.c_str(),
                 v1::JobState_Name(job.state()).c_str(), v1::JobState_Name(wanted).c_str());
  }
  session.exit_code = kExitJobFailed;
  return absl::OkStatus();
}

// ---------------------------------------------------------------- cancel, suspend, resume, delete

absl::Status EndedBefore(const std::string& id, const v1::Job& job, const std::string& what) {
  return WithReason(
      absl::FailedPreconditionError(absl::StrCat(id, " has ended (", v1::JobState_Name(job.state()),
                                                 ") before it could be ", what)),
      "JOB_FINISHED");
}

// Blocks until the job is suspended or has ended. Returns its last state.
absl::StatusOr<v1::Job> AwaitSuspended(Session& session, CoordinatorClient& client,
                                       const std::string& id) {
  return Await(session, client, id, absl::InfiniteFuture(),
               [](const v1::WatchJobResponse& now) { return now.job().state() == v1::SUSPENDED; });
}

absl::Status Suspend(const std::vector<std::string>& jobs, bool wait, Session& session) {
  const auto ask = [](CoordinatorClient& client, const std::string& job) {
    return client.SuspendJob(job);
  };
  if (!wait) return ForEach(session, jobs, ask);
  // Sends all requests first, so that no job waits for the checkpoint of another. The second
  // request has no effect.
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  for (const std::string& job : jobs) client.SuspendJob(job).IgnoreError();
  return ForEach(session, jobs,
                 [&](CoordinatorClient& each, const std::string& id) -> absl::StatusOr<v1::Job> {
                   RETURN_IF_ERROR(each.SuspendJob(id).status());
                   ASSIGN_OR_RETURN(v1::Job job, AwaitSuspended(session, each, id));
                   if (job.state() != v1::SUSPENDED) return EndedBefore(id, job, "suspended");
                   return job;
                 });
}

struct ResumeOptions {
  int workers_min = 0;
  int workers_max = 0;
  int ps = 0;
};

bool AnyGiven(const ResumeOptions& options) {
  return options.workers_min > 0 || options.workers_max > 0 || options.ps > 0;
}

void ApplyTo(v1::ResourceSpec& resources, const ResumeOptions& options) {
  if (options.workers_min > 0) resources.mutable_workers()->set_min(options.workers_min);
  if (options.workers_max > 0) resources.mutable_workers()->set_max(options.workers_max);
  if (options.ps > 0) resources.set_ps(options.ps);
}

absl::StatusOr<v1::Job> Resume(const ResumeOptions& options, CoordinatorClient& client,
                               const std::string& id) {
  v1::ResumeJobRequest request;
  request.set_name(JobName(JobIdOf(id)));
  if (AnyGiven(options)) {
    ASSIGN_OR_RETURN(const v1::Job job, client.GetJob(id));
    *request.mutable_resources() = job.spec().resources();
    ApplyTo(*request.mutable_resources(), options);
  }
  return client.ResumeJob(request);
}

// ---------------------------------------------------------------- scale, update, retry, clone

struct ScaleOptions {
  std::string job;
  ResumeOptions members;
  int workers = 0;
};

// Returns the command that resumes a suspended job.
std::string CommandToResume(const std::string& id, const ResumeOptions& options) {
  std::string words = absl::StrCat("muster resume ", id);
  if (options.workers_min > 0) absl::StrAppend(&words, " --workers-min ", options.workers_min);
  if (options.workers_max > 0) absl::StrAppend(&words, " --workers-max ", options.workers_max);
  if (options.ps > 0) absl::StrAppend(&words, " --ps ", options.ps);
  return words;
}

// Returns a warning that the job will wait because too few members of a role are attached, or "" if
// there are enough.
std::string TooFew(const std::string& id, const std::string& role, int needed, int attached) {
  if (attached >= needed) return "";
  return absl::StrCat("warning: ", id, " needs ", needed, " ", role, ", and ", attached,
                      attached == 1 ? " is" : " are", " attached: it waits in the queue until ",
                      needed - attached, " more attach; start them, or scale ", id, " to fewer\n");
}

// Warns if the fleet has fewer members than the job needs. Prints nothing if the fleet cannot be
// read.
void WarnOfMissingMembers(CoordinatorClient& client, const v1::Job& job) {
  const auto fleet = client.ListMembers();
  if (!fleet.ok()) return;
  int workers = 0, ps = 0;
  const v1::ResourceSpec& resources = job.spec().resources();
  for (const v1::Member& member : fleet->members()) {
    if (member.leaving()) continue;
    if (member.role() == v1::PS) {
      ++ps;
    } else if (CanShareModel(member.devices(), resources.tensor_parallel())) {
      ++workers;
    }
  }
  const std::string id = JobIdOf(job.name());
  const char* const role = resources.tensor_parallel() > 1
                               ? "workers with devices for resources.tensor_parallel"
                               : "workers";
  const bool has_ps = job.spec().sync().mode() != v1::ALLREDUCE;
  std::fputs(TooFew(id, role, resources.workers().min(), workers).c_str(), stderr);
  if (has_ps) std::fputs(TooFew(id, "ps", resources.ps(), ps).c_str(), stderr);
}

// Returns the warnings of `after` that `before` has not.
std::vector<std::string> NewWarnings(const v1::JobSpec& before, const v1::JobSpec& after) {
  const std::vector<std::string> old = WarningsOf(before);
  std::vector<std::string> warnings = WarningsOf(after);
  std::erase_if(warnings, [&old](const std::string& warning) {
    return std::ranges::find(old, warning) != old.end();
  });
  return warnings;
}

// The members of a job are chosen when it starts. So this suspends the job at a checkpoint and
// resumes it with other numbers.
absl::Status Scale(ScaleOptions options, Session& session) {
  if (options.workers > 0) {
    options.members.workers_min = options.members.workers_max = options.workers;
  }
  const ResumeOptions& wanted = options.members;
  if (!AnyGiven(wanted)) {
    return absl::InvalidArgumentError("give --workers, --workers-min, --workers-max or --ps");
  }
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  // Validates before suspending: a request that the coordinator would refuse must not stop a
  // running job.
  ASSIGN_OR_RETURN(v1::Job job, client.GetJob(options.job));
  const v1::JobSpec before = job.spec();
  ApplyTo(*job.mutable_spec()->mutable_resources(), wanted);
  if (const auto faults = ValidateJobSpec(job.spec()); !faults.empty()) {
    return FaultsToStatus(faults);
  }
  std::fputs(WarningLines(NewWarnings(before, job.spec())).c_str(), stderr);
  WarnOfMissingMembers(client, job);
  RETURN_IF_ERROR(client.SuspendJob(options.job).status());
  // From here on the job does not continue unless it is resumed, so every error says how.
  auto in_state = [&](const absl::Status& why, const char* state) {
    return Annotate(why,
                    absl::StrCat(options.job, " is ", state, " and does not continue by itself (",
                                 CommandToResume(options.job, wanted), ")"));
  };
  const absl::StatusOr<v1::Job> suspended = AwaitSuspended(session, client, options.job);
  if (!suspended.ok()) return in_state(suspended.status(), "being suspended");
  if (suspended->state() != v1::SUSPENDED) {
    return EndedBefore(options.job, *suspended, "suspended");
  }
  const absl::StatusOr<v1::Job> resumed = Resume(wanted, client, options.job);
  if (!resumed.ok()) return in_state(resumed.status(), "suspended");
  PrintJob(session, *resumed);
  return absl::OkStatus();
}

struct UpdateOptions {
  std::string job;
  std::string priority, keep_last;  // "": unchanged
  std::vector<std::string> labels, annotations;
};

// Applies edits: "KEY=VALUE" sets an entry, "KEY-" removes it.
absl::Status ApplyEdits(const std::vector<std::string>& edits, const std::string& option,
                        google::protobuf::Map<std::string, std::string>& entries) {
  for (const std::string& edit : edits) {
    const size_t equals = edit.find('=');
    if (equals != std::string::npos) {
      entries[edit.substr(0, equals)] = edit.substr(equals + 1);
    } else if (absl::EndsWith(edit, "-") && edit.size() > 1) {
      entries.erase(edit.substr(0, edit.size() - 1));
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat(option, " ", edit, ": KEY=VALUE sets, KEY- removes"));
    }
  }
  return absl::OkStatus();
}

absl::Status ParseNumber(const std::string& text, const std::string& option, int32_t& number) {
  if (absl::SimpleAtoi(text, &number)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(option, " ", text, ": expects a whole number"));
}

absl::Status Update(const UpdateOptions& options, const Session& session) {
  v1::UpdateJobRequest request;
  request.set_name(JobName(JobIdOf(options.job)));
  v1::JobSpec& spec = *request.mutable_spec();
  auto names = [&](const char* path) { request.mutable_update_mask()->add_paths(path); };
  if (!options.priority.empty()) {
    int32_t priority = 0;
    RETURN_IF_ERROR(ParseNumber(options.priority, "--priority", priority));
    spec.set_priority(priority);
    names("priority");
  }
  if (!options.keep_last.empty()) {
    int32_t keep_last = 0;
    RETURN_IF_ERROR(ParseNumber(options.keep_last, "--keep-last", keep_last));
    spec.mutable_checkpoint()->set_keep_last(keep_last);
    names("checkpoint.keep_last");
  }
  const bool edits = !options.labels.empty() || !options.annotations.empty();
  if (!edits && request.update_mask().paths().empty()) {
    return absl::InvalidArgumentError("give --priority, --label, --annotation or --keep-last");
  }
  // Checks the edits before any call, so that faulty arguments are found without a coordinator.
  google::protobuf::Map<std::string, std::string> scratch;
  RETURN_IF_ERROR(ApplyEdits(options.labels, "--label", scratch));
  RETURN_IF_ERROR(ApplyEdits(options.annotations, "--annotation", scratch));
  ASSIGN_OR_RETURN(CoordinatorClient client, session.Connect());
  // A map is replaced as a whole. The revision makes the update fail if the job was changed in
  // between.
  if (edits) {
    ASSIGN_OR_RETURN(const v1::Job job, client.GetJob(options.job));
    request.set_revision(job.revision());
    *spec.mutable_labels() = job.spec().labels();
    *spec.mutable_annotations() = job.spec().annotations();
    RETURN_IF_ERROR(ApplyEdits(options.labels, "--label", *spec.mutable_labels()));
    RETURN_IF_ERROR(ApplyEdits(options.annotations, "--annotation", *spec.mutable_annotations()));
    if (!options.labels.empty()) names("labels");
    if (!options.annotations.empty()) names("annotations");
  }
  return PrintJobOr(session, client.UpdateJob(request));
}

struct AgainOptions {
  std::vector<std::string> jobs;
  std::vector<std::string> settings;
  bool print = false;
};

// Submits jobs again: from the last checkpoint, or where the job itself started if it has none
// (retry), or from the beginning (clone).
absl::Status Again(const AgainOptions& options, bool from_checkpoint, Session& session) {
  ASSIGN_OR_RETURN(const JobOverrides overrides, ParseOverrides(options.settings));
  auto submit = [&](CoordinatorClient& client, const std::string& id) -> absl::StatusOr<v1::Job> {
    ASSIGN_OR_RETURN(v1::Job job, client.GetJob(id));
    if (from_checkpoint && !IsTerminal(job.state())) {
      return WithReason(absl::FailedPreconditionError(
                            absl::StrCat(id, " has not ended (", v1::JobState_Name(job.state()),
                                         "); muster clone submits a copy of it")),
                        "JOB_NOT_FINISHED");
    }
    v1::JobSpec& spec = *job.mutable_spec();
    if (!from_checkpoint && spec.has_checkpoint()) spec.mutable_checkpoint()->clear_resume_from();
    if (from_checkpoint && !job.checkpoint().empty()) {
      spec.mutable_checkpoint()->set_resume_from(JobIdOf(job.name()));
    }
    const std::string text = ToYaml(spec);
    v1::CreateJobRequest request;
    ASSIGN_OR_RETURN(*request.mutable_spec(), ParseJobFile(text, id, overrides));
    if (options.print) {
      spec = request.spec();
      return job;
    }
    absl::StatusOr<v1::Job> created = client.CreateJob(request);
    if (!created.ok()) return LocateFaults(created.status(), text, id, overrides);
    return created;
  };
  if (!options.print) return ForEach(session, options.jobs, submit);
  return ForEach(session, options.jobs, submit, PrintSpecs);
}

// Adds a command with one argument, the job's id.
Command AddJobCommand(Command program, const std::string& name, const std::string& description,
                      const std::string& example, std::string& job) {
  Command command = program.AddCommand(name, description, example);
  command.AddOption("JOB", job, "Its id, char-gpt-7").Required();
  return command;
}

void AddSubmit(Command program, Session& session) {
  auto options = std::make_shared<SubmitOptions>();
  Command submit = program.AddCommand("submit", "Queue a job from a file",
                                      "muster submit job.yaml --set training.steps=500 --wait");
  submit.AddOption("FILE", options->file, "Job file (docs/job_spec.md)").Required();
  submit.AddOption("--set", options->settings, "FIELD=VALUE, replaces a field of the file")
      .OneValueEach();
  submit.AddOption("--request-id", options->request_id, "Submitting one id twice makes one job");
  submit.AddOption("--wait-for-coordinator", options->coordinator_wait,
                   "How long to keep trying, 5m");
  submit.AddFlag("--wait", options->wait, "Wait until it ends; exit code 1 if it fails");
  submit.SetAction([options, &session] { session.Fail(Submit(*options, session)); });
}

// Adds a command for one job or several.
Command AddJobsCommand(Command program, const std::string& name, const std::string& description,
                       const std::string& example, std::vector<std::string>& jobs) {
  Command command = program.AddCommand(name, description, example);
  command.AddOption("JOB", jobs, "Its id, char-gpt-7; may be several").Required();
  return command;
}

void AddReading(Command program, Session& session) {
  auto options = std::make_shared<ListOptions>();
  Command list =
      program.AddCommand("list", "Jobs, newest first",
                         "muster list --state running,queued --selector team=vision -o wide");
  list.AddOption("--state", options->states, "Only these states: queued, running, ...")
      .OneValueEach()
      .SplitAt(',');
  list.AddOption("-l,--selector", options->selector, "Only with these labels: team=vision,!old");
  list.AddOption("--sort", options->sort, "age, name, state, step, loss, priority or queue");
  list.AddFlag("-w,--watch", options->watch, "Then print changes as they come");
  list.SetAction([options, &session] { session.Fail(List(*options, session)); });

  auto jobs = std::make_shared<std::vector<std::string>>();
  Command get = AddJobsCommand(program, "get", "Jobs by their ids",
                               "muster get char-gpt-7 -o spec > job.yaml", *jobs);
  get.AddOption("-o,--output", session.output_name, "spec: job files; others: see muster --help")
      .Check([](const std::string& name) { return name == kSpecOutput ? "" : OutputFault(name); });
  get.SetAction([jobs, &session] {
    session.Fail(ForEach(session, *jobs, std::mem_fn(&CoordinatorClient::GetJob),
                         session.output() == OutputFormat::kSpec ? PrintSpecs : PrintJobs));
  });
  auto job = std::make_shared<std::string>();
  AddJobCommand(program, "describe", "Everything about a job", "muster describe char-gpt-7", *job)
      .SetAction([job, &session] { session.Fail(Describe(*job, session)); });
  AddJobCommand(program, "watch", "Events, progress and the loss until it ends",
                "muster watch char-gpt-7", *job)
      .SetAction([job, &session] { session.Fail(Watch(*job, session)); });
}

void AddWait(Command program, Session& session) {
  auto options = std::make_shared<WaitOptions>();
  Command wait = AddJobCommand(program, "wait", "Wait until a job ends or reaches a state",
                               "muster wait char-gpt-7 --for running --timeout 5m", options->job);
  wait.AddOption("--for", options->state, "State; default: succeeded");
  wait.AddOption("--timeout", options->timeout, "90s, 10m, 2h; exit code 4 if it is exceeded");
  wait.SetAction([options, &session] { session.Fail(Wait(*options, session)); });
}

void AddChanging(Command program, Session& session) {
  auto jobs = std::make_shared<std::vector<std::string>>();
  AddJobsCommand(program, "cancel", "End jobs now; checkpoints stay", "muster cancel char-gpt-7",
                 *jobs)
      .SetAction([jobs, &session] {
        session.Fail(ForEach(session, *jobs, std::mem_fn(&CoordinatorClient::CancelJob)));
      });

  auto wait = std::make_shared<bool>(false);
  Command suspend = AddJobsCommand(program, "suspend", "Checkpoint and release the members",
                                   "muster suspend char-gpt-7 --wait", *jobs);
  suspend.AddFlag("--wait", *wait, "Wait until they are suspended");
  suspend.SetAction([jobs, wait, &session] { session.Fail(Suspend(*jobs, *wait, session)); });

  auto options = std::make_shared<ResumeOptions>();
  Command resume = AddJobsCommand(program, "resume", "Queue suspended jobs again",
                                  "muster resume char-gpt-7 --workers-max 4", *jobs);
  resume.AddOption("--workers-min", options->workers_min, "Minimum, replaces the job's").Positive();
  resume.AddOption("--workers-max", options->workers_max, "Maximum, replaces the job's").Positive();
  resume.AddOption("--ps", options->ps, "Parameter servers, replaces the job's number").Positive();
  resume.SetAction([jobs, options, &session] {
    session.Fail(ForEach(session, *jobs, [&](CoordinatorClient& client, const std::string& job) {
      return Resume(*options, client, job);
    }));
  });

  AddJobsCommand(program, "delete", "Delete ended jobs and their checkpoints",
                 "muster delete line-3 line-4", *jobs)
      .SetAction([jobs, &session] { session.Fail(Delete(*jobs, session)); });
}

void AddAgain(Command program, Session& session) {
  auto scale = std::make_shared<ScaleOptions>();
  Command command =
      AddJobCommand(program, "scale", "Stop a job at a checkpoint; continue with other members",
                    "muster scale char-gpt-7 --workers 4", scale->job);
  command.AddOption("--workers", scale->workers, "Exactly this number of workers").Positive();
  command.AddOption("--workers-min", scale->members.workers_min, "Minimum of workers").Positive();
  command.AddOption("--workers-max", scale->members.workers_max, "Maximum of workers").Positive();
  command.AddOption("--ps", scale->members.ps, "Parameter servers").Positive();
  command.SetAction([scale, &session] { session.Fail(Scale(*scale, session)); });

  auto update = std::make_shared<UpdateOptions>();
  command = AddJobCommand(program, "update", "Change priority, labels, annotations, keep_last",
                          "muster update char-gpt-7 --priority 5 --label team=vision --label old-",
                          update->job);
  command.AddOption("--priority", update->priority, "-1000 to 1000; higher ones start first");
  command.AddOption("--label", update->labels, "KEY=VALUE sets, KEY- removes").OneValueEach();
  command.AddOption("--annotation", update->annotations, "KEY=VALUE sets, KEY- removes")
      .OneValueEach();
  command.AddOption("--keep-last", update->keep_last, "Checkpoints to keep; 0: all");
  command.SetAction([update, &session] { session.Fail(Update(*update, session)); });

  auto add = [&](const char* name, const char* description, const char* example, bool retry) {
    auto options = std::make_shared<AgainOptions>();
    Command again = AddJobsCommand(program, name, description, example, options->jobs);
    again.AddOption("--set", options->settings, "FIELD=VALUE, replaces a field of the job")
        .OneValueEach();
    again.AddFlag("--print", options->print, "Print the job file instead of submitting it");
    again.SetAction([options, retry, &session] { session.Fail(Again(*options, retry, session)); });
  };
  add("retry", "Submit ended jobs again, from their last checkpoint",
      "muster retry char-gpt-7 --set training.steps=4000", true);
  add("clone", "Submit jobs again from the beginning",
      "muster clone char-gpt-7 --set training.seed=2", false);
}

}  // namespace

void AddJobCommands(Command program, Session& session) {
  AddSubmit(program, session);
  AddReading(program, session);
  AddWait(program, session);
  AddChanging(program, session);
  AddAgain(program, session);
}

}  // namespace muster::cli
